"""Thousands of random schedules on a model whose every token depends on every slot of its block table.

What must hold at every step is checked in `World`; at the end every answer equals the one given alone.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule

from backends.hf.sequence import Sequence
from tests.unit.backends.hf.hash_runner import LANES, VOCAB, World, answer

MAX_LIVE = 14


def random_world(rng: random.Random) -> World:
    """Small pools, so that blocks are always short; budgets from one token up."""
    return World(
        num_blocks=rng.randint(3, 40),
        block_size=rng.choice([1, 2, 3, 4, 8, 16]),
        max_num_seqs=rng.randint(1, 8),
        max_batched_tokens=rng.choice([1, 2, 5, 16, 64, 256]),
        max_step_s=rng.choice([0.001, 0.01, 0.03, 0.08, 1.0]),
        max_model_len=rng.choice([20, 60, 200]),
        speed=rng.choice([None, 0.1, 1.0, 3.0]),
        wait_bound_s=rng.choice([0.0, 0.1, 2.0]),
    )


def add_random(world: World, rng: random.Random) -> None:
    longest = min(world.scheduler.max_sequence_tokens - 1, 50)
    world.add(
        rng.randint(1, longest),
        rng.randint(1, 30),
        lane=rng.choice(list(LANES)),
        tenant=rng.choice("abc"),
        weight=rng.choice([1.0, 2.5]),
        stop=frozenset(rng.sample(range(VOCAB), rng.randint(0, 5))),
        min_tokens=rng.randint(0, 3),
        begin_in_s=rng.choice([None, None, 0.05, 1.0]),
        end_in_s=rng.choice([None, None, 0.2, 3.0]),
    )


def play(world: World, rng: random.Random, actions: int, *, arrivals: float, faults: float = 0.02) -> None:
    """Arrivals, aborts, failing steps and aborts in the middle of a step, at random; then drain."""
    for _ in range(actions):
        while len(world.live) < MAX_LIVE and rng.random() < arrivals:
            add_random(world, rng)
        if world.live and rng.random() < 4 * faults:
            world.abort(rng.choice(list(world.live.values())))
        if rng.random() < faults:
            abort_while_computing(world, rng)
        world.step(fails=rng.random() < faults)
    world.drain(max_steps=20_000)


def abort_while_computing(world: World, rng: random.Random) -> None:
    plan = world.scheduler.schedule(world.now)
    sampled = world.runner.run(plan)
    for row in plan.rows:
        if rng.random() < 0.5:
            world.abort(row.sequence)
    world.commit(plan, sampled)


@pytest.mark.parametrize("block", range(10))
def test_random_schedules_give_every_sequence_the_answer_it_gets_alone(block: int) -> None:
    finished = preempted = 0
    for seed in range(block * 250, (block + 1) * 250):
        rng = random.Random(seed)
        world = random_world(rng)
        play(world, rng, rng.randint(1, 40), arrivals=rng.choice([0.2, 0.5, 0.9]))
        finished += len(world.finished)
        preempted += world.scheduler.num_preemptions
    assert finished > 300
    assert preempted > 50


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    num_blocks=st.integers(2, 30),
    block_size=st.integers(1, 9),
    max_num_seqs=st.integers(1, 6),
    max_batched_tokens=st.integers(1, 80),
    max_step_s=st.floats(0.0001, 0.2),
    speed=st.none() | st.floats(0.01, 20),
    arrivals=st.sampled_from([0.3, 0.8]),
)
def test_any_bounds_at_all_give_the_same_answers(
    seed: int,
    num_blocks: int,
    block_size: int,
    max_num_seqs: int,
    max_batched_tokens: int,
    max_step_s: float,
    speed: float | None,
    arrivals: float,
) -> None:
    world = World(
        num_blocks=num_blocks,
        block_size=block_size,
        max_num_seqs=max_num_seqs,
        max_batched_tokens=max_batched_tokens,
        max_step_s=max_step_s,
        speed=speed,
    )
    play(world, random.Random(seed), 25, arrivals=arrivals)


@pytest.mark.parametrize("seed", range(20))
def test_neither_order_nor_company_nor_bounds_change_an_answer(seed: int) -> None:
    """The same prompts through different worlds, in different orders."""
    rng = random.Random(seed)
    prompts = [(rng.randint(1, 40), rng.randint(1, 20)) for _ in range(8)]
    for _ in range(4):
        world = World(
            num_blocks=rng.randint(20, 60),
            block_size=rng.choice([3, 4, 5]),
            max_num_seqs=rng.randint(1, 8),
            max_batched_tokens=rng.randint(8, 100),
            max_step_s=rng.choice([0.005, 0.05]),
        )
        delays = [rng.randrange(30) for _ in prompts]
        for step in range(30):
            for (length, max_tokens), delay in zip(prompts, delays, strict=True):
                if delay == step:
                    world.add(length, max_tokens, lane=rng.choice(list(LANES)))
            world.step()
        world.drain()
        assert len(world.finished) == len(prompts)


@pytest.mark.parametrize("seed", range(5))
def test_every_sequence_gets_its_turn_within_a_bound(seed: int) -> None:
    """Under endless arrivals of two higher lanes and a greedy tenant, nothing that was there before waits forever."""
    rng = random.Random(seed)
    world = World(num_blocks=40, block_size=4, max_num_seqs=6, speed=1.0, wait_bound_s=0.5)
    watched = [
        world.add(rng.randint(20, 100), 5, lane=lane, tenant=tenant)
        for lane in LANES
        for tenant in ("greedy", "modest")
        for _ in range(2)
    ]
    for _ in range(6000):
        while world.scheduler.num_waiting < 15:
            world.add(rng.randint(1, 30), 5, lane=rng.choice(["interactive", "standard"]), tenant="greedy")
        world.step()
        if all(s.finish_reason for s in watched):
            break
    assert [s for s in watched if s.finish_reason is None] == []


class SchedulerMachine(RuleBasedStateMachine):
    """Any order of submitting, stepping, aborting, failing and waiting."""

    sequences = Bundle("sequences")

    @initialize(
        num_blocks=st.integers(2, 20),
        block_size=st.integers(1, 6),
        max_num_seqs=st.integers(1, 5),
        max_batched_tokens=st.sampled_from([1, 4, 30]),
        max_step_s=st.sampled_from([0.002, 0.02, 0.2]),
    )
    def start(
        self, num_blocks: int, block_size: int, max_num_seqs: int, max_batched_tokens: int, max_step_s: float
    ) -> None:
        self.world = World(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_batched_tokens=max_batched_tokens,
            max_step_s=max_step_s,
            wait_bound_s=0.1,
        )

    @rule(
        target=sequences,
        length=st.integers(1, 60),
        max_tokens=st.integers(1, 20),
        lane=st.sampled_from(list(LANES)),
        tenant=st.sampled_from("ab"),
        begin_in_s=st.none() | st.floats(0, 0.5),
        end_in_s=st.none() | st.floats(0, 2),
    )
    def submit(
        self,
        length: int,
        max_tokens: int,
        lane: str,
        tenant: str,
        begin_in_s: float | None,
        end_in_s: float | None,
    ) -> object:
        if not self.world.scheduler.can_ever_fit(length):
            return multiple()
        return self.world.add(length, max_tokens, lane=lane, tenant=tenant, begin_in_s=begin_in_s, end_in_s=end_in_s)

    @rule(times=st.integers(1, 8))
    def step(self, times: int) -> None:
        for _ in range(times):
            self.world.step()

    @precondition(lambda self: self.world.live)
    @rule()
    def fail(self) -> None:
        self.world.step(fails=True)

    @rule(sequence=sequences)
    def abort(self, sequence: Sequence) -> None:
        if sequence.id in self.world.live:
            self.world.abort(sequence)
        else:
            assert self.world.scheduler.abort(sequence.id) is None

    @rule(sequence=sequences)
    def abort_while_computing(self, sequence: Sequence) -> None:
        plan = self.world.scheduler.schedule(self.world.now)
        sampled = self.world.runner.run(plan)
        self.abort(sequence)
        self.world.commit(plan, sampled)

    @rule(seconds=st.floats(0, 1))
    def wait(self, seconds: float) -> None:
        self.world.now += seconds

    @invariant()
    def outputs_so_far_are_right(self) -> None:
        for sequence in self.world.live.values():
            prompt = sequence.token_ids[: sequence.num_prompt_tokens]
            whole, _ = answer(prompt, sequence.params, self.world.scheduler.max_sequence_tokens)
            assert sequence.token_ids == whole[: sequence.num_tokens]

    def teardown(self) -> None:
        if hasattr(self, "world"):
            self.world.drain(max_steps=20_000)


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSchedulerMachine = SchedulerMachine.TestCase
