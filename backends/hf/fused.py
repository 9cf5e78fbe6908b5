"""Modules of Llama-like models replaced by ones that call the C kernels; the model's own code around them stays.

Each replacement is tried against the module it replaces on random input and left out where they differ, so that a
look-alike (a norm with `1 + weight`, another activation) keeps its own code. Attention cannot be tried alone: it is
taken by class, and the runner's self-check compares the whole model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from backends.hf.attention import PagedCache
from backends.hf.native import NativeKernels
from backends.hf.native_attention import NativeAttention
from backends.hf.swaps import PackedLinear, Swap, operators_work

# Attention that is: project, rotate halves, attend, project; nothing between.
PLAIN_ATTENTION = ("LlamaAttention", "MistralAttention", "Qwen2Attention", "MixtralAttention")


class FusedAttention(nn.Module):
    """One projection for query, key and value; one kernel that rotates and stores; one that attends."""

    def __init__(self, module: Any, kernels: NativeKernels) -> None:
        super().__init__()
        projections = (module.q_proj, module.k_proj, module.v_proj)
        bias = None if projections[0].bias is None else torch.cat([linear.bias for linear in projections])
        self._project = PackedLinear(torch.cat([linear.weight for linear in projections]), bias)
        self._output = PackedLinear(module.o_proj.weight, module.o_proj.bias)
        self._kernels = kernels
        self._head_dim: int = module.head_dim
        self._heads = module.q_proj.out_features // self._head_dim
        self._kv_heads = module.k_proj.out_features // self._head_dim
        self._options = {"scaling": module.scaling, "sliding_window": _window(module)}
        self.layer_idx: int = module.layer_idx

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], pages: PagedCache, **_: Any
    ) -> tuple[Tensor, None]:
        fused = self._project(hidden_states[0])
        keys, values = pages.of(self.layer_idx, self._kv_heads, self._head_dim, self._head_dim)
        cos, sin = position_embeddings
        self._kernels.rotate_and_store(fused, cos, sin, keys, values, pages.layout.slot_mapping, self._heads)
        query = fused.view(len(fused), -1, self._head_dim)[:, : self._heads]
        out = pages.kernel.attend(pages.layout, query, keys, values, self._options)
        return self._output(out.view(1, len(fused), -1)), None


def _window(module: Any) -> int | None:
    """The tokens a layer sees: some families keep it with the layer, where None means all, others with the model."""
    owner = module if hasattr(module, "sliding_window") else module.config
    window: int | None = getattr(owner, "sliding_window", None)
    return window


class FusedGatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)) with one product for gate and up."""

    def __init__(self, module: Any, kernels: NativeKernels) -> None:
        super().__init__()
        self._gate_up = PackedLinear(torch.cat([module.gate_proj.weight, module.up_proj.weight]), None)
        self._down = PackedLinear(module.down_proj.weight, module.down_proj.bias)
        self._kernels = kernels

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self._down(self._kernels.silu_mul(self._gate_up(x)))
        return down


class FusedRMSNorm(nn.Module):
    """weight * x / rms(x)."""

    def __init__(self, module: Any, kernels: NativeKernels) -> None:
        super().__init__()
        self._weight: Tensor = module.weight.detach()
        self._eps = float(getattr(module, "variance_epsilon", getattr(module, "eps", 1e-6)))
        self._kernels = kernels

    def forward(self, x: Tensor) -> Tensor:
        return self._kernels.rms_norm(x, self._weight, self._eps)


def fuse(model: nn.Module, kernel: NativeAttention) -> list[Swap]:
    """Replace what can be replaced in `model`, in place; returns what was, to `undo` it."""
    swaps: list[Swap] = []
    if not operators_work():
        return swaps
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            replacement = _replacement(module, kernel.kernels)
            if replacement is not None:
                swaps.append(Swap(parent, name, module))
                setattr(parent, name, replacement)
    return swaps


def _replacement(module: Any, kernels: NativeKernels) -> nn.Module | None:
    """The faster module that does what `module` does, if there is one."""
    if type(module).__name__ in PLAIN_ATTENTION and _is_plain_attention(module):
        return FusedAttention(module, kernels)
    if _is_gated_mlp(module):
        mlp = FusedGatedMLP(module, kernels)
        return mlp if _agree(module, mlp, module.gate_proj.in_features) else None
    if type(module).__name__.endswith("RMSNorm") and _is_bf16_vector(module) and module.weight.numel() % 16 == 0:
        norm = FusedRMSNorm(module, kernels)
        return norm if _agree(module, norm, module.weight.numel()) else None
    return None


def _is_plain_attention(module: Any) -> bool:
    linears = [getattr(module, name, None) for name in ("q_proj", "k_proj", "v_proj", "o_proj")]
    return (
        all(type(linear) is nn.Linear and linear.weight.dtype is torch.bfloat16 for linear in linears)
        and module.head_dim % 32 == 0
        and not hasattr(module, "q_norm")
    )


def _is_gated_mlp(module: Any) -> bool:
    linears = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    return (
        all(type(linear) is nn.Linear and linear.weight.dtype is torch.bfloat16 for linear in linears)
        and linears[0].bias is None  # type: ignore[union-attr]
        and linears[0].out_features % 16 == 0  # type: ignore[union-attr]
        and len(list(module.children())) <= len(linears) + 1
    )


def _is_bf16_vector(module: Any) -> bool:
    weight = getattr(module, "weight", None)
    return (
        isinstance(weight, Tensor)
        and weight.dtype is torch.bfloat16
        and weight.dim() == 1
        and weight.device.type == "cpu"
    )


@torch.inference_mode()
def _agree(module: nn.Module, other: nn.Module, width: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 5, width, generator=generator).bfloat16()
    try:
        expected = module(x).float()
    except (TypeError, RuntimeError):
        return False
    return torch.allclose(other(x).float(), expected, rtol=2e-2, atol=2e-2 * float(expected.abs().max()))
