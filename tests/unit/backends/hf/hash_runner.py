"""A model without a model: the next token is a hash of every token read through the block table.

Memory is written when a row is computed and never cleared, so a stale, missing or foreign token changes the answer.
`World` drives a scheduler with it and checks what must hold at every step.
"""

from __future__ import annotations

import array
import random
import zlib
from collections.abc import Iterable

from backends.fairness import FairQueue, LaneShare
from backends.hf.block_pool import BlockPool
from backends.hf.plan import Row, StepPlan
from backends.hf.scheduler import Scheduler, SchedulerLimits
from backends.hf.sequence import Sequence, SequenceStatus, TokenParams
from backends.hf.step import SHARE
from backends.hf.step_time import Prior, StepTime
from backends.types import FinishReason

VOCAB = 97
LANES = {"interactive": LaneShare(0, 0.05), "standard": LaneShare(1, 0.05), "batch": LaneShare(2, 0.05)}


def next_token(token_ids: Iterable[int]) -> int:
    """The model."""
    return zlib.crc32(array.array("i", token_ids).tobytes()) % VOCAB


def answer(prompt: list[int], params: TokenParams, max_len: int) -> tuple[list[int], FinishReason]:
    """What the model says to a prompt when it is alone: the oracle."""
    tokens, output = list(prompt), 0
    while True:
        tokens.append(next_token(tokens))
        output += 1
        if tokens[-1] in params.stop_token_ids and output > params.min_tokens:
            return tokens, FinishReason.STOP
        if output >= params.max_tokens or len(tokens) >= max_len:
            return tokens, FinishReason.LENGTH


class HashRunner:
    """Computes plans in a memory of blocks and slots."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.memory = [[-1] * block_size for _ in range(num_blocks)]

    def run(self, plan: StepPlan) -> list[int]:
        for row in plan.rows:
            for position in range(row.start, row.start + row.num_tokens):
                block = row.sequence.block_table[position // self.block_size]
                self.memory[block][position % self.block_size] = row.sequence.token_ids[position]
        return [next_token(self.read(row.sequence)) for row in plan.rows if row.sample]

    def read(self, sequence: Sequence) -> list[int]:
        """All tokens of a sequence, as the memory has them."""
        held = [token for block in sequence.block_table for token in self.memory[block]]
        return held[: sequence.num_tokens]

    def forget(self, sequence: Sequence) -> None:
        """Nothing is kept beside the memory."""


class World:
    """A scheduler, its runner, a clock, and the invariants."""

    def __init__(
        self,
        *,
        num_blocks: int = 1000,
        block_size: int = 16,
        max_num_seqs: int = 64,
        max_batched_tokens: int = 2048,
        max_step_s: float = 0.08,
        max_model_len: int = 16000,
        prior: Prior | None = None,
        speed: float | None = None,
        wait_bound_s: float = 2.0,
        target_itl_s: dict[str, float] | None = None,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.queue: FairQueue[Sequence] = FairQueue(LANES, wait_bound_s)
        self.step_time = StepTime(prior)
        self.limits = SchedulerLimits(
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            max_step_s=max_step_s,
            max_model_len=max_model_len,
        )
        self.scheduler = Scheduler(self.pool, self.queue, self.step_time, self.limits, target_itl_s)
        self.runner = HashRunner(num_blocks, block_size)
        self.speed = speed
        self.now = 1000.0
        self.steps = 0
        self.live: dict[int, Sequence] = {}
        self.finished: list[Sequence] = []
        self.dropped: list[Sequence] = []

    def add(
        self,
        num_tokens: int,
        max_tokens: int = 4,
        *,
        lane: str = "standard",
        tenant: str = "default",
        weight: float = 1.0,
        stop: frozenset[int] = frozenset(),
        min_tokens: int = 0,
        begin_in_s: float | None = None,
        end_in_s: float | None = None,
    ) -> Sequence:
        """Submit a prompt that no other has."""
        number = len(self.live) + len(self.finished) + len(self.dropped)
        rng = random.Random(number)
        sequence = Sequence(
            id=number,
            token_ids=[rng.randrange(VOCAB) for _ in range(num_tokens)],
            num_prompt_tokens=num_tokens,
            params=TokenParams(max_tokens=max_tokens, min_tokens=min_tokens, stop_token_ids=stop),
            lane=lane,
            tenant=tenant,
            weight=weight,
            arrived_at=self.now,
            first_token_at=None if begin_in_s is None else self.now + begin_in_s,
            deadline_at=None if end_in_s is None else self.now + end_in_s,
        )
        self.scheduler.add(sequence)
        self.live[sequence.id] = sequence
        return sequence

    def step(self, *, fails: bool = False) -> StepPlan:
        """Expire, schedule, compute, commit; everything is checked on the way."""
        self.steps += 1
        self._drop(self.scheduler.expire(self.now))
        decodes = [s for s in self.live.values() if s.status is SequenceStatus.RUNNING and s.num_uncomputed_tokens == 1]
        partials = [s for s in self.live.values() if s.status is SequenceStatus.RUNNING and s.num_uncomputed_tokens > 1]
        plan = self.scheduler.schedule(self.now)
        preempted = self.scheduler.take_preempted()
        self._check_plan(plan, decodes, partials, preempted)
        self._check_memory()
        if fails:
            self._drop(self.scheduler.fail(plan))
        elif plan.rows:
            seconds = plan.predicted_s if self.speed is None else self._seconds(plan)
            self.now += seconds
            if self.speed is not None:
                self.step_time.observe(plan, seconds)
            self.commit(plan, self.runner.run(plan))
        self._check_memory()
        return plan

    def commit(self, plan: StepPlan, sampled: list[int]) -> None:
        for sequence in self.scheduler.commit(plan, sampled, self.now):
            if sequence.finish_reason is not None:
                assert sequence.status is SequenceStatus.FINISHED
                self.finished.append(self.live.pop(sequence.id))

    def abort(self, sequence: Sequence) -> None:
        assert self.scheduler.abort(sequence.id) is sequence
        self._drop([sequence])
        self._check_memory()

    def drain(self, max_steps: int = 100_000) -> None:
        """Step until nothing is live; then everything must be back, and every answer right."""
        for _ in range(max_steps):
            if not self.live:
                break
            self.step()
        assert not self.live, f"{len(self.live)} sequences still live after {max_steps} steps"
        assert self.step().rows == ()
        assert self.pool.num_free == self.pool.num_blocks
        assert self.scheduler.num_running == self.scheduler.num_waiting == len(self.queue) == 0
        self.check_answers()

    def check_answers(self) -> None:
        for sequence in self.finished:
            prompt = sequence.token_ids[: sequence.num_prompt_tokens]
            expected, reason = answer(prompt, sequence.params, self.scheduler.max_sequence_tokens)
            assert sequence.token_ids == expected
            assert sequence.finish_reason is reason

    def _drop(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            assert sequence.status is SequenceStatus.FINISHED
            assert sequence.block_table == []
            self.dropped.append(self.live.pop(sequence.id))

    def _seconds(self, plan: StepPlan) -> float:
        assert self.speed is not None
        plateau = max(16, plan.num_tokens)
        return self.speed * (0.005 + 0.0005 * plateau + 1e-7 * plan.num_attended + 0.0004 * plan.num_samples)

    def _check_memory(self) -> None:
        """Every block is free or in exactly one table; every live sequence waits or runs."""
        tables = [block for s in self.live.values() for block in s.block_table]
        assert len(tables) == len(set(tables)), "a block in two tables"
        assert len(tables) + self.pool.num_free == self.pool.num_blocks
        running = [s for s in self.live.values() if s.status is SequenceStatus.RUNNING]
        assert len(running) == self.scheduler.num_running <= self.limits.max_num_seqs
        assert len(self.live) - len(running) == self.scheduler.num_waiting
        for sequence in self.live.values():
            assert sequence.num_computed_tokens <= sequence.num_tokens
            assert sequence.status is SequenceStatus.RUNNING or sequence.block_table == []
            assert len(sequence.block_table) * self.pool.block_size >= sequence.num_computed_tokens

    def _check_plan(
        self, plan: StepPlan, decodes: list[Sequence], partials: list[Sequence], preempted: list[Sequence]
    ) -> None:
        rows = {row.sequence.id: row for row in plan.rows}
        assert len(rows) == len(plan.rows), "a sequence in two rows"
        assert bool(plan.rows) == bool(self.live), "an empty step while there is work, or the reverse"
        assert plan.num_tokens <= self.limits.max_batched_tokens
        assert len(plan.rows) <= self.limits.max_num_seqs
        for row in plan.rows:
            assert row.sequence.status is SequenceStatus.RUNNING
            assert row.start == row.sequence.num_computed_tokens
            assert row.num_tokens > 0
            assert row.start + row.num_tokens <= row.sequence.num_tokens
            assert row.sample == (row.start + row.num_tokens == row.sequence.num_tokens)
            assert len(row.sequence.block_table) * self.pool.block_size >= row.start + row.num_tokens
        for sequence in decodes:
            assert sequence.id in rows or sequence in preempted, "a decode skipped a step"
        waiting_prefills = [s for s in partials if s not in preempted]
        assert not waiting_prefills or any(s.id in rows for s in waiting_prefills), "no prefill moved"
        self._check_time(plan, [row for row in plan.rows if row.sequence in decodes])

    def _check_time(self, plan: StepPlan, decode_rows: list[Row]) -> None:
        predict = self.step_time.predict
        assert abs(plan.predicted_s - predict(plan.num_tokens, plan.num_attended, plan.num_samples)) < 1e-9
        decodes = StepPlan(tuple(decode_rows))
        decode_s = predict(decodes.num_tokens, decodes.num_attended, decodes.num_samples)
        budget_s = self.limits.max_step_s
        one_s = predict(1, self.limits.max_model_len, 1)
        least_s = max(budget_s * SHARE, predict(0, 0, 0))
        assert plan.predicted_s <= max(budget_s, decode_s + least_s) + one_s + 1e-9
        if decode_s + one_s <= budget_s - least_s:
            assert plan.predicted_s <= budget_s + 1e-9
