"""How long a step will take: a model fitted while serving, pace · (a + b·tokens + c·attended + d·samples). No torch.

The pace is the machine's: a busy neighbour slows all of a step alike. It rises fast and falls slowly, so that a slow
spell shortens the next steps at once. The coefficients are the model's, and learn from what the pace does not explain,
by a Kalman filter in which they drift: what recent steps say nothing about keeps its value and becomes less certain.
Errors are relative, so that a step of a millisecond counts as much as one of a hundred; one wild measurement (a page
fault, a busy neighbour) is clipped. A line is not the truth: matrix products cost the same from 1 to about 16 tokens.
So steps without a real chunk of a prompt say nothing about b (the plateau would teach that tokens are free), and a
chunk is never more than twice what was ever seen.
"""

from __future__ import annotations

import math

from msgspec import Struct

from backends.hf.plan import StepPlan

SIZES = (1.0, 64.0, 65536.0, 16.0)  # of the four inputs, so that the coefficients are all seconds of like magnitude
NOISE = 0.1  # relative, of one measurement
DRIFT = 0.0003  # relative, of a coefficient from one step to the next
PACE_UP, PACE_DOWN = 0.4, 0.05  # of the way to the latest step's pace, for predictions: rather too slow than too fast
PACE_MEAN = 0.2  # the same both ways, for learning
YOUNG = 80  # so many first steps are all the coefficients' to explain
STEADY = 0.25  # relative, from that mean: what is beyond it is a change of pace, and not the coefficients' to explain
SPELL = 30  # steps; what stays beyond it for longer than the mean takes to follow is the coefficients' after all
SURPRISE = 3.0  # a measurement counts as at most this many times the prediction, and at least its inverse
PLATEAU = 16  # tokens that cost as much as one


class Prior(Struct, frozen=True):
    """Seconds before anything was measured: a step, a token, a query-key pair, a sampled row. Meant to be too high."""

    step_s: float = 0.004
    token_s: float = 0.001
    attended_s: float = 2e-7
    sample_s: float = 0.0005


class StepTime:
    """Predicts, learns, and inverts itself into chunk sizes. Coefficients are never negative."""

    def __init__(self, prior: Prior | None = None) -> None:
        prior = prior or Prior()
        start = (prior.step_s, prior.token_s, prior.attended_s, prior.sample_s)
        self._theta = [value * size for value, size in zip(start, SIZES, strict=True)]
        self._most_tokens = 64
        self._pace = self._mean_pace = 1.0
        self._num_learned = self._num_unsteady = 0
        doubt = [max(value, 1e-6) for value in self._theta]
        self._least = [1e-4 * value for value in doubt]  # drift never stops, even at zero
        self._cap = [value * value for value in doubt]
        self._covariance = [[self._cap[i] if i == j else 0.0 for j in range(4)] for i in range(4)]

    @property
    def coefficients(self) -> tuple[float, float, float, float]:
        """Seconds a step, a token, a query-key pair, a sampled row, at the present pace."""
        a, b, c, d = (self._pace * value / size for value, size in zip(self._theta, SIZES, strict=True))
        return a, b, c, d

    def predict(self, tokens: int, attended: int, samples: int) -> float:
        """Seconds of a step of so many tokens, query-key pairs and sampled rows."""
        a, b, c, d = self.coefficients
        return a + b * tokens + c * attended + d * samples

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Learn from a step that took `seconds`."""
        self.learn(plan.num_tokens, plan.num_attended, plan.num_samples, seconds)

    def learn(self, tokens: int, attended: int, samples: int, seconds: float) -> None:
        """As `observe`, by numbers."""
        self._most_tokens = max(self._most_tokens, tokens)
        x = [value / size for value, size in zip((1, tokens, attended, samples), SIZES, strict=True)]
        predicted = max(sum(xi * ti for xi, ti in zip(x, self._theta, strict=True)), 1e-9)
        self._num_learned += 1
        ratio = self._follow(seconds / predicted)
        if self._is_change_of_pace(ratio):
            return
        seen = predicted * ratio / self._mean_pace
        self._drift()
        p = self._covariance
        px = [sum(row[j] * x[j] for j in range(4)) for row in p]
        variance = sum(x[j] * px[j] for j in range(4)) + (NOISE * predicted) ** 2
        gain = [value / variance for value in px]
        if tokens - samples < PLATEAU:
            gain[1] = 0.0
        for i in range(4):
            self._theta[i] = max(0.0, self._theta[i] + gain[i] * (seen - predicted))
            for j in range(4):  # Joseph's form, since a gain may have been withheld
                p[i][j] += gain[i] * gain[j] * variance - gain[i] * px[j] - px[i] * gain[j]

    def max_tokens(self, budget_s: float, tokens: int, attended: int, samples: int, start: int) -> int:
        """The longest chunk from position `start` that, added to such a step, keeps it within `budget_s`; perhaps 0.

        The chunk of n tokens adds n·start + n(n+1)/2 query-key pairs. Samples are the caller's to count in.
        """
        _, b, c, _ = self.coefficients
        room = budget_s - self.predict(tokens, attended, samples)
        if room <= 0:
            return 0
        linear = b + c * (start + 0.5)
        root = linear + math.sqrt(linear * linear + 2 * c * room)
        most = 2 * self._most_tokens
        return most if root * most <= 2 * room else int(2 * room / root)

    def _follow(self, ratio: float) -> float:
        """Let the paces follow one measurement over its prediction at pace 1; returns it, clipped."""
        ratio = min(max(ratio, self._pace / SURPRISE), self._pace * SURPRISE)
        if self._num_learned <= YOUNG:
            return ratio
        self._pace += (PACE_UP if ratio > self._pace else PACE_DOWN) * (ratio - self._pace)
        self._mean_pace += PACE_MEAN * (ratio - self._mean_pace)
        return ratio

    def _is_change_of_pace(self, ratio: float) -> bool:
        is_steady = self._num_learned <= YOUNG or abs(ratio / self._mean_pace - 1) <= STEADY
        self._num_unsteady = 0 if is_steady else self._num_unsteady + 1
        return 0 < self._num_unsteady <= SPELL

    def _drift(self) -> None:
        """Time passes: every coefficient is less certain, up to the doubt of the start (or its own size)."""
        p = self._covariance
        for i in range(4):
            p[i][i] += (DRIFT * self._theta[i]) ** 2 + self._least[i] ** 2
            excess = p[i][i] / max(self._cap[i], self._theta[i] ** 2)
            if excess > 1:
                shrink = 1 / math.sqrt(excess)
                for j in range(4):
                    p[i][j] *= shrink
                    p[j][i] *= shrink
