"""The scheduler, counted in steps: what users of other engines reported, and the rules of preemption and endings."""

from __future__ import annotations

import pytest

from backends.hf.scheduler import MAX_PREEMPTIONS
from backends.hf.sequence import Sequence, SequenceStatus
from backends.hf.step import LONG_LIMIT
from backends.hf.step_time import Prior
from backends.types import FinishReason
from tests.unit.backends.hf.hash_runner import World, answer

# 80 ms hold about 100 tokens, as SmolLM2 has it on two cores.
CPU = Prior(step_s=0.01, token_s=0.0006, attended_s=5e-8, sample_s=0.0005)


def steps_to_first_token(world: World, sequence: Sequence, limit: int = 1000) -> int:
    for step in range(1, limit + 1):
        world.step()
        if sequence.num_output_tokens:
            return step
    raise AssertionError(f"no token after {limit} steps")


def tokens_of(world: World, sequence: Sequence) -> int:
    """Do a step; how many tokens of the sequence it computed."""
    return sum(row.num_tokens for row in world.step().rows if row.sequence is sequence)


# A short prompt is never stuck behind a long one


def test_a_short_prompt_behind_a_long_one_gets_its_first_token_within_three_steps() -> None:
    world = World(prior=CPU)
    world.add(8000)
    for _ in range(5):
        world.step()

    assert steps_to_first_token(world, world.add(8)) <= 3


def test_a_short_prompt_overtakes_three_long_ones_that_wait() -> None:
    world = World(prior=CPU)
    longs = [world.add(4000) for _ in range(3)]
    short = world.add(30)

    assert steps_to_first_token(world, short) == 1
    assert all(s.num_output_tokens == 0 for s in longs)
    world.drain()


def test_long_prompts_leave_some_of_a_step_to_who_comes_next_and_short_ones_fill_it() -> None:
    world = World(prior=CPU)
    world.add(4000)
    assert world.step().predicted_s <= LONG_LIMIT * 0.08

    for _ in range(10):
        world.add(60)

    assert 0.07 < world.step().predicted_s <= 0.08


def test_a_step_with_a_short_prompt_gives_long_ones_only_a_small_share() -> None:
    world = World(prior=CPU)
    long = world.add(4000)
    assert 55 <= tokens_of(world, long) <= 80
    short = world.add(30)

    plan = world.step()

    chunks = {row.sequence.id: row.num_tokens for row in plan.rows}
    assert chunks[short.id] == 30
    assert 1 <= chunks[long.id] <= 20
    assert plan.predicted_s < 0.05


def test_the_oldest_long_prompt_moves_in_every_step_beside_endless_short_ones() -> None:
    world = World(prior=CPU)
    long = world.add(4000, 1)
    world.step()

    for _ in range(450):
        world.add(60, 1)
        assert tokens_of(world, long) >= 1
        if long.finish_reason:
            break

    assert long.finish_reason is FinishReason.LENGTH


def test_a_waiting_long_prompt_begins_within_the_wait_bound_beside_endless_short_ones() -> None:
    world = World(prior=CPU, wait_bound_s=1.0)
    for _ in range(3):
        world.add(60, 1)
    long = world.add(4000, 1)
    started_at = world.now

    while long.num_computed_tokens == 0:
        world.add(60, 1)
        world.add(60, 1)
        world.step()
        assert world.now < started_at + 1.5


def test_several_long_prompts_are_read_at_once_but_not_all_that_wait() -> None:
    world = World(prior=CPU, wait_bound_s=0.5)
    for _ in range(12):
        world.add(4000, 1)

    for _ in range(60):
        world.step()

    assert 2 <= world.scheduler.num_running <= 5


# Streams never stall


def test_every_decoder_advances_in_every_step_beside_endless_prompts() -> None:
    world = World(prior=CPU)
    decoders = [world.add(10, 60) for _ in range(4)]
    while not all(s.num_output_tokens for s in decoders):
        world.step()

    for _ in range(50):
        before = [s.num_output_tokens for s in decoders]
        world.add(512, 1)
        plan = world.step()
        assert [s.num_output_tokens for s in decoders] == [n + 1 for n in before]
        assert plan.predicted_s <= 0.08


def test_the_whole_of_prefill_is_bounded_not_each_chunk() -> None:
    world = World(prior=CPU)
    decoder = world.add(10, 30)
    world.step()
    for _ in range(8):
        world.add(200)

    for _ in range(10):
        assert world.step().predicted_s <= 0.08
    assert decoder.num_output_tokens == 11


def test_a_step_is_bounded_also_when_only_one_prompt_is_there() -> None:
    world = World(prior=CPU)
    world.add(4000, 1)

    while world.live:
        assert world.step().predicted_s <= 0.08


def test_the_tightest_target_of_the_lanes_with_work_bounds_the_step() -> None:
    world = World(prior=CPU, target_itl_s={"interactive": 0.03, "standard": 0.25})
    world.add(4000, lane="standard")
    assert 0.04 < world.step().predicted_s <= 0.08
    world.add(10, 50, lane="interactive")
    world.step()

    assert world.step().predicted_s <= 0.03


def test_prefill_keeps_a_share_when_decodes_take_the_whole_step() -> None:
    world = World(prior=CPU, max_step_s=0.02)
    for _ in range(20):
        world.add(1, 300)
    while world.scheduler.num_running < 20 or any(s.num_output_tokens == 0 for s in world.live.values()):
        world.step()
    assert world.step().predicted_s > 0.02
    world.add(4000, 1)
    for _ in range(5):
        world.step()

    for _ in range(5):
        assert steps_to_first_token(world, world.add(8, 1)) <= 5


def test_prefill_gets_as_much_time_as_a_step_costs_before_its_first_token() -> None:
    world = World(prior=Prior(step_s=0.5, token_s=0.01, attended_s=0.0, sample_s=0.0))
    world.add(1, 300)
    world.step()
    long = world.add(400)

    assert 45 <= tokens_of(world, long) <= 50


def test_tokens_are_bounded_too() -> None:
    world = World(max_batched_tokens=64, max_step_s=10.0)
    for _ in range(10):
        world.add(3, 20)
    world.step()
    world.add(200, 1)

    assert world.step().num_tokens == 10 + 48  # whole pieces
    assert world.step().num_tokens <= 64
    world.drain()


# Lanes and tenants


def test_higher_lanes_are_read_first_and_lower_ones_keep_their_floor() -> None:
    world = World(prior=CPU, wait_bound_s=1e9)
    low = [world.add(100, 1, lane="batch") for _ in range(5)]

    for _ in range(60):
        world.add(50, 1, lane="interactive")
        world.add(50, 1, lane="interactive")
        world.step()

    assert 1 <= sum(s.finish_reason is not None for s in low) <= 4


def test_a_tenant_with_many_long_prompts_does_not_hold_off_one_with_short_ones() -> None:
    world = World(prior=CPU)
    for _ in range(20):
        world.add(3000, 1, tenant="greedy")
    for _ in range(10):
        world.step()

    for _ in range(10):
        assert steps_to_first_token(world, world.add(40, 1, tenant="modest")) <= 3


def test_prompt_and_output_are_charged_by_weight() -> None:
    world = World()
    world.add(100, 10, tenant="a", weight=1)
    world.add(100, 10, tenant="b", weight=2)
    world.drain()

    assert world.queue.counter("standard", "a") == 100 + 2 * 10
    assert world.queue.counter("standard", "b") == (100 + 2 * 10) / 2


def test_a_waiting_higher_lane_takes_a_row_of_a_lower_one() -> None:
    world = World(max_num_seqs=2)
    low = [world.add(10, 100, lane="batch") for _ in range(2)]
    for _ in range(5):
        world.step()
    high = world.add(10, 5, lane="interactive")

    assert steps_to_first_token(world, high) == 1
    assert [s.status for s in low].count(SequenceStatus.WAITING) == 1
    world.drain()


def test_a_waiting_higher_lane_takes_the_blocks_of_a_lower_one() -> None:
    world = World(num_blocks=10, block_size=10)
    low = world.add(80, 10, lane="batch")
    world.step()
    high = world.add(60, 2, lane="interactive")

    assert steps_to_first_token(world, high) == 1
    assert low.status is SequenceStatus.WAITING
    world.drain()


def test_a_newcomer_takes_nothing_from_its_own_lane_or_a_higher_one() -> None:
    world = World(num_blocks=10, block_size=10)
    running = world.add(80, 10, lane="standard")
    world.step()
    world.add(60, 2, lane="standard")
    world.add(60, 2, lane="batch")

    while running.finish_reason is None:
        world.step()

    assert world.scheduler.num_preemptions == 0
    world.drain()


def test_nobody_is_preempted_for_a_newcomer_that_would_still_not_fit() -> None:
    world = World(num_blocks=10, block_size=10)
    world.add(50, 10, lane="interactive")
    low = world.add(20, 10, lane="batch")
    world.step()
    world.add(80, 2, lane="interactive")

    world.step()

    assert low.num_preemptions == 0
    world.drain()


# Blocks


def test_a_prompt_is_admitted_with_all_its_blocks() -> None:
    world = World(prior=CPU, num_blocks=100, block_size=10)
    long = world.add(500)
    world.step()

    assert long.num_computed_tokens < 500
    assert len(long.block_table) == 51


def test_what_can_never_fit_is_known_at_once_and_others_go_on() -> None:
    world = World(num_blocks=50, block_size=16, max_model_len=100_000)

    assert not world.scheduler.can_ever_fit(63 * 16)
    assert not world.scheduler.can_ever_fit(50 * 16)
    assert world.scheduler.can_ever_fit(50 * 16 - 1)
    assert not world.scheduler.can_ever_fit(0)
    world.add(50 * 16 - 1, 5)
    world.add(10, 5)
    world.drain()


def test_two_prompts_that_do_not_fit_together_take_turns_without_thrashing() -> None:
    world = World(num_blocks=12, block_size=10)
    world.add(100, 10)
    world.add(100, 10)
    world.drain()

    assert world.scheduler.num_preemptions <= 1


def test_on_shortage_the_latest_gives_its_blocks_and_resumes_before_those_who_wait() -> None:
    world = World(num_blocks=10, block_size=4)
    first = world.add(12, 30)
    world.step()
    second = world.add(12, 30)
    world.step()
    third = world.add(12, 30)
    while second.num_preemptions == 0:
        world.step()

    assert first.num_preemptions == 0
    assert first.status is SequenceStatus.RUNNING
    assert (third.num_computed_tokens, third.num_preemptions) == (0, 0)
    kept = list(second.token_ids)
    assert len(kept) > 12
    while second.num_computed_tokens == 0:
        assert third.num_computed_tokens == 0
        world.step()
    assert second.token_ids[: len(kept)] == kept
    world.drain()


def test_on_shortage_the_lowest_lane_gives_first_even_to_a_later_one() -> None:
    world = World(num_blocks=14, block_size=4)
    low = world.add(12, 30, lane="batch")
    world.step()
    high = world.add(12, 30, lane="interactive")

    while world.scheduler.num_preemptions == 0:
        world.step()

    assert (low.num_preemptions, high.num_preemptions) == (1, 0)
    world.drain()


def test_a_victim_is_in_no_plan_and_nobody_is_admitted_in_the_step_that_preempts() -> None:
    world = World(num_blocks=12, block_size=4)
    for _ in range(6):
        world.add(10, 40)
    steps = 0
    while world.live:
        running_before = world.scheduler.num_running
        preemptions = world.scheduler.num_preemptions
        plan = world.scheduler.schedule(world.now)
        gone = world.scheduler.take_preempted()
        assert not {row.sequence.id for row in plan.rows} & {s.id for s in gone}
        if world.scheduler.num_preemptions > preemptions:
            steps += 1
            assert world.scheduler.num_running == running_before - len(gone)
        world.commit(plan, world.runner.run(plan))
    assert steps > 0
    world.check_answers()


def test_blocks_of_a_victim_are_for_those_who_run_before_a_newcomer_gets_any() -> None:
    world = World(num_blocks=9, block_size=4)
    first, second = world.add(12, 30, lane="batch"), world.add(12, 30, lane="batch")
    while first.num_tokens < 17:
        world.step()
    newcomer = world.add(3, 1, lane="interactive")

    world.step()
    assert second.num_preemptions == 1
    assert newcomer.num_computed_tokens == 0
    world.step()
    assert newcomer.finish_reason is not None
    world.drain()


def test_a_sequence_is_preempted_a_bounded_number_of_times_while_others_can_give() -> None:
    world = World(num_blocks=12, block_size=2, max_num_seqs=4)
    sequences = [world.add(5, 17) for _ in range(12)]
    world.drain()

    assert world.scheduler.num_preemptions > 0
    assert max(s.num_preemptions for s in sequences) <= MAX_PREEMPTIONS + 1


@pytest.mark.parametrize("num_blocks", [9, 12, 15, 60])
def test_output_is_the_same_with_and_without_preemption(num_blocks: int) -> None:
    world = World(num_blocks=num_blocks, block_size=4)
    sequences = [world.add(7 + n, 20) for n in range(6)]
    world.drain()

    assert (world.scheduler.num_preemptions > 0) == (num_blocks < 60)
    for sequence in sequences:
        prompt = sequence.token_ids[: sequence.num_prompt_tokens]
        assert sequence.token_ids == answer(prompt, sequence.params, 10_000)[0]


def test_a_sequence_alone_in_the_pool_runs_to_the_last_slot() -> None:
    world = World(num_blocks=3, block_size=4)
    sequence = world.add(5, 1000)
    world.drain()

    assert sequence.num_tokens == 12
    assert sequence.finish_reason is FinishReason.LENGTH


# Endings


def test_a_stop_token_ends_a_sequence_and_is_its_last_token() -> None:
    world = World()
    every = frozenset(range(97))
    sequence = world.add(10, 20, stop=every)
    world.drain()

    assert sequence.num_output_tokens == 1
    assert sequence.finish_reason is FinishReason.STOP
    assert sequence.stop_token_id == sequence.token_ids[-1]


def test_no_stop_token_ends_a_sequence_before_its_minimum() -> None:
    world = World()
    sequence = world.add(10, 20, stop=frozenset(range(97)), min_tokens=7)
    world.drain()

    assert sequence.num_output_tokens == 8
    assert sequence.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(("max_tokens", "max_model_len", "expected"), [(5, 1000, 5), (500, 40, 30), (1, 1000, 1)])
def test_length_ends_a_sequence(max_tokens: int, max_model_len: int, expected: int) -> None:
    world = World(max_model_len=max_model_len)
    sequence = world.add(10, max_tokens)
    world.drain()

    assert sequence.num_output_tokens == expected
    assert sequence.finish_reason is FinishReason.LENGTH


def test_what_ended_gives_its_blocks_back_in_the_same_step() -> None:
    world = World()
    world.add(50, 1)
    world.step()

    assert world.pool.num_free == world.pool.num_blocks


@pytest.mark.parametrize("steps", [0, 1, 45])
def test_an_aborted_sequence_leaves_nothing_in_any_state(steps: int) -> None:
    world = World(prior=CPU)
    sequence, other = world.add(4000, 50), world.add(20, 5)
    for _ in range(steps):
        world.step()

    world.abort(sequence)

    assert world.scheduler.abort(sequence.id) is None
    world.drain()
    assert other.finish_reason is FinishReason.LENGTH
    assert world.dropped == [sequence]


def test_a_sequence_aborted_while_it_was_computed_gets_no_token() -> None:
    world = World()
    sequence, other = world.add(20, 5), world.add(20, 5)
    plan = world.scheduler.schedule(world.now)
    sampled = world.runner.run(plan)
    world.abort(sequence)
    world.commit(plan, sampled)

    assert sequence.num_output_tokens == 0
    assert other.num_output_tokens == 1
    world.drain()


def test_a_step_that_failed_drops_its_rows_and_the_others_go_on() -> None:
    world = World(max_num_seqs=2)
    failing = [world.add(20, 5) for _ in range(2)]
    waiting = world.add(30, 5)
    world.step(fails=True)

    assert world.dropped == failing
    world.drain()
    assert world.finished == [waiting]


# Deadlines


def test_what_expired_in_the_queue_is_dropped_before_it_is_computed() -> None:
    world = World(max_num_seqs=1)
    world.add(10, 30)
    world.step()
    late = world.add(10, 5, begin_in_s=0.05)
    world.now += 0.06
    plan = world.step()

    assert world.dropped == [late]
    assert late.num_computed_tokens == 0
    assert len(plan.rows) == 1
    world.drain()


def test_the_time_to_begin_does_not_end_what_has_begun_but_the_deadline_does() -> None:
    world = World(prior=CPU)
    begun = world.add(2000, 5, begin_in_s=0.05)
    ended = world.add(20, 500, end_in_s=0.3)
    world.step()
    world.step()
    world.now += 1.0
    world.step()

    assert world.dropped == [ended]
    world.drain()
    assert begun.finish_reason is FinishReason.LENGTH


def test_the_time_to_begin_does_not_end_what_was_preempted() -> None:
    world = World(num_blocks=10, block_size=10)
    low = world.add(80, 10, lane="batch", begin_in_s=0.01)
    world.step()
    world.add(60, 20, lane="interactive")
    world.step()
    assert low.status is SequenceStatus.WAITING
    world.now += 1.0
    world.drain()

    assert low.finish_reason is FinishReason.LENGTH


def test_nothing_to_do_is_an_empty_plan() -> None:
    world = World()

    assert world.scheduler.schedule(world.now).rows == ()
    assert world.scheduler.commit(world.scheduler.schedule(world.now), [], world.now) == []
