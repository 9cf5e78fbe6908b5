"""How long an answer without a cap will be: the 95th percentile of what this key got from this model before."""

from __future__ import annotations

from collections import OrderedDict

FIRST_GUESS = 256.0
QUANTILE = 0.95
STEP = 0.1  # of the present estimate, at each observation
MOST_PAIRS = 10_000


class AnswerLengths:
    """A running quantile per (key, model); those used least recently are forgotten."""

    def __init__(self) -> None:
        self._estimates: OrderedDict[tuple[str, str], float] = OrderedDict()

    def estimate(self, key_id: str, model: str) -> int:
        """Tokens of one answer; at least 1."""
        return max(1, round(self._estimates.get((key_id, model), FIRST_GUESS)))

    def observe(self, key_id: str, model: str, tokens: int) -> None:
        """An answer had `tokens`. Up by 19 times what it goes down by, so that one in 20 answers is longer."""
        pair = (key_id, model)
        now = self._estimates.pop(pair, FIRST_GUESS)
        step = max(1.0, now * STEP)
        self._estimates[pair] = max(1.0, now + (QUANTILE if tokens > now else QUANTILE - 1) * step)
        if len(self._estimates) > MOST_PAIRS:
            self._estimates.popitem(last=False)
