"""What the next step computes: decodes first, then prefill chunks while the step's time lasts. No torch, no clock.

There are no phases: every running sequence has `num_computed_tokens` and a target, and a step closes gaps. The budget
is predicted time, also when nothing decodes, since the next arrival is unknown. Blocks for a whole prompt are reserved
at admission; decodes grow by a block at a time, and on shortage the least of the running loses its blocks and is
computed again later (preemption by recompute), its output kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from backends.fairness import FairQueue, Head
from backends.hf.block_pool import BlockPool
from backends.hf.plan import Row, StepPlan
from backends.hf.sequence import Sequence, SequenceStatus
from backends.hf.step import Step
from backends.hf.step_time import StepTime
from backends.types import FinishReason

MAX_LONG = 4  # long prompts being read at once, before waiting is no reason to begin another
MAX_PREEMPTIONS = 3  # then a sequence keeps its blocks, as long as another can give
PREFILL_COST, OUTPUT_COST = 1.0, 2.0  # of a token, for its tenant


class SchedulerLimits(Struct, frozen=True, kw_only=True):
    """Bounds of a step and of a sequence. `max_step_s` is in seconds of predicted time, the others count."""

    max_num_seqs: int
    max_batched_tokens: int
    max_step_s: float
    max_model_len: int


class Scheduler:
    """Owns the live sequences, from `add` until they end. One thread; deterministic, `now` is passed in."""

    def __init__(
        self,
        pool: BlockPool,
        queue: FairQueue[Sequence],
        step_time: StepTime,
        limits: SchedulerLimits,
        target_itl_s: Mapping[str, float] | None = None,
    ) -> None:
        self._pool = pool
        self._queue = queue
        self._step_time = step_time
        self._limits = limits
        self._target_itl_s = target_itl_s or {}
        # Every row takes a token, so that decodes alone never pass the bound on tokens.
        self._max_rows = min(limits.max_num_seqs, limits.max_batched_tokens)
        self._watermark = max(1, pool.num_blocks // 100)
        self._live: dict[int, Sequence] = {}
        self._running: dict[Sequence, int] = {}  # → step of its admission, oldest first
        self._preempted: list[Sequence] = []
        self._step = 0
        self.num_preemptions = 0
        self.max_sequence_tokens = min(limits.max_model_len, pool.num_blocks * pool.block_size)

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        """Sequences in the queue, preempted ones too."""
        return len(self._queue)

    @property
    def num_free_blocks(self) -> int:
        """Blocks in no table."""
        return self._pool.num_free

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Whether a prompt of so many tokens leaves room for an output token, in the model and in the whole pool."""
        return 0 < num_tokens < self.max_sequence_tokens

    def add(self, sequence: Sequence) -> None:
        """Take a new sequence; the caller has asked `can_ever_fit`. KeyError: no such lane."""
        assert self.can_ever_fit(sequence.num_tokens), f"{sequence.num_tokens} tokens can never fit"
        assert sequence.id not in self._live, f"sequence {sequence.id} is here already"
        instants = (sequence.first_token_at, sequence.deadline_at)
        self._queue.push(
            sequence,
            sequence.lane,
            sequence.tenant,
            sequence.weight,
            sequence.num_tokens,
            min((at for at in instants if at is not None), default=None),
            sequence.arrived_at,
        )
        self._live[sequence.id] = sequence

    def abort(self, sequence_id: int) -> Sequence | None:
        """Drop a sequence in any state; None when there is no such one."""
        sequence = self._live.get(sequence_id)
        if sequence is not None:
            self._drop(sequence)
        return sequence

    def expire(self, now: float) -> list[Sequence]:
        """Drop what is past its deadline. `first_token_at` counts only until the prefill has begun."""
        late = self._queue.expire(now)
        late += [s for s in self._running if s.deadline_at is not None and s.deadline_at <= now]
        for sequence in late:
            self._drop(sequence)
        return late

    def fail(self, plan: StepPlan) -> list[Sequence]:
        """Drop all rows of a plan that could not be computed."""
        failed = [row.sequence for row in plan.rows if row.sequence in self._running]
        for sequence in failed:
            self._drop(sequence)
        return failed

    def take_preempted(self) -> list[Sequence]:
        """What lost its blocks in the last `schedule`; a row of the same plan may begin it anew."""
        preempted, self._preempted = self._preempted, []
        return preempted

    def schedule(self, now: float) -> StepPlan:
        """The next step; without rows only when nothing is live. Then call `commit` or `fail` before the next."""
        self._step += 1
        self._preempted = []
        self._grow_decodes(now)
        step = Step(self._step_time, self._budget_s(), self._limits.max_batched_tokens)
        step.may_admit = not self._preempted
        if step.may_admit:
            step.favoured = self._make_room(now)
        for sequence in self._decodes():
            step.extend(sequence, 1)
        step.open_prefill()
        self._fill(step, now)
        for sequence in step.chunks:
            sequence.last_scheduled_at = now
        return step.plan()

    def commit(self, plan: StepPlan, sampled: list[int], now: float) -> list[Sequence]:
        """Take over what was computed, one token for each row that samples. Returns the sequences that got one.

        Those that ended have `finish_reason` and hold nothing more. Rows of sequences dropped meanwhile are ignored.
        """
        assert len(sampled) == plan.num_samples, f"{len(sampled)} tokens for {plan.num_samples} rows"
        tokens = iter(sampled)
        advanced = []
        for row in plan.rows:
            token = next(tokens) if row.sample else None
            if row.sequence not in self._running:
                continue
            self._advance(row, token)
            if token is not None:
                advanced.append(row.sequence)
        return advanced

    # Before the plan: blocks

    def _grow_decodes(self, now: float) -> None:
        """A slot for every decode's token, the best first; on shortage the least of all running gives its blocks."""
        for sequence in self._decodes():
            missing = self._pool.blocks_for(sequence.num_tokens) - len(sequence.block_table)
            if missing <= 0:
                continue
            while sequence in self._running and not self._pool.can_allocate(missing):
                self._preempt(self._victim(), now)
            if sequence in self._running:
                self._pool.grow(sequence.block_table, sequence.num_tokens)

    def _make_room(self, now: float) -> Sequence | None:
        """Preempt for a newcomer of a higher lane when that really lets it in; it is then the only one let in."""
        head = self._queue.head(now, self._has_room)
        if head is None or self._has_room(head.item):
            return None
        victims = self._victims_for(head.item)
        for victim in victims:
            self._preempt(victim, now)
        return head.item if victims else None

    def _victims_for(self, newcomer: Sequence) -> list[Sequence]:
        """The fewest sequences of lower lanes whose blocks and rows let the newcomer in; none if all are not enough."""
        priority = self._queue.priority(newcomer.lane)
        lower = [s for s in reversed(self._running) if self._queue.priority(s.lane) > priority and self._may_preempt(s)]
        victims: list[Sequence] = []
        blocks = self._pool.num_free
        for victim in sorted(lower, key=self._standing, reverse=True):
            victims.append(victim)
            blocks += len(victim.block_table)
            if self._has_room(newcomer, blocks, len(victims)):
                return victims
        return []

    def _victim(self) -> Sequence:
        """Lowest lane, then most recently admitted, then fewest generated; protected ones only when all are."""
        latest_first = list(reversed(self._running))
        return max([s for s in latest_first if self._may_preempt(s)] or latest_first, key=self._standing)

    def _may_preempt(self, sequence: Sequence) -> bool:
        return sequence.num_preemptions < MAX_PREEMPTIONS

    def _standing(self, sequence: Sequence) -> tuple[int, int, int]:
        return self._queue.priority(sequence.lane), self._running[sequence], -sequence.num_output_tokens

    def _preempt(self, sequence: Sequence, now: float) -> None:
        """Back to the front of its lane, without blocks; its resume computes prompt and output as one prefill."""
        self._release(sequence)
        sequence.status = SequenceStatus.WAITING
        sequence.num_computed_tokens = 0
        sequence.num_preemptions += 1
        self.num_preemptions += 1
        self._preempted.append(sequence)
        self._queue.push(
            sequence,
            sequence.lane,
            sequence.tenant,
            sequence.weight,
            sequence.num_tokens,
            sequence.deadline_at,
            now,
            at_front=True,
        )

    # The plan: time

    def _budget_s(self) -> float:
        """Predicted seconds the step may take: the tightest target of the lanes that have work."""
        lanes = {sequence.lane for sequence in self._running}
        lanes.update(lane for lane, length in self._queue.lengths.items() if length)
        return min([self._limits.max_step_s, *(self._target_itl_s.get(lane, math.inf) for lane in lanes)])

    def _decodes(self) -> list[Sequence]:
        """Running sequences one token short, higher lanes first, then in order of admission."""
        decodes = [s for s in self._running if len(s.token_ids) - s.num_computed_tokens == 1]
        decodes.sort(key=lambda s: self._queue.priority(s.lane))
        return decodes

    def _fill(self, step: Step, now: float) -> None:
        """Prefill chunks in order of standing, running and waiting prompts alike, until time, tokens or work run out.

        The oldest prefill first gets a small share, so that it always moves. A step with a short prompt in it gives
        long ones no more than that, so that it stays short.
        """
        partials = [s for s in self._running if s not in step.chunks]
        step.num_long = sum(step.is_long(s) for s in partials)
        if partials:
            step.extend(partials[0], step.share(partials[0]))
        partials = sorted((s for s in partials if step.left(s)), key=self._order, reverse=True)
        while True:
            head = self._newcomer(step, partials[-1] if partials else None, now)
            if head is None and not partials:
                return
            sequence = head.item if head is not None else partials[-1]
            chunk = step.chunk(sequence, is_due=head is not None and head.is_due)
            if chunk == 0:
                return
            step.extend(sequence, chunk)
            if head is None:
                partials.pop()
            else:
                self._admit(sequence, step)
                if head.is_due and step.left(sequence):
                    partials.append(sequence)
                    partials.sort(key=self._order, reverse=True)

    def _newcomer(self, step: Step, best: Sequence | None, now: float) -> Head[Sequence] | None:
        """The waiting prompt whose turn it is, unless none may be admitted, or `best` of the running goes before it.

        While several long prompts are being read, having waited is no reason to begin one more: they would only hold
        blocks that short ones need.
        """
        if not step.may_admit:
            return None
        aging = now if step.num_long < MAX_LONG else -math.inf
        favoured = step.favoured
        head = Head(favoured, True) if favoured else self._queue.head(aging, self._has_room)
        if head is None or (best is not None and not head.is_due and self._order(best) <= self._order(head.item)):
            return None
        if not self._has_room(head.item):
            step.may_admit = False
            return None
        return head

    def _order(self, sequence: Sequence) -> tuple[int, float, int]:
        """Higher lanes, then the tenant that was charged least, then what is nearest to its first token."""
        return (
            self._queue.priority(sequence.lane),
            self._queue.counter(sequence.lane, sequence.tenant),
            sequence.num_uncomputed_tokens,
        )

    def _has_room(self, sequence: Sequence, num_free: int | None = None, num_leaving: int = 0) -> bool:
        """Whether a row and the blocks of the whole prompt and of the first output token are there.

        Some blocks stay free for the decodes to grow into, more of them before a preempted sequence returns.
        """
        num_running = len(self._running) - num_leaving
        if num_running >= self._max_rows:
            return False
        spare = self._watermark if num_running else 0
        if sequence.num_preemptions:
            spare += num_running
        free = self._pool.num_free if num_free is None else num_free
        return self._pool.blocks_for(sequence.num_tokens + 1) + spare <= free

    def _admit(self, sequence: Sequence, step: Step) -> None:
        step.may_admit = step.favoured is None
        step.num_long += step.is_long(sequence)
        self._queue.take(sequence)
        self._pool.grow(sequence.block_table, sequence.num_tokens + 1)
        sequence.status = SequenceStatus.RUNNING
        self._running[sequence] = self._step

    # After the step

    def _advance(self, row: Row, token: int | None) -> None:
        """Count a computed row, charge its tenant, append its token, and end the sequence if that was its last."""
        sequence = row.sequence
        end = row.start + row.num_tokens
        sequence.num_computed_tokens = end
        cost = PREFILL_COST * max(0, min(end, sequence.num_prompt_tokens) - row.start)
        if token is not None:
            cost += OUTPUT_COST
            sequence.token_ids.append(token)
            sequence.finish_reason = self._finish_reason(sequence, token)
        self._queue.charge(sequence.tenant, cost)
        if sequence.finish_reason is not None:
            self._drop(sequence)

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        params = sequence.params
        if token in params.stop_token_ids and sequence.num_output_tokens > params.min_tokens:
            sequence.stop_token_id = token
            return FinishReason.STOP
        if sequence.num_output_tokens >= params.max_tokens or sequence.num_tokens >= self.max_sequence_tokens:
            return FinishReason.LENGTH
        return None

    def _drop(self, sequence: Sequence) -> None:
        """End a sequence in any state; everything it holds is free at once."""
        self._queue.remove(sequence)
        self._release(sequence)
        sequence.status = SequenceStatus.FINISHED
        del self._live[sequence.id]

    def _release(self, sequence: Sequence) -> None:
        if self._running.pop(sequence, None) is not None:
            self._pool.free(sequence.block_table)
