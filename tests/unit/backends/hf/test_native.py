"""The C kernels give what torch gives, for every mix of rows, head shape and window."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from backends.hf import native
from backends.hf.machine import Machine
from backends.hf.native import NativeKernels

BLOCK = 32
FLAGS = Machine.probe().cpu_flags


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> NativeKernels:
    loaded = native.load(tmp_path_factory.mktemp("kernels"), 2, FLAGS)
    if loaded is None:
        pytest.skip("this CPU has no AVX512-BF16, or there is no C compiler")
    return loaded


def step(
    kernels: NativeKernels, rows: list[tuple[int, int]], heads: int, kv_heads: int, dim: int, window: int | None
) -> tuple[Tensor, Tensor]:
    """Attention of rows of (start, count) over scattered blocks of stale NaN: what the kernel says, and float torch."""
    generator = torch.Generator().manual_seed(0)
    num_blocks = sum(-(-(start + count) // BLOCK) for start, count in rows) + 3
    free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(1)).tolist()
    keys = torch.full((num_blocks, kv_heads, BLOCK, dim), float("nan"), dtype=torch.bfloat16)
    values = keys.clone()
    plan: list[tuple[int, int, int, int]] = []
    tables: list[int] = []
    queries: list[Tensor] = []
    expected: list[Tensor] = []
    for start, count in rows:
        length = start + count
        table = [free.pop() for _ in range(-(-length // BLOCK))]
        key = torch.randn(length, kv_heads, dim, generator=generator).bfloat16()
        value = torch.randn(length, kv_heads, dim, generator=generator).bfloat16()
        slots = torch.tensor([table[i // BLOCK] * BLOCK + i % BLOCK for i in range(length)])
        kernels.store(key, value, keys, values, slots)
        query = torch.randn(count, heads, dim, generator=generator).bfloat16()
        plan.append((sum(map(len, queries)), start, count, len(tables)))
        tables += table
        queries.append(query)
        seen = torch.ones(count, length).tril(start).bool()
        if window is not None:
            seen &= torch.ones(count, length).triu(start - window + 1).bool()
        repeat = heads // kv_heads
        q, k, v = (
            t.float().transpose(0, 1)
            for t in (query, key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1))
        )
        expected.append(F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(0, 1))
    rows_tensor, blocks = torch.tensor(plan, dtype=torch.int32), torch.tensor(tables, dtype=torch.int32)
    found = kernels.attend(torch.cat(queries), keys, values, rows_tensor, blocks, dim**-0.5, window)
    return found.float(), torch.cat(expected)


MIX = [(5, 1), (100, 1), (0, 7), (31, 40), (200, 130), (0, 1), (15, 1), (16, 1), (127, 2)]


@pytest.mark.parametrize("window", [None, 1, 20, 1000])
@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(9, 3, 64), (4, 4, 128), (8, 1, 80), (14, 2, 64), (2, 1, 256)])
def test_attention_over_pages_equals_float_attention(
    kernels: NativeKernels, heads: int, kv_heads: int, dim: int, window: int | None
) -> None:
    found, expected = step(kernels, MIX, heads, kv_heads, dim, window)

    torch.testing.assert_close(found, expected, rtol=0, atol=2e-2)


def test_a_row_attends_the_same_alone_and_beside_neighbours(kernels: NativeKernels) -> None:
    together, _ = step(kernels, MIX, 9, 3, 64, None)

    alone, _ = step(kernels, MIX[:1], 9, 3, 64, None)

    # The data of the first row is drawn first, so it is the same in both.
    assert torch.equal(alone[0], together[0])


def test_rms_norm_is_bit_for_bit_that_of_the_models(kernels: NativeKernels) -> None:
    x, weight = torch.randn(56, 576).bfloat16() * 3, torch.randn(576).bfloat16()

    wide = x.float()
    expected = weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).bfloat16()

    torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-5), expected, rtol=1e-2, atol=1e-3)


def test_gated_activation_holds_for_small_large_and_zero_gates(kernels: NativeKernels) -> None:
    gate = torch.cat([torch.linspace(-90, 90, 1024), torch.zeros(16), torch.linspace(-1e-3, 1e-3, 496)]).bfloat16()
    up = torch.randn(1536).bfloat16()

    found = kernels.silu_mul(torch.cat([gate, up]).unsqueeze(0).contiguous())

    torch.testing.assert_close(found[0].float(), F.silu(gate.float()) * up.float(), rtol=1e-2, atol=1e-6)


def test_rotation_and_storing_equal_the_models_own_rotation(kernels: NativeKernels) -> None:
    tokens, heads, kv_heads, dim = 21, 9, 3, 64
    fused = torch.randn(tokens, (heads + 2 * kv_heads) * dim).bfloat16()
    angles = torch.rand(tokens, dim // 2) * 6
    cos, sin = (torch.cat([f, f], -1).bfloat16() for f in (angles.cos(), angles.sin()))
    parts = fused.view(tokens, -1, dim).float()
    halves = torch.cat([-parts[..., dim // 2 :], parts[..., : dim // 2]], -1)
    rotated = (parts * cos.float()[:, None] + halves * sin.float()[:, None]).bfloat16()
    slots = torch.arange(tokens) + 32
    pages = [torch.zeros(3, kv_heads, BLOCK, dim, dtype=torch.bfloat16) for _ in range(4)]

    value = fused.view(tokens, -1, dim)[:, heads + kv_heads :]
    kernels.store(rotated[:, heads : heads + kv_heads], value, pages[0], pages[1], slots)
    kernels.rotate_and_store(fused, cos, sin, pages[2], pages[3], slots, heads)

    torch.testing.assert_close(fused.view(tokens, -1, dim)[:, :heads], rotated[:, :heads], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(pages[2], pages[0], rtol=1e-2, atol=1e-2)
    assert torch.equal(pages[3], pages[1])


def test_kernels_are_compiled_once(kernels: NativeKernels, tmp_path: Path) -> None:
    native.load(tmp_path, 1, FLAGS)
    built = [(file.name, file.stat().st_mtime_ns) for file in tmp_path.iterdir()]

    native.load(tmp_path, 1, FLAGS)

    assert [(file.name, file.stat().st_mtime_ns) for file in tmp_path.iterdir()] == built
    assert len(built) == 1


def test_without_a_compiler_there_are_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert native.load(tmp_path / "cache", 1, FLAGS) is None


def test_without_the_instructions_there_are_no_kernels(tmp_path: Path) -> None:
    assert native.load(tmp_path, 1, FLAGS - {native.CPU_FLAG}) is None
