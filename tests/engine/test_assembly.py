"""The engine takes the fastest way to run a model that answers as the plain model does, or says that there is none."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.base import DEFAULT_LANE_RULES
from backends.errors import ConfigError
from backends.hf import native
from backends.hf.assembly import build_engine, choose_runner
from backends.hf.attention import PagedCache
from backends.hf.loader import LoadedModel
from backends.hf.machine import Machine
from backends.hf.native_attention import NativeAttention
from backends.hf.options import HFOptions
from tests import tiny_models
from tests.engine.harness import Answers, greedy


def loaded(model: Any) -> LoadedModel:
    return LoadedModel(
        model=model,
        config=model.config,
        dtype=model.dtype,
        device=model.device,
        max_model_len=tiny_models.MAX_MODEL_LEN,
        vocab_size=tiny_models.VOCAB_SIZE,
        eos_token_ids=frozenset({tiny_models.END_ID}),
        weight_bytes=0,
    )


def options(**fields: Any) -> HFOptions:
    return HFOptions(model="tiny", block_size=16, **fields)


@pytest.mark.parametrize("family", ["llama", "gemma3", "mixtral", "gpt2"])
def test_models_that_go_through_the_attention_interface_are_batched(family: str) -> None:
    assert choose_runner(loaded(tiny_models.build(family)), options(), None).name == "batched"


@pytest.mark.parametrize("family", ["bloom", "falcon"])
def test_models_that_ignore_it_run_sequence_by_sequence(family: str) -> None:
    assert choose_runner(loaded(tiny_models.build(family)), options(), None).name == "per_sequence"


def test_a_model_whose_positions_depend_on_its_neighbours_is_not_batched() -> None:
    model = tiny_models.build("llama")
    model.config.rope_parameters = {**model.config.rope_parameters, "rope_type": "dynamic", "factor": 2.0}

    assert choose_runner(loaded(model), options(), None).name == "per_sequence"


def test_a_model_that_attends_in_chunks_is_not_batched() -> None:
    model = tiny_models.build("llama")
    model.config.layer_types = ["chunked_attention"] * 3
    model.config.attention_chunk_size = tiny_models.MAX_MODEL_LEN

    assert choose_runner(loaded(model), options(), None).name == "per_sequence"


def test_asking_for_a_batch_that_cannot_be_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="cannot be served"):
        choose_runner(loaded(tiny_models.build("bloom")), options(runner="batched"), None)


def test_a_runner_whose_cache_is_wrong_is_found_out_and_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forgets(self: PagedCache, key: Any, value: Any, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        self.of(args[0], key.shape[1], key.shape[3], value.shape[3])[0].zero_()
        return key, value

    monkeypatch.setattr(PagedCache, "update", forgets)
    with caplog.at_level(logging.WARNING):
        runner = choose_runner(loaded(tiny_models.build("llama")), options(), None)

    assert runner.name == "per_sequence"
    assert "batched runner cannot serve this model" in caplog.text


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_bfloat16_models_pass_the_check_with_the_native_kernels(family: str, tmp_path: Path) -> None:
    kernels = native.load(tmp_path, 1, Machine.probe().cpu_flags)
    if kernels is None:
        pytest.skip("this CPU has no AVX512-BF16, or there is no C compiler")
    kernel = NativeAttention(kernels)

    runner: Any = choose_runner(loaded(tiny_models.build(family).to(torch.bfloat16)), options(), kernel)

    assert runner.name == "batched"
    assert runner._kernel is kernel


def test_a_folder_becomes_a_warm_engine_that_answers(tiny_llama_dir: Path) -> None:
    answers = Answers()
    settings = HFOptions(model=str(tiny_llama_dir), dtype="float32", threads=1, kv_cache_memory=1 << 24, max_num_seqs=4)

    engine, welcome = build_engine(settings, DEFAULT_LANE_RULES, answers.deliver)
    engine.submit("front", greedy(7, [5, 6, 7], 4))
    while engine.step():
        pass

    assert welcome.end_token_ids == [tiny_models.END_ID]
    assert len(answers.tokens[7]) == 4
    assert engine.num_live == 0


def test_a_cache_too_small_for_a_block_is_a_config_error(tiny_llama_dir: Path) -> None:
    settings = HFOptions(
        model=str(tiny_llama_dir), dtype="float32", threads=1, kv_cache_memory=1 << 20, block_size=1024
    )

    with pytest.raises(ConfigError, match="kv_cache_memory"):
        build_engine(settings, DEFAULT_LANE_RULES, Answers().deliver)


def test_a_model_that_runs_sequence_by_sequence_becomes_a_warm_engine_too(tmp_path: Path) -> None:
    answers = Answers()
    folder = tiny_models.save("bloom", tmp_path / "bloom")
    settings = HFOptions(model=str(folder), dtype="float32", threads=1, kv_cache_memory=1 << 24, max_model_len=256)

    engine, welcome = build_engine(settings, DEFAULT_LANE_RULES, answers.deliver)
    engine.submit("front", greedy(7, [5, 6, 7], 4))
    while engine.step():
        pass

    assert welcome.runner == "per_sequence"
    assert len(answers.tokens[7]) == 4
