"""Steps before the engine is ready: kernels prepare each shape once, and the step-time model learns what steps cost."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

from backends.hf.plan import Row, Runner, StepPlan
from backends.hf.sequence import Sequence, TokenParams
from backends.hf.step_time import StepTime

BUDGET_S = 6.0
CONTEXT = 128  # tokens that a warm-up decode attends to
DEEP_CONTEXT = 1024
CHUNKS = (16, 32, 64, 128, 256)


def warm_up(
    runner: Runner,
    step_time: StepTime,
    max_num_seqs: int,
    max_model_len: int,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Run each shape twice and let the model see the second; stops after `BUDGET_S`. Returns the number of shapes.

    The shapes that matter most come first: a large or slow model does not get to the rest.
    """
    began = clock()
    for count, plan in enumerate(_plans(runner, max_num_seqs, max_model_len)):
        if clock() - began > BUDGET_S:
            return count
        runner.run(plan)
        at = clock()
        runner.run(plan)
        step_time.observe(plan, clock() - at)
        for row in plan.rows:
            runner.forget(row.sequence)
    return count + 1


def _plans(runner: Runner, max_num_seqs: int, max_model_len: int) -> Iterator[StepPlan]:
    room = min(max_model_len, runner.num_blocks * runner.block_size)
    rows = _Rows(runner.block_size, room)
    if runner.starts_anywhere:
        yield rows.plan(decodes=1)
    for chunk in CHUNKS:
        yield rows.plan(chunk=chunk)
    if not runner.starts_anywhere:
        return
    yield rows.plan(chunk=32, start=DEEP_CONTEXT)
    yield rows.plan(chunk=32, start=2 * DEEP_CONTEXT)
    yield rows.plan(decodes=16, chunk=32)
    for decodes in range(2, min(max_num_seqs, 64) + 1):
        yield rows.plan(decodes=decodes)
    for chunk in range(48, CHUNKS[-1], 16):
        yield rows.plan(chunk=chunk)


class _Rows:
    """Makes plans over blocks that nobody uses yet. Decodes share their blocks: what they read does not matter."""

    def __init__(self, block_size: int, room: int) -> None:
        self._block_size = block_size
        self._room = room
        self._ids = itertools.count(start=-1, step=-1)

    def plan(self, decodes: int = 0, chunk: int = 0, start: int = 0) -> StepPlan:
        context = min(CONTEXT, self._room - 1)
        rows = [self._row(context, 1) for _ in range(decodes)]
        if chunk:
            start = min(start, self._room // 2)
            rows.append(self._row(start, min(chunk, self._room - start)))
        return StepPlan(rows=tuple(rows))

    def _row(self, start: int, count: int) -> Row:
        length = start + count
        sequence = Sequence(
            id=next(self._ids),
            token_ids=[0] * length,
            num_prompt_tokens=length,
            params=TokenParams(max_tokens=1, temperature=0.0),
            block_table=list(range(-(-length // self._block_size))),
        )
        return Row(sequence, start, count, sample=True)
