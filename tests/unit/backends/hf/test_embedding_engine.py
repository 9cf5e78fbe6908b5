"""The engine of embedding models, stepped by hand on an embedder that says what it was given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from backends.fairness import FairQueue, LaneShare
from backends.hf.embedding_engine import MAX_FAILED_STEPS, BatchLimits, EmbeddingEngine, Input
from backends.hf.messages import ERROR_DEADLINE, ERROR_FAILED, Output, Outputs, Stats, Submit
from backends.types import FinishReason

FRONT, OTHER = "front", "other"
TOKEN_S = 0.001


class Recorder:
    """An embedder: keeps the lengths of each batch, says them back as vectors, and fails while told to."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.fails = False
        self.meanwhile: Callable[[], None] = lambda: None

    def vectors(self, inputs: Sequence[Sequence[int]]) -> list[bytes]:
        self.meanwhile()
        if self.fails:
            raise RuntimeError("no such matrix")
        self.batches.append([len(each) for each in inputs])
        return [bytes([len(each)]) for each in inputs]


class Bench:
    """An engine whose clock stands still, and what it delivered to each front."""

    def __init__(self, inputs: int = 16, tokens: int = 1000, seconds: float = 10.0) -> None:
        self.now = 100.0
        self.embedder = Recorder()
        self.outputs: list[tuple[object, Output]] = []
        self.stats: list[Stats] = []
        queue: FairQueue[Input] = FairQueue({"interactive": LaneShare(0), "batch": LaneShare(2)})
        limits = BatchLimits(inputs=inputs, tokens=tokens, seconds=seconds)
        self.engine = EmbeddingEngine(self.embedder, queue, limits, self._deliver, TOKEN_S, lambda: self.now)

    def submit(
        self, number: int, length: int, lane: str = "batch", front: object = FRONT, deadline_at: float | None = None
    ) -> None:
        submit = Submit(id=number, prompt_ids=[7] * length, max_tokens=0, lane=lane, arrived_at=self.now)
        submit.deadline_at = deadline_at
        self.engine.submit(front, submit)

    def run(self) -> list[list[int]]:
        """The lengths of each batch until nothing is left."""
        while self.engine.step():
            pass
        return self.embedder.batches

    def ended(self, front: object = FRONT) -> dict[int, bytes | str | None]:
        """Vector or error of each input that ended, by id."""
        last = [each for origin, each in self.outputs if origin == front and not each.began]
        return {each.id: each.error or each.vector for each in last}

    def _deliver(self, origin: object | None, message: Outputs | Stats) -> None:
        if isinstance(message, Stats):
            self.stats.append(message)
            return
        self.outputs += [(origin, each) for each in message.outputs]


def test_each_input_says_that_it_is_read_and_then_gives_its_vector() -> None:
    bench = Bench()
    bench.submit(1, 3)
    bench.submit(2, 5)

    assert bench.run() == [[3, 5]]
    assert [(each.id, each.began, each.vector) for _, each in bench.outputs] == [
        (1, True, None),
        (2, True, None),
        (1, False, b"\x03"),
        (2, False, b"\x05"),
    ]
    assert all(each.finish_reason is FinishReason.STOP for _, each in bench.outputs[2:])
    assert bench.engine.num_live == 0


def test_a_short_input_never_waits_in_the_batch_of_a_long_one() -> None:
    bench = Bench()
    for number, length in enumerate([500, 40, 60, 30, 400]):
        bench.submit(number, length)

    assert bench.run() == [[30, 40, 60], [400, 500]]


@pytest.mark.parametrize(
    ("bench", "num_inputs"),
    [
        (Bench(inputs=2), 2),
        (Bench(tokens=120), 3),
        (Bench(seconds=4 * 40 * TOKEN_S), 4),
        (Bench(inputs=1, tokens=1, seconds=0.0), 1),
    ],
    ids=["inputs", "tokens", "seconds", "one always goes"],
)
def test_a_batch_keeps_each_of_its_bounds(bench: Bench, num_inputs: int) -> None:
    for number in range(5):
        bench.submit(number, 40)

    batches = bench.run()

    assert batches[0] == [40] * num_inputs
    assert sum(map(len, batches)) == 5


def test_lanes_go_in_order() -> None:
    bench = Bench(inputs=1)
    bench.submit(1, 4, lane="batch")
    bench.submit(2, 9, lane="interactive")

    assert bench.run() == [[9], [4]]


def test_an_input_whose_deadline_passed_is_not_computed() -> None:
    bench = Bench()
    bench.submit(1, 4, deadline_at=101.0)
    bench.submit(2, 4, deadline_at=103.0)
    bench.now = 102.0

    assert bench.run() == [[4]]
    assert bench.ended() == {1: ERROR_DEADLINE, 2: b"\x04"}


def test_what_is_aborted_while_it_waits_is_never_computed_nor_heard_of() -> None:
    bench = Bench()
    bench.submit(1, 4)
    bench.submit(2, 6)
    bench.engine.abort(FRONT, 1)
    bench.engine.abort(FRONT, 99)

    assert bench.run() == [[6]]
    assert bench.ended() == {2: b"\x06"}


def test_what_is_aborted_while_it_is_computed_ends_unheard() -> None:
    bench = Bench()
    bench.submit(1, 4)
    bench.submit(2, 6)
    bench.embedder.meanwhile = lambda: bench.engine.abort(FRONT, 1)

    bench.run()

    assert bench.ended() == {2: b"\x06"}
    assert bench.engine.num_live == 0


def test_a_front_that_is_gone_takes_its_own_inputs_along_and_no_others() -> None:
    bench = Bench()
    bench.submit(1, 4, front=FRONT)
    bench.submit(1, 6, front=OTHER)
    bench.engine.close(FRONT)

    assert bench.run() == [[6]]
    assert (bench.ended(FRONT), bench.ended(OTHER)) == ({}, {1: b"\x06"})


def test_a_step_that_fails_ends_its_inputs_and_the_next_ones_go_on() -> None:
    bench = Bench(inputs=1)
    bench.embedder.fails = True
    bench.submit(1, 4)
    bench.engine.step()
    bench.embedder.fails = False
    bench.submit(2, 6)

    bench.run()

    assert bench.ended() == {1: ERROR_FAILED, 2: b"\x06"}


def test_steps_that_fail_in_a_row_end_the_engine_and_a_good_one_forgives() -> None:
    bench = Bench(inputs=1)
    for number in range(2 * MAX_FAILED_STEPS):
        bench.submit(number, 4)

    for outcome in (*[True] * (MAX_FAILED_STEPS - 1), False, *[True] * (MAX_FAILED_STEPS - 1)):
        bench.embedder.fails = outcome
        bench.engine.step()
    bench.embedder.fails = True
    with pytest.raises(RuntimeError, match="in a row"):
        bench.engine.step()


def test_a_lane_that_is_not_known_and_an_id_used_twice_hurt_nobody_else() -> None:
    bench = Bench()
    bench.submit(1, 4, lane="express")
    bench.submit(2, 6)
    bench.submit(2, 8)

    assert bench.run() == [[6]]
    assert bench.ended() == {1: ERROR_FAILED, 2: b"\x06"}


def test_statistics_count_what_was_read() -> None:
    bench = Bench()
    bench.submit(1, 3)
    bench.submit(2, 5)
    bench.run()
    bench.now += 1
    bench.engine.step()

    assert [(each.prompt_tokens, each.steps, each.waiting) for each in bench.stats] == [(0, 0, 0), (8, 1, 0)]
