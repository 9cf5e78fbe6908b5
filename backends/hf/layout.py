"""Where each token of one step is written and what it may see; built once a step, shared by all layers."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from backends.hf.plan import Row, StepPlan

Slots = npt.NDArray[np.int64]


class DecodeGroup:
    """Single-token rows of like context length, attended in one call.

    tokens: [B] places in the step's row of tokens. slots: [B * L], padded with the row's own last slot, so that padding
    can never read another sequence. mask: [B, 1, 1, L] additive, or None when nothing is padded.
    """

    __slots__ = ("mask", "slots", "tokens")

    def __init__(self, tokens: Tensor, slots: Tensor, mask: Tensor | None) -> None:
        self.tokens = tokens
        self.slots = slots
        self.mask = mask


class PrefillSegment:
    """One sequence's chunk of `count` tokens from place `begin` on; slots: [L] of everything it may see."""

    __slots__ = ("_mask", "_repeated", "begin", "count", "slots")

    def __init__(self, begin: int, count: int, slots: Tensor, mask: Tensor) -> None:
        self.begin = begin
        self.count = count
        self.slots = slots
        self._mask = mask
        self._repeated: dict[int, Tensor] = {1: mask}

    def mask(self, group: int) -> Tensor:
        """Additive mask [group * count, L], for `group` query heads folded into the query length."""
        if group not in self._repeated:
            self._repeated[group] = self._mask.repeat(group, 1)
        return self._repeated[group]


class StepLayout:
    """The slots of one step. What an attention window sees is made on first use: layers of a model may differ in it."""

    def __init__(self, plan: StepPlan, block_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._plan = plan
        self._block_size = block_size
        self.slot_mapping = self._to(np.concatenate([self._slots(row, row.start) for row in plan.rows]))
        self._windows: dict[int | None, tuple[list[DecodeGroup], list[PrefillSegment]]] = {}

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor]:
        """For kernels that read pages in place: int32 [R, 4] of (first token, its position, tokens, offset into the
        block ids), and the block ids of all rows."""
        rows: list[tuple[int, int, int, int]] = []
        blocks: list[int] = []
        token = 0
        for row in self._plan.rows:
            rows.append((token, row.start, row.num_tokens, len(blocks)))
            blocks += row.sequence.block_table[: -(-(row.start + row.num_tokens) // self._block_size)]
            token += row.num_tokens
        return torch.tensor(rows, dtype=torch.int32), torch.tensor(blocks, dtype=torch.int32)

    def windowed(self, window: int | None) -> tuple[list[DecodeGroup], list[PrefillSegment]]:
        """Decode groups and prefill segments for layers that see the last `window` tokens (None: all)."""
        if window not in self._windows:
            self._windows[window] = self._build(window)
        return self._windows[window]

    def _build(self, window: int | None) -> tuple[list[DecodeGroup], list[PrefillSegment]]:
        decodes: list[tuple[int, Slots]] = []
        segments: list[PrefillSegment] = []
        place = 0
        for row in self._plan.rows:
            first = 0 if window is None else max(0, row.start + 1 - window)
            slots = self._slots(row, first)
            if row.num_tokens == 1:
                decodes.append((place, slots))
            else:
                segments.append(self._segment(place, row.start - first, row.num_tokens, slots, window))
            place += row.num_tokens
        decodes.sort(key=lambda row: len(row[1]))
        return [self._group(rows) for rows in _of_like_length(decodes)], segments

    def _group(self, rows: list[tuple[int, Slots]]) -> DecodeGroup:
        length = len(rows[-1][1])
        slots = np.stack([np.pad(row, (0, length - len(row)), mode="edge") for _, row in rows])
        lengths = np.array([len(row) for _, row in rows])
        mask = None
        if lengths[0] != length:
            hidden = np.arange(length)[None, :] >= lengths[:, None]
            mask = self._mask(hidden[:, None, None, :])
        return DecodeGroup(self._to(np.array([place for place, _ in rows])), self._to(slots.reshape(-1)), mask)

    def _segment(self, place: int, start: int, count: int, slots: Slots, window: int | None) -> PrefillSegment:
        query = np.arange(start, start + count)[:, None]
        key = np.arange(start + count)[None, :]
        hidden = key > query
        if window is not None:
            hidden |= key <= query - window
        return PrefillSegment(place, count, self._to(slots), self._mask(hidden))

    def _slots(self, row: Row, first: int) -> Slots:
        """Cache slots of the row's sequence from position `first` to the end of what the row computes."""
        positions = np.arange(first, row.start + row.num_tokens)
        blocks = np.array(row.sequence.block_table, dtype=np.int64)
        return blocks[positions // self._block_size] * self._block_size + positions % self._block_size

    def _to(self, array: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _mask(self, hidden: npt.NDArray[np.bool_]) -> Tensor:
        mask = np.where(hidden, np.float32(-np.inf), np.float32(0))
        return torch.from_numpy(mask).to(self._device, self._dtype)


def _of_like_length(rows: list[tuple[int, Slots]]) -> list[list[tuple[int, Slots]]]:
    """Rows sorted by length, cut where padding the short to the long would cost more than one more call."""
    groups: list[list[tuple[int, Slots]]] = []
    for row in rows:
        if groups and len(row[1]) <= 1.5 * len(groups[-1][0][1]) + 64:
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups
