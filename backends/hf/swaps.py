"""Modules swapped into a loaded model for speed: the model's code stays as it is, its linears get faster.

On CPU a plain bfloat16 linear reorders its weight at each call. Here weights are reordered once into oneDNN's own
layout, and projections of one input (query, key, value; gate and up) become one product. The operators are private to
torch, so they are tried at the start and left out where they do not give the plain linear's result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# The row count a packing is tuned for; one packing serves every count.
PACK_ROWS = 16


class PackedLinear(nn.Module):
    """`nn.Linear` with its weight in oneDNN's layout."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.in_features, self.out_features = weight.shape[1], weight.shape[0]
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), PACK_ROWS)
        self._bias = bias.detach() if bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")
        return result


class SharedProjection(nn.Module):
    """Several linears of one input computed as one: the first one called computes all, the others hand out their part.

    The model still calls each by name. The parts of one input are kept only until the last of them is taken.
    """

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        bias = None if linears[0].bias is None else torch.cat([linear.bias for linear in linears])
        self._linear = PackedLinear(torch.cat([linear.weight for linear in linears]), bias)
        self._sizes = [linear.out_features for linear in linears]
        self._input: Tensor | None = None
        self._parts: list[Tensor | None] = []

    def take(self, part: int, x: Tensor) -> Tensor:
        """The output of linear `part` for `x`."""
        if self._input is not x or self._parts[part] is None:
            self._input = x
            self._parts = list(self._linear(x).split(self._sizes, dim=-1))
        taken = self._parts[part]
        assert taken is not None
        self._parts[part] = None
        if not any(left is not None for left in self._parts):
            self._input = None
        return taken


class ProjectionPart(nn.Module):
    """One of a `SharedProjection`'s linears, in the place where the model calls it."""

    def __init__(self, shared: SharedProjection, part: int) -> None:
        super().__init__()
        self._shared = [shared]  # in a list: the shared module is registered once, with the first part's owner
        self._part = part

    def forward(self, x: Tensor) -> Tensor:
        return self._shared[0].take(self._part, x)


SHARED_INPUTS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Swap(NamedTuple):
    """A module that was replaced: `original` stood in `parent` as `name`."""

    parent: nn.Module
    name: str
    original: nn.Module


def undo(swaps: list[Swap]) -> None:
    """Put the originals back."""
    for swap in reversed(swaps):
        setattr(swap.parent, swap.name, swap.original)


def pack_linears(model: nn.Module) -> list[Swap]:
    """Swap every eligible linear of `model`, in place; returns what was. Nothing on other devices and dtypes."""
    swaps: list[Swap] = []
    if not operators_work():
        return swaps
    for module in list(model.modules()):
        for names in SHARED_INPUTS:
            linears = [getattr(module, name, None) for name in names]
            if all(_is_eligible(linear) for linear in linears) and _share_input(linears):
                shared = SharedProjection(linears)  # type: ignore[arg-type]
                for part, name in enumerate(names):
                    swaps.append(Swap(module, name, getattr(module, name)))
                    setattr(module, name, ProjectionPart(shared, part))
        for name, child in list(module.named_children()):
            if _is_eligible(child):
                swaps.append(Swap(module, name, child))
                setattr(module, name, _packed(child))
    return swaps


def _packed(linear: Any) -> PackedLinear:
    return PackedLinear(linear.weight, linear.bias)


def _is_eligible(module: Any) -> bool:
    return (
        type(module) is nn.Linear
        and module.weight.dtype is torch.bfloat16
        and module.weight.device.type == "cpu"
        and not module._forward_hooks
        and not module._forward_pre_hooks
    )


def _share_input(linears: list[Any]) -> bool:
    return (
        len({linear.in_features for linear in linears}) == 1 and len({linear.bias is None for linear in linears}) == 1
    )


def operators_work() -> bool:
    """Whether this torch has the packed operators and they agree with the plain linear."""
    weight, x = torch.randn(48, 32).bfloat16(), torch.randn(1, 5, 32).bfloat16()
    try:
        packed = PackedLinear(weight, None)(x)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
    return torch.allclose(packed.float(), nn.functional.linear(x, weight).float(), rtol=2e-2, atol=2e-2)
