"""Paged attention in plain torch: any device, any dtype, soft caps and sinks too.

Pages are [slots, kv_heads, head_dim]. A sequence's slots are gathered into one piece, and the query heads that share a
key head are folded into the query length: on CPU that is several times faster than the grouped path of
`scaled_dot_product_attention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backends.hf.attention import scale_of, storage
from backends.hf.layout import StepLayout


class TorchAttention:
    """The kernel that runs everywhere."""

    name = "torch"

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device

    def pages(self, num_blocks: int, block_size: int, kv_heads: int, head_dim: int) -> Tensor:
        """Pages [slots, kv_heads, head_dim]."""
        return storage((num_blocks * block_size, kv_heads, head_dim), self._dtype, self._device)

    def store(self, layout: StepLayout, key: Tensor, value: Tensor, keys: Tensor, values: Tensor) -> None:
        """Write key and value [T, kv_heads, head_dim] to their slots."""
        keys.index_copy_(0, layout.slot_mapping, key)
        values.index_copy_(0, layout.slot_mapping, value)

    def attend(
        self, layout: StepLayout, query: Tensor, keys: Tensor, values: Tensor, options: Mapping[str, Any]
    ) -> Tensor:
        """Attention of query [T, heads, head_dim]: decodes of like length in one call, prefill chunks one by one."""
        heads, kv_heads = query.shape[1], keys.shape[1]
        groups, segments = layout.windowed(options.get("sliding_window"))
        out = query.new_empty(len(query), heads, values.shape[2])
        for group in groups:
            count = len(group.tokens)
            q = query.index_select(0, group.tokens).view(count, kv_heads, heads // kv_heads, -1)
            k, v = (_gather(pages, group.slots, count) for pages in (keys, values))
            out.index_copy_(0, group.tokens, _softmax_mix(q, k, v, group.mask, options).reshape(count, heads, -1))
        for segment in segments:
            part = slice(segment.begin, segment.begin + segment.count)
            q = query[part].transpose(0, 1).reshape(1, kv_heads, heads // kv_heads * segment.count, -1)
            k, v = (_gather(pages, segment.slots, 1) for pages in (keys, values))
            folded = _softmax_mix(q, k, v, segment.mask(heads // kv_heads), options)
            out[part] = folded.reshape(heads, segment.count, -1).transpose(0, 1)
        return out


def _gather(pages: Tensor, slots: Tensor, count: int) -> Tensor:
    """[count * L] slots of pages → [count, kv_heads, L, head_dim]."""
    return pages.index_select(0, slots).view(count, -1, *pages.shape[1:]).transpose(1, 2)


def _softmax_mix(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Mapping[str, Any]) -> Tensor:
    """softmax(scale * q k^T + mask) v, with the layer's own soft cap and sinks where it has them."""
    scale = scale_of(options, query.shape[-1])
    softcap, sinks = options.get("softcap"), options.get("s_aux")
    if softcap is None and sinks is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    scores = torch.matmul(query, key.transpose(2, 3)).float() * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if mask is not None:
        scores = scores + mask
    if sinks is None:
        return torch.matmul(scores.softmax(dim=-1).to(value.dtype), value)
    # A sink is one more key per head that takes probability and gives nothing.
    rows = scores.shape[2] * scores.shape[1] // len(sinks)
    sink = (
        sinks.float().view(1, scores.shape[1], -1, 1).repeat_interleave(rows, dim=2).expand(scores.shape[0], -1, -1, 1)
    )
    weights = torch.cat((scores, sink), dim=-1).softmax(dim=-1)[..., :-1]
    return torch.matmul(weights.to(value.dtype), value)
