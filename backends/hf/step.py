"""One step in the making: chunks of sequences under bounds of time and tokens. Knows no queue, no blocks. No torch."""

from __future__ import annotations

import math

from backends.hf.plan import Row, StepPlan
from backends.hf.sequence import Sequence
from backends.hf.step_time import StepTime

SHARE = 1 / 8  # what prefill keeps of the time when decodes take all of it, and the oldest prompt of what prefill has
LONG_LIMIT = 3 / 4  # of the time: how far a long prompt may fill a step, so that who comes next waits less
LONG_STEPS = 4  # a prompt is long when it takes more than this many full steps
PIECE = 8  # tokens; larger chunks are whole pieces, so that fewer shapes are met
MIN_CHUNK = 16  # a smaller piece of a prompt costs as much (the plateau of the matrix products) and is not begun


class Step:
    """A plan in the making: chunks, what they cost together, and what may still come in."""

    def __init__(self, step_time: StepTime, budget_s: float, max_tokens: int) -> None:
        self.chunks: dict[Sequence, int] = {}
        self.may_admit = True
        self.favoured: Sequence | None = None
        self.num_long = 0
        self._step_time = step_time
        self._budget_s = budget_s
        self._limit_s = self._long_limit_s = math.inf
        self._max_tokens = max_tokens
        self._full_tokens = min(max(step_time.max_tokens(budget_s, 0, 0, 1, 0), MIN_CHUNK), max_tokens)
        self._tokens = self._attended = self._samples = 0
        self._num_decodes = self._num_granted = 0
        self._share_s = 0.0
        self._share_tokens = 0
        self._has_short = False

    @property
    def predicted_s(self) -> float:
        """Of what is in it now."""
        return self._step_time.predict(self._tokens, self._attended, self._samples)

    def open_prefill(self) -> None:
        """The decodes are in: what may follow is the rest of the time, and never less than a share of it.

        Nor less than what any step costs before its first token: where a large model or a busy machine makes that most
        of the budget, crumbs of prompts would pay it again and again.
        """
        self._num_decodes = len(self.chunks)
        least_s = max(self._budget_s * SHARE, self._step_time.predict(0, 0, 0))
        self._limit_s = max(self._budget_s, self.predicted_s + least_s)
        self._long_limit_s = max(self._budget_s * LONG_LIMIT, self.predicted_s + least_s)
        self._share_s = SHARE * (self._limit_s - self.predicted_s)
        self._share_tokens = int(SHARE * (self._max_tokens - self._tokens))

    def is_long(self, sequence: Sequence) -> bool:
        """Whether the whole of it takes many full steps; so it is long to its end."""
        return sequence.num_tokens > LONG_STEPS * self._full_tokens

    def share(self, sequence: Sequence) -> int:
        """Tokens of it for a share of the time and of the tokens that prefill has, at least one."""
        fitting = min(self._fitting(sequence, self.predicted_s + self._share_s), self._share_tokens)
        return min(max(fitting, 1), self.left(sequence))

    def chunk(self, sequence: Sequence, is_due: bool) -> int:
        """Tokens of it to add now; 0 when nothing is to be added. The first prefill always gets one."""
        limit_s = self._long_limit_s if self.is_long(sequence) else self._limit_s
        fitting = min(self._fitting(sequence, limit_s), self.left(sequence))
        if len(self.chunks) == self._num_decodes:
            fitting = max(fitting, min(1, self.left(sequence)))
        if not self.is_long(sequence):
            fitting = self._worthwhile(sequence, fitting)
        elif is_due:
            fitting = min(fitting, self.share(sequence))
        else:
            fitting = 0 if self._has_short else self._worthwhile(sequence, fitting)
        self._num_granted += fitting > 0
        return fitting

    def extend(self, sequence: Sequence, num_tokens: int) -> None:
        """Add so many tokens of it to what the step has of it."""
        if num_tokens == 0:
            return
        start = self._start(sequence)
        end = start + num_tokens
        self.chunks[sequence] = end - sequence.num_computed_tokens
        self._tokens += num_tokens
        self._attended += (end * (end + 1) - start * (start + 1)) // 2
        self._samples += end == sequence.num_tokens
        self._has_short = self._has_short or (self._limit_s < math.inf and not self.is_long(sequence))

    def plan(self) -> StepPlan:
        """The finished plan, in order of addition."""
        rows = []
        for sequence, chunk in self.chunks.items():
            start = sequence.num_computed_tokens
            rows.append(Row(sequence, start, chunk, start + chunk == sequence.num_tokens))
        return StepPlan(tuple(rows), self.predicted_s)

    def _worthwhile(self, sequence: Sequence, fitting: int) -> int:
        """What to take of the fitting tokens: all of the rest, else whole pieces, and no crumb for a row of its own."""
        if fitting == sequence.num_tokens - self._start(sequence):
            return fitting
        if fitting < MIN_CHUNK and sequence not in self.chunks and self._num_granted:
            return 0
        return fitting - fitting % PIECE if fitting > 2 * MIN_CHUNK else fitting

    def _start(self, sequence: Sequence) -> int:
        return sequence.num_computed_tokens + self.chunks.get(sequence, 0)

    def left(self, sequence: Sequence) -> int:
        """Tokens of it that could still be added."""
        return min(sequence.num_tokens - self._start(sequence), self._max_tokens - self._tokens)

    def _fitting(self, sequence: Sequence, limit_s: float) -> int:
        start = self._start(sequence)
        return self._step_time.max_tokens(limit_s, self._tokens, self._attended, self._samples + 1, start)
