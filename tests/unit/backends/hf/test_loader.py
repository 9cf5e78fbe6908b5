from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file, save_file

from backends.errors import ConfigError
from backends.hf import hub
from backends.hf.checkpoint import Checkpoint
from backends.hf.loader import check, load, tokenizer_dir
from backends.hf.machine import Gpu, Machine
from backends.hf.options import HFOptions
from tests import tiny_models

ROOM = 64 << 30
CPU = Machine(cpu_flags=frozenset(), physical_cores=2, available_memory=ROOM)
BF16_CPU = structs.replace(CPU, cpu_flags=frozenset({"avx512_bf16"}))
BIG_GPU = Gpu("Big", 80 << 30, 70 << 30, (9, 0))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("models") / "tiny")


def options(folder: Path, **fields: Any) -> HFOptions:
    return HFOptions(model=str(folder), **fields)


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        result: torch.Tensor = model(torch.arange(3, 20)[None]).logits
    return result


def test_a_loaded_model_computes_what_was_saved(whole: Path) -> None:
    loaded = load(options(whole), machine=CPU)

    assert torch.equal(logits(loaded.model), logits(tiny_models.build("llama")))
    assert (loaded.dtype, loaded.device) == (torch.float32, torch.device("cpu"))
    assert (loaded.max_model_len, loaded.vocab_size) == (tiny_models.MAX_MODEL_LEN, tiny_models.VOCAB_SIZE)
    assert loaded.eos_token_ids == {tiny_models.END_ID}
    assert loaded.weight_bytes == Checkpoint.read(whole).bytes_as("float32")
    assert not loaded.model.training
    assert not any(weight.requires_grad for weight in loaded.model.parameters())


def test_sharded_weights_load_as_one_model(tmp_path: Path) -> None:
    folder = tiny_models.save("llama", tmp_path / "sharded", max_shard_size="200KB")

    loaded = load(options(folder), machine=CPU)

    assert torch.equal(logits(loaded.model), logits(tiny_models.build("llama")))


@pytest.mark.parametrize("name", sorted(tiny_models.CONFIGS))
def test_every_tiny_family_loads(name: str, tmp_path: Path) -> None:
    loaded = load(options(tiny_models.save(name, tmp_path / name)), machine=CPU)

    assert torch.equal(logits(loaded.model), logits(tiny_models.build(name)))


@pytest.mark.parametrize(
    ("machine", "dtype"), [(BF16_CPU, torch.bfloat16), (CPU, torch.float32)], ids=["bf16", "no bf16"]
)
def test_the_dtype_is_what_the_cpu_computes_fast(whole: Path, machine: Machine, dtype: torch.dtype) -> None:
    loaded = load(options(whole), machine=machine)

    assert (loaded.dtype, loaded.model.dtype) == (dtype, dtype)


def test_the_attention_is_the_callers_choice(whole: Path) -> None:
    loaded = load(options(whole), attn_implementation="eager", machine=CPU)

    assert loaded.config._attn_implementation == "eager"


def test_what_does_not_fit_in_memory_goes_to_the_offload_folder(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=400_000, total=400_000))
    mapped = options(whole, device_map="auto", offload_folder=str(tmp_path / "offload"))

    loaded = load(mapped, machine=CPU)

    assert set(loaded.model.hf_device_map.values()) == {"cpu", "disk"}
    assert loaded.device == torch.device("cpu")
    assert torch.equal(logits(loaded.model), logits(tiny_models.build("llama")))


def test_a_checkpoint_that_lacks_weights_is_not_filled_with_random_ones(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(ConfigError, match=r"absent .*model\.layers\.1\.mlp\.up_proj\.weight"):
        load(options(folder), machine=CPU)


def test_weights_of_another_shape_than_the_config_says_are_an_error(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 96}))

    with pytest.raises(ConfigError, match="mlp"):
        load(options(folder), machine=CPU)


def test_checking_does_not_import_torch(whole: Path) -> None:
    code = (
        "import sys; from backends.hf import loader; from backends.hf.options import HFOptions\n"
        f"loader.check(HFOptions(model={str(whole)!r})); print('torch' in sys.modules)"
    )

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert (run.stdout, run.returncode) == ("False\n", 0), run.stderr


def test_the_plan_says_how_the_model_will_be_loaded(whole: Path) -> None:
    plan = check(options(whole, max_model_len=100), machine=BF16_CPU)

    assert (plan.dtype, plan.device, plan.max_model_len) == ("bfloat16", "cpu", 100)


def test_a_context_longer_than_the_models_is_refused(whole: Path) -> None:
    with pytest.raises(ConfigError, match="max_model_len: 513 is more than the model's 512 tokens; choose 1 to 512"):
        check(options(whole, max_model_len=513), machine=CPU)


def test_a_model_that_does_not_say_its_length_gets_the_asked_one(tmp_path: Path) -> None:
    folder = tiny_models.save("bloom", tmp_path / "bloom")

    assert check(options(folder, max_model_len=300), machine=CPU).max_model_len == 300
    assert check(options(folder), machine=CPU).max_model_len == 2048


def big_model(whole: Path, folder: Path, num_bytes: int) -> Path:
    """A folder whose weights claim to be of that size; the file has holes instead."""
    shutil.copytree(whole, folder)
    text = json.dumps({"w": {"dtype": "BF16", "shape": [num_bytes // 2], "data_offsets": [0, num_bytes]}}).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + num_bytes)
    return folder


def test_a_model_bigger_than_memory_is_refused_with_both_numbers(whole: Path, tmp_path: Path) -> None:
    folder = big_model(whole, tmp_path / "big", 10 * 10**9)

    with pytest.raises(ConfigError, match=r"big needs 10\.5 GB as bfloat16 .* memory has 8\.0 GB free.*device_map"):
        check(options(folder), machine=structs.replace(BF16_CPU, available_memory=8 * 10**9))


def test_a_model_that_would_fit_in_bf16_says_so(whole: Path, tmp_path: Path) -> None:
    folder = big_model(whole, tmp_path / "big", 10 * 10**9)

    with pytest.raises(ConfigError, match=r'20\.5 GB as float32.*Set dtype = "bfloat16" \(10\.5 GB\)'):
        check(options(folder), machine=structs.replace(CPU, available_memory=12 * 10**9))


def test_a_folder_to_offload_to_lifts_the_bound(whole: Path, tmp_path: Path) -> None:
    folder = big_model(whole, tmp_path / "big", 10 * 10**9)
    small = structs.replace(CPU, available_memory=8 * 10**9)

    check(options(folder, device_map="auto", offload_folder=str(tmp_path / "offload")), machine=small)


def test_a_model_for_a_gpu_must_fit_its_memory(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("backends.hf.machine._torch_is_cpu_only", lambda: False)
    folder = big_model(whole, tmp_path / "big", 10 * 10**9)
    machine = structs.replace(CPU, available_memory=2 * 10**9, gpus=(BIG_GPU,))
    full = structs.replace(machine, gpus=(structs.replace(BIG_GPU, free_memory=9 * 10**9),))

    assert check(options(folder), machine=machine).device == "cuda"
    with pytest.raises(ConfigError, match=r"Big \(cuda\) has 9\.0 GB free"):
        check(options(folder), machine=full)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"device": "tpu"}, "device: 'tpu' is not one of auto, cpu, cuda"),
        ({"device": "cuda"}, "device: 'cuda'"),
        ({"dtype": "float16"}, "dtype: float16 needs a GPU"),
        ({"device_map": "everywhere"}, "device_map: 'everywhere' is not one of auto"),
        ({"device_map": "auto", "device": "cpu"}, "device_map: cannot be combined with device"),
        ({"offload_folder": "x"}, "offload_folder: is used only together with device_map"),
    ],
)
def test_options_that_cannot_work_are_refused_by_name(whole: Path, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check(options(whole, **fields), machine=CPU)


def test_an_incomplete_download_says_how_to_complete_it(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "snapshot"))
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(hub, "snapshot", lambda *_: folder)

    with pytest.raises(ConfigError, match="complete it: laneway models pull org/tiny"):
        check(HFOptions(model="org/tiny"), machine=CPU)


def test_the_built_in_model_is_ready_for_the_front_and_the_engine(smollm2_dir: Path, laneway_home: Path) -> None:
    built_in = HFOptions(model="smollm2-135m-instruct")

    assert tokenizer_dir(built_in, laneway_home) == smollm2_dir
    assert tokenizer_dir(built_in) == smollm2_dir
    assert check(built_in, laneway_home, machine=BF16_CPU).checkpoint.folder == smollm2_dir
