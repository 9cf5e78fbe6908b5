"""The engine of an embedding model. One step = drain → choose a batch → compute → send. No torch and no sockets.

An input is read whole in one forward, so a batch holds inputs of like lengths, as many as its time allows: a short one
is padded little and never waits for a long one beside it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct, structs

from backends.fairness import FairQueue
from backends.hf.loop import Deliver
from backends.hf.messages import ERROR_DEADLINE, ERROR_FAILED, Output, Outputs, Stats, Submit
from backends.types import FinishReason

log = logging.getLogger("laneway.hf.embedding")

STATS_EVERY_S = 0.5
LONGEST_DECAY = 0.95  # of the longest step, a report
MAX_FAILED_STEPS = 3  # in a row; then the fault is not a request's, and the process ends to be started anew
ALIKE = 2  # the longest input of a batch has at most so many times the tokens of the shortest
SHORT = 32  # tokens; inputs up to this length are all alike
NEWEST = 0.2  # share of the newest step in the speed that is expected


class Embedder(Protocol):
    """What computes."""

    def vectors(self, inputs: Sequence[Sequence[int]]) -> list[bytes]:
        """The vector of each input, as little-endian float32, whatever its neighbours are."""
        ...


class Input(Struct, eq=False, kw_only=True):
    """One input of a front (`origin`), which names it by an id of its own."""

    origin: object
    id: int
    token_ids: list[int]
    tenant: str


class BatchLimits(Struct, frozen=True, kw_only=True):
    """The most of one step: inputs, tokens with their padding, and expected seconds. One input always goes."""

    inputs: int
    tokens: int
    seconds: float


class EmbeddingEngine:
    """Owns the inputs of all fronts. `step` runs in one thread; `submit`, `abort` and `close` may come from any.

    `token_s` is how long a token takes, as first guess.
    """

    def __init__(
        self,
        embedder: Embedder,
        queue: FairQueue[Input],
        limits: BatchLimits,
        deliver: Deliver,
        token_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._embedder = embedder
        self._queue = queue
        self._limits = limits
        self._deliver = deliver
        self._token_s = token_s
        self._clock = clock
        self._inbox: deque[Callable[[], None]] = deque()
        self._fronts: dict[object, dict[int, Input]] = {}
        self._failed_steps = 0
        self._stats = Stats()
        self._stats_at = -STATS_EVERY_S

    def step(self) -> bool:
        """Do one step. False when there was nothing to compute."""
        self._drain()
        now = self._clock()
        late = self._queue.expire(now)
        self._end((each, Output(each.id, error=ERROR_DEADLINE, message="The deadline passed.")) for each in late)
        batch = self._batch(now)
        self._report(now, len(batch))
        if batch:
            self._send((each, Output(each.id, began=True)) for each in batch)
            self._run(batch, now)
        return bool(batch)

    def submit(self, origin: object, submit: Submit) -> None:
        """Take an input of a front."""
        self._inbox.append(lambda: self._add(origin, submit))

    def abort(self, origin: object, sequence_id: int) -> None:
        """Drop an input; unknown ids are ignored. One that is being computed ends unheard."""
        self._inbox.append(lambda: self._abort(origin, sequence_id))

    def close(self, origin: object) -> None:
        """Drop all inputs of a front that is gone."""
        self._inbox.append(lambda: self._close(origin))

    @property
    def num_live(self) -> int:
        """Inputs that wait or are computed."""
        return sum(map(len, self._fronts.values()))

    def _drain(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _batch(self, now: float) -> list[Input]:
        """Whose turn it is, and those next in turn that are like it."""
        batch: list[Input] = []
        while (each := self._queue.pick(now, lambda each: self._fits(batch, each))) is not None:
            self._queue.charge(each.tenant, len(each.token_ids))
            batch.append(each)
        return batch

    def _fits(self, batch: Sequence[Input], each: Input) -> bool:
        if not batch:
            return True
        lengths = [len(other.token_ids) for other in (*batch, each)]
        padded = max(lengths) * len(lengths)
        return (
            max(lengths) <= max(SHORT, ALIKE * min(lengths))
            and len(lengths) <= self._limits.inputs
            and padded <= self._limits.tokens
            and padded * self._token_s <= self._limits.seconds
        )

    def _run(self, batch: Sequence[Input], started_at: float) -> None:
        try:
            vectors = self._embedder.vectors([each.token_ids for each in batch])
        except Exception:
            self._fail(batch)
            return
        self._failed_steps = 0
        self._count(batch, self._clock() - started_at)
        self._drain()  # what was aborted meanwhile is not sent
        self._end(
            (each, Output(each.id, finish_reason=FinishReason.STOP, vector=vector))
            for each, vector in zip(batch, vectors, strict=True)
        )

    def _fail(self, batch: Sequence[Input]) -> None:
        """The step broke: its inputs end with an error, the others go on."""
        self._failed_steps += 1
        log.exception("a step of %d inputs failed", len(batch))
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise RuntimeError(f"{self._failed_steps} steps failed in a row")
        text = "The model failed on this request."
        self._end((each, Output(each.id, error=ERROR_FAILED, message=text)) for each in batch)

    def _end(self, outputs: Iterable[tuple[Input, Output]]) -> None:
        """The last words to inputs."""
        ended = list(outputs)
        self._send(ended)
        for each, _ in ended:
            self._fronts.get(each.origin, {}).pop(each.id, None)

    def _send(self, outputs: Iterable[tuple[Input, Output]]) -> None:
        """One message for each front that is concerned; the dead are told nothing."""
        per_front: dict[object, list[Output]] = {}
        for each, output in outputs:
            if self._fronts.get(each.origin, {}).get(each.id) is each:
                per_front.setdefault(each.origin, []).append(output)
        for origin, messages in per_front.items():
            self._deliver(origin, Outputs(messages))

    def _add(self, origin: object, submit: Submit) -> None:
        if submit.id in self._fronts.get(origin, {}):
            log.warning("a front used id %d twice", submit.id)
            return
        each = Input(origin=origin, id=submit.id, token_ids=submit.prompt_ids, tenant=submit.tenant)
        size, arrived_at = len(each.token_ids), submit.arrived_at
        try:
            self._queue.push(each, submit.lane, submit.tenant, submit.weight, size, submit.deadline_at, arrived_at)
        except KeyError:
            text = f"The engine knows no lane {submit.lane[:40]!r}."
            self._deliver(origin, Outputs([Output(submit.id, error=ERROR_FAILED, message=text)]))
            return
        self._fronts.setdefault(origin, {})[submit.id] = each

    def _abort(self, origin: object, sequence_id: int) -> None:
        each = self._fronts.get(origin, {}).pop(sequence_id, None)
        if each is not None:
            self._queue.remove(each)

    def _close(self, origin: object) -> None:
        for each in self._fronts.pop(origin, {}).values():
            self._queue.remove(each)

    def _count(self, batch: Sequence[Input], seconds: float) -> None:
        lengths = [len(each.token_ids) for each in batch]
        padded = max(lengths) * len(lengths)
        self._stats.predicted_s += padded * self._token_s
        self._token_s += NEWEST * (seconds / padded - self._token_s)
        self._stats.steps += 1
        self._stats.step_s += seconds
        self._stats.longest_step_s = max(self._stats.longest_step_s, seconds)
        self._stats.prompt_tokens += sum(lengths)

    def _report(self, now: float, num_running: int) -> None:
        """Send statistics to every front, at most twice a second."""
        if now - self._stats_at < STATS_EVERY_S:
            return
        self._stats_at = now
        self._stats.running, self._stats.waiting = num_running, len(self._queue)
        self._deliver(None, structs.replace(self._stats))  # a copy: the socket thread encodes it meanwhile
        self._stats.longest_step_s *= LONGEST_DECAY
