"""StepPlan → tensors → one forward of the unmodified model → token ids. Knows tokens and blocks, not time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from backends.hf.attention import IMPLEMENTATION, AttentionKernel, PagedCache, register
from backends.hf.layout import StepLayout
from backends.hf.plan import StepPlan
from backends.hf.sampler import sample
from backends.hf.sequence import Sequence


class BatchedRunner:
    """All rows of a step in one forward: one flattened row of tokens, keys and values in shared pages."""

    name = "batched"
    starts_anywhere = True  # the pages are there, whatever is in them

    def __init__(self, model: Any, kernel: AttentionKernel, num_blocks: int, block_size: int) -> None:
        register()
        self._model = model
        self._model.set_attn_implementation(IMPLEMENTATION)
        self._kernel = kernel
        self._block_size = block_size
        self._dtype: torch.dtype = model.dtype
        self._device: torch.device = model.device
        self.resize(num_blocks)

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        return self._num_blocks

    @property
    def block_size(self) -> int:
        """Tokens a block holds."""
        return self._block_size

    @property
    def bytes_per_block(self) -> int:
        """KV bytes of one block over all layers; known after the first forward."""
        return self._pages.bytes_per_block

    def resize(self, num_blocks: int) -> None:
        """Make the KV cache anew, with `num_blocks` blocks; what was in it is lost."""
        self._num_blocks = num_blocks
        self._pages = PagedCache(self._kernel, num_blocks, self._block_size)

    def run(self, plan: StepPlan) -> list[int]:
        """Forward and sample: one token id for each row with `sample`, in row order."""
        rows = [row.sequence for row in plan.rows if row.sample]
        logits = self.forward(plan)
        return sample(logits, rows) if rows else []

    @torch.inference_mode()
    def forward(self, plan: StepPlan) -> Tensor:
        """Logits [number of sampled rows, vocabulary] of a plan."""
        ids: list[int] = []
        positions: list[int] = []
        keep: list[int] = []
        for row in plan.rows:
            ids += row.sequence.token_ids[row.start : row.start + row.num_tokens]
            positions += range(row.start, row.start + row.num_tokens)
            if row.sample:
                keep.append(len(ids) - 1)
        self._pages.layout = StepLayout(plan, self._block_size, self._dtype, self._device)
        output = self._model(
            input_ids=self._to([ids]),
            position_ids=self._to([positions]),
            cache=self._pages,
            use_cache=False,
            # Without a row that samples, one row still passes through the vocabulary: no model takes an empty choice.
            logits_to_keep=self._to(keep or [len(ids) - 1]),
            pages=self._pages,
        )
        logits: Tensor = output.logits[0]
        return logits if keep else logits[:0]

    def forget(self, sequence: Sequence) -> None:
        """Nothing is kept beside the pages."""

    def _to(self, numbers: list[Any]) -> Tensor:
        return torch.tensor(numbers, device=self._device)
