"""READ SECOND (after gateway/dispatch.py): the engine. One step = drain → schedule → run → sample → commit → send.

No torch here and no sockets: a `Runner` computes, a `Scheduler` decides, `deliver` takes the words to the fronts.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from backends.hf.loop import Deliver
from backends.hf.messages import (
    ERROR_DEADLINE,
    ERROR_FAILED,
    ERROR_TOO_LONG,
    Output,
    Outputs,
    Stats,
    Submit,
)
from backends.hf.plan import Runner, StepPlan
from backends.hf.scheduler import Scheduler
from backends.hf.sequence import Sequence, TokenParams
from backends.hf.step_time import StepTime

log = logging.getLogger("laneway.hf.engine")

STATS_EVERY_S = 0.5
LONGEST_DECAY = 0.95  # of the longest step, a report: it counts as recent for about half a minute
SURPRISE, SURPRISE_S = 1.5, 0.1  # a step this much longer than predicted, and longer than this, is worth a line
MAX_FAILED_STEPS = 3  # in a row; then the fault is not a request's, and the process ends to be started anew


class Engine:
    """Owns the sequences of all fronts. `step` runs in one thread; `submit`, `abort` and `close` may come from any.

    A front (`origin`) names its sequences by ids of its own; inside, an id is a counter that is never used twice.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        step_time: StepTime,
        deliver: Deliver,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._step_time = step_time
        self._deliver = deliver
        self._clock = clock
        self._inbox: deque[Callable[[], None]] = deque()
        self._ids = itertools.count()
        self._fronts: dict[object, dict[int, Sequence]] = {}
        self._owners: dict[int, tuple[object, int]] = {}
        self._failed_steps = 0
        self._stats = Stats()
        self._stats_at = -STATS_EVERY_S

    def step(self) -> bool:
        """Do one step. False when there was nothing to compute."""
        self._drain()
        now = self._clock()
        self._end(self._scheduler.expire(now), ERROR_DEADLINE, "The deadline passed.")
        plan = self._scheduler.schedule(now)
        for preempted in self._scheduler.take_preempted():
            self._runner.forget(preempted)
        if plan.rows:
            self._announce(plan)
            self._run(plan, now)
        self._report()
        return bool(plan.rows)

    def submit(self, origin: object, submit: Submit) -> None:
        """Take a sequence of a front."""
        self._inbox.append(lambda: self._add(origin, submit))

    def abort(self, origin: object, sequence_id: int) -> None:
        """Drop a sequence; unknown ids are ignored."""
        self._inbox.append(lambda: self._abort(origin, sequence_id))

    def close(self, origin: object) -> None:
        """Drop all sequences of a front that is gone."""
        self._inbox.append(lambda: self._close(origin))

    @property
    def num_live(self) -> int:
        """Sequences that wait or run."""
        return len(self._owners)

    def _drain(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _run(self, plan: StepPlan, started_at: float) -> None:
        """Compute the plan, give every row its token, and tell the fronts."""
        try:
            sampled = self._runner.run(plan)
        except Exception:
            self._fail(plan)
            return
        self._failed_steps = 0
        now = self._clock()
        self._step_time.observe(plan, now - started_at)
        self._count(plan, now - started_at)
        # What was aborted while the step ran is dropped before its token is looked at.
        self._drain()
        advanced = self._scheduler.commit(plan, sampled, now)
        self._send((sequence, self._output(sequence)) for sequence in advanced if sequence.id in self._owners)
        for sequence in advanced:
            if sequence.finish_reason is not None:
                self._forget(sequence)

    def _fail(self, plan: StepPlan) -> None:
        """The step broke: its sequences end with an error, the others go on."""
        self._failed_steps += 1
        log.exception("a step of %d rows and %d tokens failed", len(plan.rows), plan.num_tokens)
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise RuntimeError(f"{self._failed_steps} steps failed in a row")
        self._end(self._scheduler.fail(plan), ERROR_FAILED, "The model failed on this request.")

    def _announce(self, plan: StepPlan) -> None:
        """Tell the fronts, before the forward, which sequences wait no longer."""
        began = [row.sequence for row in plan.rows if row.start == 0 and row.sequence.num_preemptions == 0]
        self._send((sequence, Output(self._owners[sequence.id][1], began=True)) for sequence in began)

    def _output(self, sequence: Sequence) -> Output:
        return Output(
            self._owners[sequence.id][1],
            token_ids=sequence.token_ids[-1:],
            finish_reason=sequence.finish_reason,
            stop_token_id=sequence.stop_token_id,
        )

    def _send(self, outputs: Iterable[tuple[Sequence, Output]]) -> None:
        """One message for each front that is concerned."""
        per_front: dict[object, list[Output]] = {}
        for sequence, output in outputs:
            per_front.setdefault(self._owners[sequence.id][0], []).append(output)
        for origin, messages in per_front.items():
            self._deliver(origin, Outputs(messages))

    def _end(self, sequences: list[Sequence], error: str, message: str) -> None:
        """Sequences the scheduler has dropped, for the same reason."""
        self._send(
            (sequence, Output(self._owners[sequence.id][1], error=error, message=message))
            for sequence in sequences
            if sequence.id in self._owners
        )
        for sequence in sequences:
            self._forget(sequence)

    def _add(self, origin: object, submit: Submit) -> None:
        if submit.id in self._fronts.get(origin, {}):
            log.warning("a front used sequence id %d twice", submit.id)
            return
        sequence = _sequence(next(self._ids), submit)
        if not self._scheduler.can_ever_fit(sequence.num_tokens):
            text = f"{sequence.num_tokens} tokens can never fit the KV cache."
            self._deliver(origin, Outputs([Output(submit.id, error=ERROR_TOO_LONG, message=text)]))
            return
        try:
            self._scheduler.add(sequence)
        except KeyError:
            text = f"The engine knows no lane {submit.lane[:40]!r}."
            self._deliver(origin, Outputs([Output(submit.id, error=ERROR_FAILED, message=text)]))
            return
        self._fronts.setdefault(origin, {})[submit.id] = sequence
        self._owners[sequence.id] = (origin, submit.id)

    def _abort(self, origin: object, sequence_id: int) -> None:
        sequence = self._fronts.get(origin, {}).get(sequence_id)
        if sequence is not None:
            self._scheduler.abort(sequence.id)
            self._forget(sequence)

    def _close(self, origin: object) -> None:
        for sequence_id in list(self._fronts.get(origin, {})):
            self._abort(origin, sequence_id)
        self._fronts.pop(origin, None)

    def _forget(self, sequence: Sequence) -> None:
        self._runner.forget(sequence)
        owner = self._owners.pop(sequence.id, None)
        if owner is not None:
            self._fronts[owner[0]].pop(owner[1], None)

    def _count(self, plan: StepPlan, seconds: float) -> None:
        stats = self._stats
        stats.steps += 1
        stats.step_s += seconds
        stats.predicted_s += plan.predicted_s
        stats.longest_step_s = max(stats.longest_step_s, seconds)
        if seconds > SURPRISE * plan.predicted_s and seconds > SURPRISE_S:
            log.info("a step of %s took %.3f s, predicted %.3f s", _shape(plan), seconds, plan.predicted_s)
        stats.completion_tokens += plan.num_samples
        stats.prompt_tokens += sum(
            max(0, min(row.start + row.num_tokens, row.sequence.num_prompt_tokens) - row.start) for row in plan.rows
        )

    def _report(self) -> None:
        """Send statistics to every front, at most twice a second."""
        now = self._clock()
        if now - self._stats_at < STATS_EVERY_S:
            return
        self._stats_at = now
        stats = self._stats
        stats.running = self._scheduler.num_running
        stats.waiting = self._scheduler.num_waiting
        stats.preemptions = self._scheduler.num_preemptions
        stats.kv_blocks_total = self._runner.num_blocks
        stats.kv_blocks_used = self._runner.num_blocks - self._scheduler.num_free_blocks
        self._deliver(None, _copy(stats))
        stats.longest_step_s *= LONGEST_DECAY


def _copy(stats: Stats) -> Stats:
    """The socket thread encodes it while the engine goes on counting."""
    return Stats(**{name: getattr(stats, name) for name in stats.__struct_fields__})


def _shape(plan: StepPlan) -> str:
    """For the log: start+tokens of every row that is no decode."""
    chunks = " ".join(f"{row.start}+{row.num_tokens}" for row in plan.rows if row.num_tokens > 1)
    return f"{plan.num_samples} samples, chunks {chunks or 'none'}"


def _sequence(sequence_id: int, submit: Submit) -> Sequence:
    return Sequence(
        id=sequence_id,
        token_ids=list(submit.prompt_ids),
        num_prompt_tokens=len(submit.prompt_ids),
        params=TokenParams(
            max_tokens=submit.max_tokens,
            min_tokens=submit.min_tokens,
            temperature=submit.temperature,
            top_p=submit.top_p,
            top_k=submit.top_k,
            min_p=submit.min_p,
            seed=submit.seed,
            choice=submit.choice,
            stop_token_ids=frozenset(submit.stop_token_ids),
        ),
        lane=submit.lane,
        tenant=submit.tenant,
        weight=submit.weight,
        arrived_at=submit.arrived_at,
        first_token_at=submit.first_token_at,
        deadline_at=submit.deadline_at,
    )
