"""The runner for models that cannot share one forward: the same plans, each sequence with a cache object of its own.

Slower, and right for whatever transformers itself can continue: state-space layers, models that ignore the attention
setting. The block pool still bounds how much is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from backends.hf.plan import Row, StepPlan
from backends.hf.sampler import sample
from backends.hf.sequence import Sequence


class PerSequenceRunner:
    """One forward for each row of a plan."""

    name = "per_sequence"
    starts_anywhere = False  # a cache holds what was computed and nothing else

    def __init__(self, model: Any, num_blocks: int, block_size: int) -> None:
        self._model = model
        self._device: torch.device = model.device
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._caches: dict[int, Any] = {}
        self._bytes_per_token = 0

    @property
    def num_blocks(self) -> int:
        """Blocks that the scheduler may hand out."""
        return self._num_blocks

    @property
    def block_size(self) -> int:
        """Tokens a block stands for."""
        return self._block_size

    @property
    def bytes_per_block(self) -> int:
        """Bytes a block's tokens take, by the widest cache dropped so far."""
        return self._bytes_per_token * self._block_size

    def resize(self, num_blocks: int) -> None:
        """Bound what is kept to `num_blocks` blocks; what was kept is lost."""
        self._num_blocks = num_blocks
        self._caches.clear()

    @property
    def num_caches(self) -> int:
        """Sequences for which something is kept."""
        return len(self._caches)

    def run(self, plan: StepPlan) -> list[int]:
        """Forward and sample: one token id for each row with `sample`, in row order."""
        rows = [row.sequence for row in plan.rows if row.sample]
        logits = self.forward(plan)
        return sample(logits, rows) if rows else []

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Tensor:
        """Logits [number of sampled rows, vocabulary] of a plan."""
        logits = [self._row(row) for row in plan.rows]
        sampled = [last for row, last in zip(plan.rows, logits, strict=True) if row.sample]
        return torch.stack(sampled) if sampled else logits[0].new_empty(0, len(logits[0]))

    def forget(self, sequence: Sequence) -> None:
        """Drop the sequence's cache."""
        cache = self._caches.pop(sequence.id, None)
        if cache is not None and sequence.num_tokens:
            self._bytes_per_token = max(self._bytes_per_token, _bytes_of(cache) // sequence.num_tokens)

    def _row(self, row: Row) -> Tensor:
        sequence = row.sequence
        if row.start == 0:
            self._caches[sequence.id] = DynamicCache(config=self._model.config)
        ids = sequence.token_ids[row.start : row.start + row.num_tokens]
        output = self._model(
            input_ids=torch.tensor([ids], device=self._device),
            position_ids=torch.arange(row.start, row.start + row.num_tokens, device=self._device).unsqueeze(0),
            cache=self._caches[sequence.id],
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = output.logits[0, -1]
        return logits


def _bytes_of(cache: Any) -> int:
    values = [value for layer in cache.layers for value in vars(layer).values()]
    return sum(value.nbytes for value in values if isinstance(value, Tensor))
