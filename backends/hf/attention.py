"""Paged attention plugged into unmodified transformers models: the KV pages, and the attention function they call.

A step is one flattened row of tokens from many sequences, prefill chunks and decodes mixed. Every attention layer of
the model calls `PagedCache.update`, which stores the new keys and values in their pages, and then `paged_attention`,
which reads each sequence's pages. How pages look is the affair of an `AttentionKernel`, which both go through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from backends.hf.layout import StepLayout

IMPLEMENTATION = "laneway_paged"

# Tokens of cache that are written once at the start. The first write to new memory waits for the kernel to clear it, in
# every layer at once; blocks are reused warm first, so a light load never waits for that.
WARM_TOKENS = 16384


class AttentionKernel(Protocol):
    """One way to lay out pages and to attend over them."""

    name: str

    def pages(self, num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> Tensor:
        """Pages for one layer's keys, or its values."""
        ...

    def store(self, layout: StepLayout, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write key and value [T, kv_heads, head_dim] of the step to their slots."""
        ...

    def attend(
        self, layout: StepLayout, query: Tensor, keys: Tensor, values: Tensor, options: Mapping[str, Any]
    ) -> Tensor:
        """Attention of query [T, heads, head_dim] → [T, heads, head_dim]. `options` are the layer's: `scaling`,
        `sliding_window`, `softcap`, `s_aux`. Raises NotImplementedError for a layer it cannot serve."""
        ...


class PagedCache:
    """The KV pages of all layers; the duck-typed cache object that the model's layers call.

    A layer's pages are made when it first asks, since their shape is its own affair. `layout` is of the step that runs;
    whoever calls the model sets it.
    """

    layout: StepLayout

    def __init__(self, kernel: AttentionKernel, num_blocks: int, block_size: int) -> None:
        self.kernel = kernel
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._num_blocks = num_blocks
        self._block_size = block_size

    def of(self, layer_idx: int, kv_heads: int, head_dim: int, value_dim: int) -> tuple[Tensor, Tensor]:
        """Key pages and value pages of a layer."""
        if layer_idx not in self.layers:
            self.layers[layer_idx] = self._pages(kv_heads, head_dim), self._pages(kv_heads, value_dim)
        return self.layers[layer_idx]

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store this step's keys and values [1, kv_heads, T, head_dim]; returns them: attention reads the pages."""
        keys, values = self.of(layer_idx, key.shape[1], key.shape[3], value.shape[3])
        self.kernel.store(self.layout, key[0].transpose(0, 1), value[0].transpose(0, 1), keys, values)
        return key, value

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Part of the cache interface; positions are always given, so no layer may depend on it."""
        return 0

    @property
    def bytes_per_block(self) -> int:
        """Bytes one block takes over all layers; known after the first forward."""
        return sum(pages.nbytes for pair in self.layers.values() for pages in pair) // self._num_blocks

    def _pages(self, kv_heads: int, head_dim: int) -> Tensor:
        pages = self.kernel.pages(self._num_blocks, self._block_size, kv_heads, head_dim)
        share = min(1.0, WARM_TOKENS / (self._num_blocks * self._block_size))
        pages.view(-1)[: int(share * pages.numel())].zero_()
        return pages


def paged_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attention of one layer over the step's pages. query [1, heads, T, head_dim] → [1, T, heads, head_dim]."""
    pages: PagedCache = kwargs["pages"]
    keys, values = pages.layers[module.layer_idx]  # type: ignore[index]
    out = pages.kernel.attend(pages.layout, query[0].transpose(0, 1), keys, values, kwargs)
    return out.unsqueeze(0), None


def scale_of(options: Mapping[str, Any], head_dim: int) -> float:
    """The layer's softmax scale."""
    scale = options.get("scaling")
    return float(scale) if scale is not None else head_dim**-0.5


def register() -> None:
    """Make the function known to transformers as `IMPLEMENTATION`. It has no mask builder: no mask is built."""
    AttentionInterface.register(IMPLEMENTATION, paged_attention)


def storage(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Memory for pages, not yet touched: the machine gives it when first written, and no slot is read before that."""
    return torch.empty(shape, dtype=dtype, device=device)
