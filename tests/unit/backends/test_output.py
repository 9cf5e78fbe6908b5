"""Text pieces, stop strings and logprob rows of one choice, against a naive quadratic implementation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.output import BytesDetokenizer, Output, Piece
from backends.types import FinishReason, SamplingParams, TokenLogprob


def _row(data: bytes) -> TokenLogprob:
    return TokenLogprob(token=data.decode("utf-8", "replace"), logprob=-0.5, bytes=data)


def _run(tokens: Sequence[bytes], sampling: SamplingParams) -> tuple[list[Piece], Output]:
    """Feed tokens until a stop string or the end, as a backend does; ids are positions."""
    output = Output(BytesDetokenizer(tokens.__getitem__), sampling)
    pieces = []
    for at, token in enumerate(tokens):
        pieces.append(output.add(at, _row(token)))
        if pieces[-1].finish_reason:
            return pieces, output
    pieces.append(output.finish(FinishReason.LENGTH))
    return pieces, output


def _text(pieces: Sequence[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _ids(pieces: Sequence[Piece]) -> list[int]:
    return [token_id for piece in pieces for token_id in piece.token_ids]


def _naive(text: str, stops: Sequence[str], allowed_from: int, keep: bool) -> tuple[str, str | None]:
    """Look at every prefix of the text in turn; `allowed_from` is the shortest that may end with a stop string."""
    for end in range(allowed_from, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if keep else end - len(stop)], stop
    return text, None


def _split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    edges = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[low:high] for low, high in pairwise(edges) if low < high]


texts = st.text(alphabet="ab é🎉", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab é🎉", min_size=1, max_size=5), max_size=4)
cut_lists = st.lists(st.integers(0, 200), max_size=40)


@given(texts, cut_lists, stop_lists, st.booleans())
def test_the_text_is_the_same_for_every_split_into_tokens(
    text: str, cuts: list[int], stops: list[str], keep: bool
) -> None:
    sampling = SamplingParams(stop=tuple(stops), include_stop_str_in_output=keep)

    pieces, _ = _run(_split(text.encode(), cuts), sampling)

    expected, stop = _naive(text, stops, 1, keep)
    assert _text(pieces) == expected
    assert pieces[-1].stop_reason == stop
    assert pieces[-1].finish_reason is (FinishReason.STOP if stop else FinishReason.LENGTH)


@given(st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=12), stop_lists, st.integers(0, 14))
def test_a_stop_string_does_not_count_before_min_tokens(words: list[str], stops: list[str], min_tokens: int) -> None:
    pieces, output = _run([word.encode() for word in words], SamplingParams(stop=tuple(stops), min_tokens=min_tokens))

    before = len("".join(words[: max(0, min_tokens - 1)]))
    expected, stop = _naive("".join(words), stops, before + 1, False)
    assert _text(pieces) == expected
    assert stop is None or output.num_tokens >= min_tokens


@given(st.binary(max_size=30), cut_lists)
def test_bytes_that_are_no_text_come_out_as_one_decode_would_give_them(data: bytes, cuts: list[int]) -> None:
    pieces, _ = _run(_split(data, cuts), SamplingParams())

    assert _text(pieces) == data.decode("utf-8", "replace")


@given(st.text(alphabet="aé🎉", max_size=20), cut_lists)
def test_no_piece_ever_holds_a_part_of_a_character(text: str, cuts: list[int]) -> None:
    pieces, _ = _run(_split(text.encode(), cuts), SamplingParams())

    assert all("\N{REPLACEMENT CHARACTER}" not in piece.text for piece in pieces)


@given(texts, cut_lists, stop_lists)
def test_rows_come_out_with_the_text_of_their_tokens(text: str, cuts: list[int], stops: list[str]) -> None:
    tokens = _split(text.encode(), cuts)

    pieces, output = _run(tokens, SamplingParams(stop=tuple(stops)))

    ids = _ids(pieces)
    assert ids == list(range(len(ids))), "each row once, in order"
    assert len(ids) <= output.num_tokens <= len(tokens)
    assert [row.bytes for piece in pieces for row in piece.logprobs or ()] == tokens[: len(ids)]
    released = _text(pieces).encode()
    assert b"".join(tokens[: len(ids)]).startswith(released)
    assert not released or len(b"".join(tokens[: len(ids) - 1])) < len(released)


@given(texts, cut_lists, stop_lists)
def test_text_is_held_only_while_it_may_become_a_stop_string(text: str, cuts: list[int], stops: list[str]) -> None:
    tokens = _split(text.encode(), cuts)
    output = Output(BytesDetokenizer(tokens.__getitem__), SamplingParams(stop=tuple(stops)))
    released = ""
    for at in range(len(tokens)):
        piece = output.add(at)
        released += piece.text
        if piece.finish_reason:
            return

        held = b"".join(tokens[: at + 1]).decode("utf-8", "ignore")[len(released) :]

        assert not held or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_stop_string_across_tokens_is_cut_out() -> None:
    pieces, output = _run([b"quick br", b"own f", b"ox jumps"], SamplingParams(stop=("own fox",)))

    assert _text(pieces) == "quick br"
    assert [piece.text for piece in pieces] == ["quick br", "", ""]
    assert _ids(pieces) == [0]
    assert output.num_tokens == 3


def test_the_stop_string_that_is_complete_first_wins_even_if_another_began_earlier() -> None:
    pieces, _ = _run([b"xabcd"], SamplingParams(stop=("abcd", "bc")))

    assert _text(pieces) == "xa"
    assert pieces[-1].stop_reason == "bc"


def test_the_longest_wins_among_stop_strings_that_end_together() -> None:
    pieces, _ = _run([b"xabc"], SamplingParams(stop=("c", "abc", "bc")))

    assert _text(pieces) == "x"
    assert pieces[-1].stop_reason == "abc"


def test_a_token_cut_in_its_middle_keeps_its_row() -> None:
    pieces, _ = _run([b"a", b" food"], SamplingParams(stop=("ood",)))

    assert _text(pieces) == "a f"
    assert _ids(pieces) == [0, 1]


def test_tokens_after_the_end_change_nothing() -> None:
    tokens = [b"a", b"STOP", b"b"]
    output = Output(BytesDetokenizer(tokens.__getitem__), SamplingParams(stop=("STOP",)))
    output.add(0)
    output.add(1)

    assert output.add(2) == Piece()
    assert output.finish(FinishReason.LENGTH) == Piece()
    assert output.num_tokens == 2


def test_held_text_is_released_at_the_end_when_no_stop_string_came() -> None:
    pieces, _ = _run([b"ab", b"S"], SamplingParams(stop=("STOP",)))

    assert [piece.text for piece in pieces] == ["ab", "", "S"]
    assert _ids(pieces) == [0, 1]


def test_bytes_that_stay_incomplete_end_as_a_replacement_character() -> None:
    pieces, _ = _run([b"a", "é".encode()[:1]], SamplingParams())

    assert _text(pieces) == "a\N{REPLACEMENT CHARACTER}"
    assert _ids(pieces) == [0, 1]


def test_a_stop_string_that_only_the_flush_completes_still_cuts() -> None:
    pieces, _ = _run([b"a", "é".encode()[:1]], SamplingParams(stop=("\N{REPLACEMENT CHARACTER}",)))

    assert _text(pieces) == "a"
    assert pieces[-1].finish_reason is FinishReason.STOP


def test_the_end_token_is_counted_and_has_neither_text_nor_row() -> None:
    output = Output(BytesDetokenizer([b"hi"].__getitem__), SamplingParams())
    output.add(0, _row(b"hi"))

    end = output.finish(FinishReason.STOP, 7, end_token_id=7)

    assert end == Piece(token_ids=(7,), finish_reason=FinishReason.STOP, stop_reason=7)
    assert output.num_tokens == 2


def test_a_flush_in_the_middle_releases_held_text_and_forgets_the_half_match() -> None:
    tokens = [b"aS", b"TOP"]
    output = Output(BytesDetokenizer(tokens.__getitem__), SamplingParams(stop=("STOP",)))
    output.add(0)

    assert output.flush().text == "S"
    assert output.add(1).finish_reason is None


@pytest.mark.parametrize("size", [1, 3, 400])
def test_a_long_repetitive_stop_string_is_found(size: int) -> None:
    stop = "a" * size + "b"

    pieces, _ = _run([b"a"] * 500 + [b"b"], SamplingParams(stop=(stop,)))

    assert _text(pieces) == "a" * (500 - size)
