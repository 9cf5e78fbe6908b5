"""Modules that call the C kernels answer as the modules they replace, attention windows and biases included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from backends.hf import native
from backends.hf.fused import FusedAttention, fuse
from backends.hf.machine import Machine
from backends.hf.native_attention import NativeAttention
from backends.hf.runner import BatchedRunner
from backends.hf.self_check import SelfCheck, check_blocks
from backends.hf.swaps import pack_linears, undo
from tests import tiny_models
from tests.engine.harness import batched

BLOCK_SIZE = 16
FAMILIES = ("llama", "mistral", "mixtral", "qwen2")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> NativeAttention:
    kernels = native.load(tmp_path_factory.mktemp("kernels"), 1, Machine.probe().cpu_flags)
    if kernels is None:
        pytest.skip("this CPU has no AVX512-BF16, or there is no C compiler")
    return NativeAttention(kernels)


def wide_headed(family: str) -> Any:
    """A tiny model in bfloat16 whose heads are as wide as the rotating kernel wants them, with a short window."""
    config: Any = tiny_models.CONFIGS[family]()
    config.head_dim = 32
    if family in ("mistral", "mixtral"):
        config.sliding_window = 8
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return model.eval().requires_grad_(False).to(torch.bfloat16)


@pytest.mark.parametrize("family", FAMILIES)
def test_fused_modules_are_as_close_to_the_plain_model_as_torch_is(family: str, kernel: NativeAttention) -> None:
    model = wide_headed(family)
    check = SelfCheck(model, tiny_models.VOCAB_SIZE)
    blocks = check_blocks(BLOCK_SIZE)
    noise = check.error(batched(model, blocks, BLOCK_SIZE))

    swaps = fuse(model, kernel) + pack_linears(model)
    error = check.error(BatchedRunner(model, kernel, blocks, BLOCK_SIZE))

    assert any(isinstance(module, FusedAttention) for module in model.modules())
    # A router may choose another expert for the last bit of an input; a wrong window is off by more than 1.
    assert error < (0.2 if family == "mixtral" else 2 * noise + 0.02)
    undo(swaps)
    assert check.error(batched(model, blocks, BLOCK_SIZE)) == noise


def test_a_norm_that_only_looks_alike_keeps_its_own_code(kernel: NativeAttention) -> None:
    model = tiny_models.build("gemma3").to(torch.bfloat16)  # its norms multiply by 1 + weight, its gates are no silu

    assert fuse(model, kernel) == []
