"""What one step computes: rows of (sequence, how many tokens). The contract between scheduler and runner. No torch."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from backends.hf.sequence import Sequence


class Row(Struct, frozen=True, eq=False):
    """Compute `sequence.token_ids[start : start + num_tokens]`; `sample` when that reaches the end of its tokens.

    The sequence's block table already covers `start + num_tokens` positions.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    sample: bool


class StepPlan(Struct, frozen=True, eq=False):
    """The rows of one step, decodes first."""

    rows: tuple[Row, ...]
    predicted_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Tokens through the linears."""
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_samples(self) -> int:
        """Rows through the vocabulary projection."""
        return sum(row.sample for row in self.rows)

    @property
    def num_attended(self) -> int:
        """Query-key pairs, causal: what attention costs."""
        return sum(row.num_tokens * row.start + row.num_tokens * (row.num_tokens + 1) // 2 for row in self.rows)


class Runner(Protocol):
    """Computes a plan. Knows tokens, positions and blocks; not lanes, tenants or time."""

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache; ids 0 .. num_blocks - 1."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens a block holds."""
        ...

    @property
    def starts_anywhere(self) -> bool:
        """Whether a row may begin at a position whose past was never computed, as the warm-up's rows do."""
        ...

    def run(self, plan: StepPlan) -> list[int]:
        """Forward and sample: one token id for each row with `sample`, in row order."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """The sequence lost its blocks (finished, aborted or preempted): drop whatever is kept for it."""
        ...
