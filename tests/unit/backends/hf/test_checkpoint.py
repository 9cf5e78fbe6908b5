from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from backends.errors import ConfigError
from backends.hf.checkpoint import Checkpoint, check_servable
from tests import tiny_models

Folder: TypeAlias = Callable[..., Path]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("models") / "sharded", max_shard_size="200KB")


@pytest.fixture
def copy(tmp_path: Path, whole: Path) -> Folder:
    """A copy of the whole model: without some files, with changed fields of its config."""

    def make(*without: str, source: Path = whole, **fields: Any) -> Path:
        folder = Path(shutil.copytree(source, tmp_path / "model"))
        for name in without:
            (folder / name).unlink()
        edit(folder / "config.json", **fields)
        return folder

    return make


def edit(file: Path, **fields: Any) -> None:
    if file.exists():
        content = {**json.loads(file.read_text()), **fields}
        file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def check(folder: Path, trust_remote_code: bool = False) -> None:
    check_servable(Checkpoint.read(folder), trust_remote_code)


def test_a_whole_model_passes(whole: Path) -> None:
    check(whole)


def test_the_facts_of_a_folder_are_read_without_loading_it(whole: Path) -> None:
    checkpoint = Checkpoint.read(whole)
    parameters = sum(weight.numel() for weight in tiny_models.build("llama").parameters())

    assert checkpoint.num_bytes == {"F32": parameters * 4}
    assert checkpoint.bytes_as("float32") == parameters * 4
    assert checkpoint.bytes_as("bfloat16") == parameters * 2
    assert checkpoint.max_model_len == tiny_models.MAX_MODEL_LEN
    assert checkpoint.eos_token_ids == {tiny_models.END_ID}


def test_shards_are_counted_together(whole: Path, sharded: Path) -> None:
    checkpoint = Checkpoint.read(sharded)

    assert len(checkpoint.shards) > 1
    assert checkpoint.num_bytes == Checkpoint.read(whole).num_bytes


def test_a_shard_that_is_missing_is_named(copy: Folder, sharded: Path) -> None:
    name = Checkpoint.read(sharded).shards[1].name

    with pytest.raises(ConfigError, match=rf"lacks 1 of the \d weight files.*{name}"):
        check(copy(name, source=sharded))


def test_a_folder_without_a_config_is_no_model(copy: Folder) -> None:
    with pytest.raises(ConfigError, match=r"has no config\.json"):
        check(copy("config.json"))


def test_a_folder_of_gguf_files_names_one_to_serve(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()

    with pytest.raises(ConfigError, match=r"name one of them: .*model\.gguf"):
        check(tmp_path)


def test_an_adapter_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")

    with pytest.raises(ConfigError, match="holds an adapter"):
        check(tmp_path)


def test_a_config_that_is_not_json_is_a_clear_error(copy: Folder) -> None:
    folder = copy()
    (folder / "config.json").write_text("{oops")

    with pytest.raises(ConfigError, match=r"config\.json cannot be read"):
        check(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth"])
def test_a_checkpoint_of_pickles_alone_is_refused(copy: Folder, name: str) -> None:
    folder = copy("model.safetensors")
    (folder / name).write_bytes(b"pickle")

    with pytest.raises(ConfigError, match=r"pickle.*Convert them to safetensors"):
        check(folder)


def test_a_folder_without_weights_says_so(copy: Folder) -> None:
    with pytest.raises(ConfigError, match="has no weights"):
        check(copy("model.safetensors"))


def test_safetensors_of_another_name_are_not_guessed(copy: Folder) -> None:
    folder = copy()
    (folder / "model.safetensors").rename(folder / "other.safetensors")

    with pytest.raises(ConfigError, match=r"neither model\.safetensors nor"):
        check(folder)


def test_weights_that_are_cut_short_are_found_before_loading(copy: Folder) -> None:
    weights = copy() / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])

    with pytest.raises(ConfigError, match="is cut short"):
        check(weights.parent)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "git lfs pull"),
        (b"", "not a safetensors file"),
        (b"<html>not found</html>", "not a safetensors file"),
        ((4).to_bytes(8, "little") + b"oops", "cannot be read"),
    ],
)
def test_weights_that_are_something_else_are_found_before_loading(copy: Folder, content: bytes, words: str) -> None:
    folder = copy()
    (folder / "model.safetensors").write_bytes(content)

    with pytest.raises(ConfigError, match=words):
        check(folder)


def test_a_model_without_a_tokenizer_is_refused(copy: Folder) -> None:
    with pytest.raises(ConfigError, match=r"has no tokenizer .*tokenizer\.json"):
        check(copy("tokenizer.json"))


def test_a_model_without_a_chat_template_is_refused_with_the_file_to_add(copy: Folder) -> None:
    with pytest.raises(ConfigError, match=r"no chat template.*chat_template\.jinja"):
        check(copy("chat_template.jinja"))


def test_a_chat_template_inside_the_tokenizer_config_counts(copy: Folder) -> None:
    folder = copy("chat_template.jinja")
    edit(folder / "tokenizer_config.json", chat_template=tiny_models.CHAT_TEMPLATE)

    check(folder)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "BertForMaskedLM, not a causal language model"),
        ({"architectures": ["T5ForConditionalGeneration"], "is_encoder_decoder": True}, "not a causal language model"),
        ({"model_type": "newer"}, "type 'newer', which the installed transformers does not know"),
        ({"model_type": "newer", "auto_map": {"AutoModelForCausalLM": "m.M"}}, "set trust_remote_code = true"),
    ],
)
def test_a_model_that_cannot_generate_here_is_refused(copy: Folder, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(copy(**fields))


def test_code_of_a_model_is_taken_when_it_is_trusted(copy: Folder) -> None:
    check(copy(model_type="newer", auto_map={"AutoModelForCausalLM": "m.M"}), trust_remote_code=True)


def test_code_is_not_needed_for_a_family_that_transformers_knows(copy: Folder) -> None:
    check(copy(auto_map={"AutoModelForCausalLM": "m.M"}))


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({"max_position_embeddings": None, "n_positions": 77}, 77),
        ({"max_position_embeddings": None}, None),
        ({"text_config": {"max_position_embeddings": 99}}, 99),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}}, 2048),
        ({"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 512),
    ],
)
def test_the_length_of_a_model_is_found_where_its_family_keeps_it(
    copy: Folder, fields: dict[str, Any], length: int | None
) -> None:
    assert Checkpoint.read(copy(**{"rope_parameters": None, **fields})).max_model_len == length


@pytest.mark.parametrize(("eos", "ids"), [(7, {7, 2}), ([7, 8], {7, 8, 2}), (None, {2})])
def test_ends_of_an_answer_come_from_the_generation_config_and_the_tokenizer(
    copy: Folder, eos: int | list[int] | None, ids: set[int]
) -> None:
    folder = copy()
    edit(folder / "generation_config.json", eos_token_id=eos)

    assert Checkpoint.read(folder).eos_token_ids == ids


def test_quantized_weights_keep_their_size(copy: Folder) -> None:
    folder = copy()
    header = {
        "w": {"dtype": "I32", "shape": [2], "data_offsets": [0, 8]},
        "s": {"dtype": "F16", "data_offsets": [8, 12]},
    }
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(12))

    assert Checkpoint.read(folder).bytes_as("float32") == 8 + 8
