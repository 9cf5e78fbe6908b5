"""Paged attention through the C kernels, for bfloat16 on a CPU with AVX512-BF16. Pages are read where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from backends.hf.attention import scale_of, storage
from backends.hf.layout import StepLayout
from backends.hf.native import MAX_HEAD_DIM, NativeKernels


class NativeAttention:
    """The kernel of `kernels.c`. Pages are [blocks, kv_heads, block_size, head_dim], each block as it wants it."""

    name = "native"

    def __init__(self, kernels: NativeKernels) -> None:
        self.kernels = kernels

    def pages(self, num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> Tensor:
        """Pages [blocks, kv_heads, block_size, head_dim]."""
        if head_dim % 16 or head_dim > MAX_HEAD_DIM or block_size % 16:
            raise NotImplementedError(f"head size {head_dim} with blocks of {block_size}")
        return storage((num_blocks, kv_heads, block_size, head_dim), torch.bfloat16, torch.device("cpu"))

    def store(self, layout: StepLayout, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write key and value [T, kv_heads, head_dim] to their slots."""
        if key.stride(2) != 1 or value.stride(2) != 1:
            key, value = key.contiguous(), value.contiguous()
        self.kernels.store(key, value, keys, values, layout.slot_mapping)

    def attend(
        self, layout: StepLayout, query: Tensor, keys: Tensor, values: Tensor, options: Mapping[str, Any]
    ) -> Tensor:
        """Attention of query [T, heads, head_dim] → the same shape."""
        if options.get("softcap") is not None or options.get("s_aux") is not None or keys.shape != values.shape:
            raise NotImplementedError("soft caps, sinks or values of another size than keys")
        if query.stride(2) != 1:
            query = query.contiguous()
        rows, tables = layout.rows
        scale = scale_of(options, query.shape[2])
        return self.kernels.attend(query, keys, values, rows, tables, scale, options.get("sliding_window"))
