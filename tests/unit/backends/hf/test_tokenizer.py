"""Text of a stream of tokens equals the text of all of them; encoding never holds up other threads."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from backends.errors import ConfigError, InvalidRequest
from backends.hf.tokenizer import HFTokenizer, ModelTokenizer
from backends.types import ChatTemplate, Message
from tests.unit.backends.hf.fake_tokenizers import byte_level, save, sentencepiece

EMOJI = "a 😀 é 漢字 👩‍👩‍👧 z"


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer.load(save(byte_level(), tmp_path_factory.mktemp("bytewise")))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer.load(save(sentencepiece(), tmp_path_factory.mktemp("pieces")))


class WithoutRust:
    """The same tokenizer with its Rust backend out of sight, as one written in Python is."""

    def __init__(self, inner: HFTokenizer) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> object:
        if name == "backend_tokenizer":
            raise AttributeError(name)
        return getattr(self._inner, name)


def stream(tokenizer: ModelTokenizer, prompt: Sequence[int], output: Sequence[int], skip: bool = True) -> list[str]:
    detokenizer = tokenizer.detokenizer(prompt, skip)
    return [*(detokenizer.add(token_id) for token_id in output), detokenizer.flush()]


def test_an_emoji_comes_out_whole_with_its_last_byte(bytewise: ModelTokenizer) -> None:
    deltas = stream(bytewise, [], bytewise.encode("😀", add_special_tokens=False))

    assert deltas == ["", "", "", "😀", ""]


@pytest.mark.parametrize("cut", range(40))
def test_deltas_join_to_the_decoded_text_wherever_the_stream_ends(bytewise: ModelTokenizer, cut: int) -> None:
    output = bytewise.encode(EMOJI, add_special_tokens=False)[:cut]

    assert "".join(stream(bytewise, [65], output)) == bytewise.decode(output)


def test_ten_thousand_random_ids_never_break_the_stream(bytewise: ModelTokenizer) -> None:
    rng = random.Random(1)
    for skip in (True, False):
        output = [rng.randrange(bytewise.vocab_size) for _ in range(10_000)]

        assert "".join(stream(bytewise, [1, 2, 3], output, skip)) == bytewise.decode(output, skip)


def test_random_ids_of_a_byte_fallback_vocabulary_never_break_the_stream(pieces: ModelTokenizer) -> None:
    rng = random.Random(2)
    output = [rng.randrange(pieces.vocab_size) for _ in range(10_000)]
    letters = sum(len(text) for text in stream(pieces, [], output))

    # Text that was shown cannot be taken back, so bytes that later turn out broken may differ; nothing gets lost.
    assert abs(letters - len(pieces.decode(output, True))) < 0.25 * len(output)


def test_a_long_run_of_broken_bytes_is_shown_before_the_end_and_complete(bytewise: ModelTokenizer) -> None:
    output = [0x9F] * 1000 + list("ok 😀".encode())
    deltas = stream(bytewise, [], output)

    assert "".join(deltas) == bytewise.decode(output)
    assert "".join(deltas[:500])


def test_a_character_survives_a_run_of_broken_bytes_before_it_at_any_offset(bytewise: ModelTokenizer) -> None:
    for num_broken in range(24, 72):
        output = [0xF0] * num_broken + list("😀é".encode())

        assert "".join(stream(bytewise, [], output)) == bytewise.decode(output)


def test_silent_special_tokens_do_not_slow_or_lose_what_follows(bytewise: ModelTokenizer) -> None:
    output = [256] * 5000 + list(b"end")

    assert "".join(stream(bytewise, [65], output)) == "end"


def test_a_prompt_that_ends_inside_a_character_does_not_leak_into_the_answer(bytewise: ModelTokenizer) -> None:
    prompt = list("secret €".encode())[:-1]
    deltas = stream(bytewise, prompt, [0xAC, *b"hello"])

    assert "".join(deltas) == bytewise.decode([0xAC, *b"hello"])
    assert "€" not in "".join(deltas)


def test_the_space_before_the_first_word_is_kept_after_a_prompt(pieces: ModelTokenizer) -> None:
    prompt, answer = pieces.encode("the"), pieces.encode("a b")

    assert "".join(stream(pieces, prompt, answer)) == " a b"


def test_text_that_would_have_to_change_restarts_the_stream(pieces: ModelTokenizer) -> None:
    letter, first_of_three = pieces.encode("A")[1], 1 + 0xE2
    output = [letter, first_of_three, *pieces.encode("the")]  # as one run of bytes, "A" too would be broken

    text = "".join(stream(pieces, [], output))

    assert text.startswith("A")
    assert text.endswith("the")


def test_a_tokenizer_without_rust_streams_the_same_text(bytewise: ModelTokenizer, pieces: ModelTokenizer) -> None:
    rng = random.Random(3)
    for tokenizer in (bytewise, pieces):
        plain = ModelTokenizer(WithoutRust(tokenizer._tokenizer))  # type: ignore[arg-type]  # __getattr__ has the rest
        output = [*tokenizer.encode(EMOJI), *(rng.randrange(tokenizer.vocab_size) for _ in range(300))]

        assert stream(plain, [65], output) == stream(tokenizer, [65], output)
        assert plain.encode(EMOJI) == tokenizer.encode(EMOJI)


def test_special_tokens_are_added_to_text_and_not_to_a_rendered_chat(bytewise: ModelTokenizer) -> None:
    chat = bytewise.encode_chat([Message(role="user", content="hi")], ChatTemplate())

    assert bytewise.encode("hi") == [bytewise.bos_id, *b"hi"]
    assert chat == list(b"<user>hi</><assistant>")


def test_half_a_surrogate_pair_is_the_callers_mistake(bytewise: ModelTokenizer) -> None:
    plain = ModelTokenizer(WithoutRust(bytewise._tokenizer))  # type: ignore[arg-type]
    for tokenizer in (bytewise, plain):
        with pytest.raises(InvalidRequest, match="surrogate"):
            tokenizer.encode("a\ud800b")


def test_an_id_outside_the_vocabulary_is_named(bytewise: ModelTokenizer) -> None:
    assert bytewise.decode(list(b"ok")) == "ok"
    for wrong in (-1, bytewise.vocab_size, 2**40):
        with pytest.raises(InvalidRequest, match=str(wrong)):
            bytewise.decode([65, wrong])


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    loaded = ModelTokenizer.load(save(tokenizer, tmp_path))

    assert loaded.encode("abcdefgh", add_special_tokens=False) == list(b"abcdefgh")
    assert loaded.encode("ab", add_special_tokens=False) == list(b"ab")


def test_a_long_text_does_not_hold_up_other_threads(bytewise: ModelTokenizer) -> None:
    """Turns that another thread gets while a text is encoded: none with the call that keeps the GIL."""
    text = "word " * 100_000
    work = threading.Thread(target=lambda: bytewise.encode(text))
    turns = 0
    work.start()
    while work.is_alive():
        time.sleep(0.001)
        turns += 1

    assert turns > 5


def test_a_generic_tokenizer_loads_without_torch(tmp_path: Path) -> None:
    save(byte_level(), tmp_path)
    code = (
        "import sys; from pathlib import Path; from backends.hf.tokenizer import ModelTokenizer;"
        f"ModelTokenizer.load(Path({str(tmp_path)!r})); print('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_a_folder_without_a_tokenizer_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))

    with pytest.raises(ConfigError, match="tokenizer"):
        ModelTokenizer.load(tmp_path)
