"""One request through lane and backend, in virtual time: order, bounds, deadlines, and cancels at any moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, cast

import pytest
from msgspec import Struct
from msgspec.structs import replace

from backends.base import Backend
from backends.errors import BackendFailed, DeadlineExceeded, ModelNotFound
from backends.types import BackendHealth, Chunk, FinishReason, GenerateRequest, ModelCard, SamplingParams, Usage
from gateway.billing import Billing, Order
from gateway.counting import Counter
from gateway.dispatch import Ask, Dispatcher
from gateway.errors import LEFT, InvalidBody, LaneFull, LimitReached, PermissionDenied, StoreUnavailable, WaitedTooLong
from gateway.events import Kind, Line, Settled
from gateway.lanes import DEFAULT_LANES, LaneOptions, Lanes
from gateway.ledger import Ledger
from gateway.limits import LimitOptions, Limits
from gateway.metrics import Metrics
from gateway.routing import Routing
from gateway.rules import Price, Rule, Scope
from gateway.tenants import ANONYMOUS, VirtualKey
from tests.unit.gateway.instant_writer import InstantWriter

Run = Callable[[Coroutine[Any, Any, Any]], Any]
USAGE = Usage(prompt_tokens=1, completion_tokens=1)
END = Chunk(usage=USAGE, text="x", finish_reason=FinishReason.STOP)


class Work:
    """A backend that is busy with each request for the seconds that its model's name says, `inf` for ever."""

    def __init__(self, capacity: int | None, *, greets: bool = True, finishes: bool = True) -> None:
        self.capacity = capacity
        self.models = [ModelCard(id="m", created=0)]
        self.busy_s = 1.0
        self.order: list[str] = []
        self.running = self.most_running = 0
        self._greets, self._finishes = greets, finishes

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        self.order.append(request.request_id)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if self._greets:
                yield Chunk(usage=Usage(prompt_tokens=1))
            await asyncio.sleep(self.busy_s)
            if self._finishes:
                yield END
        finally:
            self.running -= 1

    def health(self) -> BackendHealth:
        return BackendHealth(ready=True)


class OneModel(Struct):
    """A registry that knows the model `m`."""

    backends: Mapping[str, Backend]

    def resolve(self, model: str) -> Backend:
        if model != "m":
            raise ModelNotFound("no")
        return self.backends["work"]

    def models(self) -> list[ModelCard]:
        return list(self.backends["work"].models)


class Terms:
    """The limits and the price that hold for every request."""

    def __init__(self) -> None:
        self.limits: tuple[Rule, ...] = ()
        self.model_price: Price | None = None

    def rules(self, key: VirtualKey, model: str) -> tuple[Rule, ...]:
        return self.limits

    def price(self, model: str) -> Price | None:
        return self.model_price


class Bench:
    """A dispatcher over one `Work`, with the real books but a writer that is done at once."""

    def __init__(self, work: Work, **lanes: LaneOptions) -> None:
        clock = asyncio.get_running_loop().time
        self.work = work
        self.lanes = Lanes({**DEFAULT_LANES, **lanes}, clock)
        self.lanes.open("work", work.capacity)
        self.metrics = Metrics(clock)
        registry = OneModel({"work": cast(Backend, work)})
        self.writer = InstantWriter()
        self.ledger = Ledger(self.writer.as_writer(), "run")
        self.ledger.start()
        self.limits = Limits(LimitOptions(), clock)
        self.terms = Terms()
        billing = Billing(self.terms, self.limits, self.ledger, Counter(), clock=clock)
        self.dispatcher = Dispatcher(Routing(registry), self.lanes, billing, self.metrics, clock)
        self._count = 0

    def request(self, lane: str = "standard", **fields: Any) -> GenerateRequest:
        self._count += 1
        name = f"{lane}-{self._count}"
        return GenerateRequest(request_id=name, route="completions", model="m", lane=lane, prompts=("hi",), **fields)

    def order(self, request: GenerateRequest) -> Order:
        return Order(key=VirtualKey(id="key_1", tenant=request.tenant), request=request)

    async def ask(self, request: GenerateRequest) -> list[Chunk]:
        async with aclosing(self.dispatcher.job(self.order(request)).chunks()) as chunks:
            return [chunk async for chunk in chunks]

    def start(self, request: GenerateRequest) -> asyncio.Task[list[Chunk]]:
        return asyncio.create_task(self.ask(request))

    def is_empty(self) -> bool:
        counts = [*self.lanes.waiting().values(), *self.lanes.running().values(), self.work.running]
        return not any(counts) and not self.ledger.entries() and not self.limits.open_reservations()

    def outcomes(self) -> list[str]:
        return [event.outcome for event in self.writer.events(Kind.SETTLE)]


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("capacity", [None, 1])
def test_an_answer_comes_through_and_nothing_stays(run_virtually: Run, capacity: int | None) -> None:
    async def main() -> None:
        bench = Bench(Work(capacity))

        chunks = await bench.ask(bench.request())

        assert [chunk.text for chunk in chunks] == ["", "x"]
        assert bench.is_empty()
        assert bench.outcomes() == ["ok"]
        assert b'laneway_tokens_total{kind="completion"} 1.0' in bench.metrics.render()

    run_virtually(main())


def test_nothing_is_acquired_before_the_first_pull(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1))

        chunks = bench.dispatcher.job(bench.order(bench.request())).chunks()

        assert bench.is_empty()
        await chunks.aclose()
        assert bench.work.order == []

    run_virtually(main())


def test_an_unknown_model_is_refused_before_the_lane(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1))
        request = GenerateRequest(request_id="r", route="chat", model="nope")

        with pytest.raises(ModelNotFound):
            await bench.ask(request)

        assert bench.is_empty()

    run_virtually(main())


def test_two_hundred_at_once_keep_to_the_slots_and_to_the_order_of_lanes(run_virtually: Run) -> None:
    async def main() -> None:
        lanes = {name: LaneOptions(priority=at, floor=0) for at, name in enumerate(DEFAULT_LANES)}
        bench = Bench(Work(4), **lanes)
        names = ["batch", "standard", "interactive"]

        tasks = [bench.start(bench.request(names[at % 3])) for at in range(200)]
        await asyncio.gather(*tasks)

        served = [name.split("-")[0] for name in bench.work.order[4:]]
        assert served == sorted(served, key=["interactive", "standard", "batch"].index)
        assert bench.work.most_running == 4
        assert bench.is_empty()

    run_virtually(main())


def test_a_backend_that_schedules_itself_gets_all_of_them_at_once(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(None))

        await asyncio.gather(*(bench.start(bench.request()) for _ in range(50)))

        assert bench.work.most_running == 50

    run_virtually(main())


@pytest.mark.parametrize("capacity", [None, 1])
def test_a_full_lane_refuses_at_once_and_says_when_to_come_back(run_virtually: Run, capacity: int | None) -> None:
    async def main() -> None:
        bench = Bench(Work(capacity, greets=False), batch=LaneOptions(priority=2, max_queue=3))
        waiting = [bench.start(bench.request("batch")) for _ in range(3 if capacity is None else 4)]
        await settle()

        with pytest.raises(LaneFull) as caught:
            await bench.ask(bench.request("batch"))

        assert caught.value.retry_after_s is not None
        assert 1 <= caught.value.retry_after_s <= 60
        assert len(await bench.ask(bench.request("interactive"))) == 1
        await asyncio.gather(*waiting)
        assert bench.is_empty()

    run_virtually(main())


def test_the_time_to_come_back_follows_the_pace_of_the_lane(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1), standard=LaneOptions(priority=1, max_queue=10, max_wait=1000))
        bench.work.busy_s = 3
        tasks = [bench.start(bench.request()) for _ in range(11)]
        await asyncio.sleep(12)  # four have begun, three seconds apart
        tasks += [bench.start(bench.request()) for _ in range(4)]
        await settle()

        with pytest.raises(LaneFull) as caught:
            await bench.ask(bench.request())

        assert caught.value.retry_after_s is not None
        assert 5 < caught.value.retry_after_s <= 30
        await asyncio.gather(*tasks)

    run_virtually(main())


def test_a_wait_ends_at_max_wait_and_is_never_computed(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1), standard=LaneOptions(priority=1, max_wait=10))
        bench.work.busy_s = 25
        running = bench.start(bench.request())
        await settle()
        began = asyncio.get_running_loop().time()

        with pytest.raises(WaitedTooLong) as caught:
            await bench.ask(bench.request())

        assert asyncio.get_running_loop().time() - began == pytest.approx(10)
        assert caught.value.retry_after_s
        assert len(await running) == 2, "what runs longer than max_wait goes on"
        assert bench.work.order == ["standard-1"]
        assert bench.is_empty()

    run_virtually(main())


def test_a_slot_that_comes_free_as_a_wait_ends_goes_to_one_who_still_waits(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1), standard=LaneOptions(priority=1, max_wait=10), batch=LaneOptions(priority=2))
        bench.work.busy_s = 10
        running = bench.start(bench.request())
        await settle()
        late, other = bench.start(bench.request()), bench.start(bench.request("batch"))

        await asyncio.wait([running, late, other])

        assert isinstance(late.exception(), WaitedTooLong) or bench.work.order[1] == "standard-2"
        assert len(other.result()) == 2
        assert bench.is_empty()

    run_virtually(main())


@pytest.mark.parametrize(("greets", "ends"), [(True, False), (False, True)])
def test_a_wait_lasts_until_the_first_chunk_even_an_empty_one(run_virtually: Run, greets: bool, ends: bool) -> None:
    async def main() -> None:
        bench = Bench(Work(None, greets=greets), standard=LaneOptions(priority=1, max_wait=10))
        bench.work.busy_s = 100
        task = bench.start(bench.request())

        await asyncio.wait([task])

        assert isinstance(task.exception(), WaitedTooLong) == ends
        assert bench.is_empty()

    run_virtually(main())


@pytest.mark.parametrize("deadline_s", [5, 20])
def test_the_callers_deadline_ends_it_waiting_or_running(run_virtually: Run, deadline_s: float) -> None:
    async def main() -> None:
        bench = Bench(Work(1))
        bench.work.busy_s = 12
        first = bench.start(bench.request())
        await settle()
        now = asyncio.get_running_loop().time()

        with pytest.raises(DeadlineExceeded):
            await bench.ask(bench.request(deadline_at=now + deadline_s))

        assert asyncio.get_running_loop().time() - now == pytest.approx(deadline_s)
        await first
        assert bench.is_empty()

    run_virtually(main())


def test_a_backend_that_stops_without_a_finish_has_failed(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1, finishes=False))

        with pytest.raises(BackendFailed):
            await bench.ask(bench.request())
        with pytest.raises(BackendFailed):
            await bench.ask(bench.request(sampling=SamplingParams(n=2)))

        assert bench.is_empty()

    run_virtually(main())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("capacity", [4, None])
def test_random_cancels_lose_no_slot(run_virtually: Run, seed: int, capacity: int | None) -> None:
    async def main() -> None:
        chance = random.Random(seed)
        bench = Bench(Work(capacity), standard=LaneOptions(priority=1, max_wait=20))
        tasks = []
        for _ in range(300):
            bench.work.busy_s = chance.choice([0, 0, 0.5, 3])
            tasks.append(bench.start(bench.request(chance.choice(list(DEFAULT_LANES)))))
            if chance.random() < 0.7:
                chance.choice(tasks).cancel()
            await asyncio.sleep(chance.choice([0, 0, 0, 0.1]))
        await asyncio.wait(tasks)

        assert capacity is None or bench.work.most_running <= capacity
        assert bench.is_empty()
        bench.work.busy_s = 1
        assert len(await asyncio.gather(*(bench.start(bench.request()) for _ in range(4)))) == 4

    run_virtually(main())


def test_a_slot_given_to_a_request_that_is_cancelled_in_the_same_moment_goes_on(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1))
        first = bench.start(bench.request())
        await settle()
        unlucky, next_one = bench.start(bench.request()), bench.start(bench.request())
        await settle()

        first.cancel()
        await asyncio.sleep(0)
        assert bench.lanes.waiting()["standard"] == 1, "the slot was handed over"
        unlucky.cancel()  # its slot was set a moment ago, its task has not run since

        assert len(await next_one) == 2
        assert bench.is_empty()

    run_virtually(main())


def test_a_lane_is_taken_from_the_header_else_the_wish_else_the_key(run_virtually: Run) -> None:
    async def main() -> None:
        dispatcher = Bench(Work(1)).dispatcher
        key = VirtualKey(id="k", tenant="t", weight=2, lanes=("standard", "batch"), default_lane="batch")

        def lane(**ask: Any) -> str:
            return dispatcher.caller(key, Ask(request_id="r", **ask)).lane

        assert lane() == "batch"
        assert lane(lane_wish="standard") == "standard"
        assert lane(lane_wish="interactive") == "batch"
        assert lane(lane="standard", lane_wish="interactive") == "standard"
        with pytest.raises(PermissionDenied):
            lane(lane="interactive")
        with pytest.raises(InvalidBody):
            lane(lane="fast")

    run_virtually(main())


def test_a_caller_carries_tenant_weight_and_deadlines(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1))
        now = asyncio.get_running_loop().time()

        caller = bench.dispatcher.caller(ANONYMOUS, Ask(request_id="r", timeout_s=5))

        assert (caller.request_id, caller.tenant, caller.weight) == ("r", "default", 1)
        assert (caller.first_token_at, caller.deadline_at) == (None, now + 5)

    run_virtually(main())


def test_tenants_share_the_slots_by_weight(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1))
        greedy = [bench.start(bench.request(tenant="greedy")) for _ in range(40)]
        await settle()
        modest = [bench.start(bench.request(tenant="modest", weight=3)) for _ in range(10)]

        await asyncio.wait(modest)

        assert sum(task.done() for task in greedy) < 20, "the flood that came first did not go first"
        await asyncio.wait(greedy)
        assert bench.is_empty()

    run_virtually(main())


def test_a_deadline_for_the_first_token_ends_with_the_first_token(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1))
        bench.work.busy_s = 5
        now = asyncio.get_running_loop().time()

        assert len(await bench.ask(bench.request(first_token_at=now + 6))) == 2
        with pytest.raises(DeadlineExceeded):
            await bench.ask(bench.request(first_token_at=now + 8))

        assert bench.outcomes() == ["ok", "deadline"]
        assert bench.is_empty()

    run_virtually(main())


def test_the_clients_patience_bounds_a_stream_to_its_first_byte_and_a_whole_answer_to_its_end(
    run_virtually: Run,
) -> None:
    async def main() -> None:
        dispatcher = Bench(Work(1)).dispatcher
        now = asyncio.get_running_loop().time()

        streamed = dispatcher.caller(ANONYMOUS, Ask(request_id="r", silence_s=5, timeout_s=60, stream=True))
        whole = dispatcher.caller(ANONYMOUS, Ask(request_id="r", silence_s=5, timeout_s=60))

        assert (streamed.first_token_at, streamed.deadline_at) == (now + 5, now + 60)
        assert (whole.first_token_at, whole.deadline_at) == (None, now + 5)

    run_virtually(main())


def test_work_whose_caller_will_be_gone_is_never_begun(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1))
        bench.work.busy_s = 30
        running = bench.start(bench.request())
        await settle()
        now = asyncio.get_running_loop().time()

        with pytest.raises(DeadlineExceeded):
            await bench.ask(bench.request(first_token_at=now + 10))

        await running
        assert bench.work.order == ["standard-1"]

    run_virtually(main())


@pytest.mark.parametrize("ends_s", [0.5, 1.5, 3.5])
def test_however_a_request_ends_it_is_settled_once_and_leaves_no_slot_held(run_virtually: Run, ends_s: float) -> None:
    """Cancelled in the lane, at work, and after its end."""

    async def main() -> None:
        bench = Bench(Work(1))
        bench.terms.limits = (Rule(id="lim_1", scope=Scope("key", "key_1"), meter="concurrency", amount=2),)
        running = bench.start(bench.request())
        task = bench.start(bench.request())
        await asyncio.sleep(ends_s)
        task.cancel(LEFT)
        await asyncio.wait([task, running])

        assert len(bench.outcomes()) == 2
        assert len({event.request_id for event in bench.writer.events(Kind.SETTLE)}) == 2
        assert ("client_abort" in bench.outcomes()) == (ends_s < 3)
        assert bench.is_empty()
        assert len(await bench.ask(bench.request())) == 2

    run_virtually(main())


def test_a_server_that_stops_is_not_a_client_that_left(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1))
        task = bench.start(bench.request())
        await settle()
        task.cancel()
        await asyncio.wait([task])

        assert bench.outcomes() == ["stopped"]

    run_virtually(main())


def test_a_refused_request_consumes_nothing_and_is_no_event(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(2))
        concurrency = Rule(id="lim_1", scope=Scope("key", "key_1"), meter="concurrency", amount=1)
        requests = Rule(id="lim_2", scope=Scope("key", "key_1"), meter="rpm", amount=2)
        bench.terms.limits = (requests, concurrency)
        running = bench.start(bench.request())
        await settle()

        with pytest.raises(LimitReached):
            await bench.ask(bench.request())
        await running

        assert len(await bench.ask(bench.request())) == 2, "the refused one took nothing of the two"
        with pytest.raises(LimitReached) as caught:
            await bench.ask(bench.request())
        assert caught.value.report.meter == "rpm"
        assert len(bench.writer.events(Kind.ADMIT)) == 2

    run_virtually(main())


def test_a_request_that_was_shed_gives_back_what_it_reserved(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1), standard=LaneOptions(priority=1, max_queue=0))
        bench.terms.limits = (Rule(id="lim_1", scope=Scope("key", "key_1"), meter="rpm", amount=2),)
        running = bench.start(bench.request())
        await settle()
        for _ in range(3):
            with pytest.raises(LaneFull):
                await bench.ask(bench.request())
        await running

        assert len(await bench.ask(bench.request())) == 2
        assert bench.outcomes() == ["shed", "shed", "shed", "ok", "ok"]

    run_virtually(main())


def test_nothing_begins_that_could_not_be_recorded(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1))
        bench.writer.is_accepting = False

        with pytest.raises(StoreUnavailable):
            await bench.ask(bench.request())

        assert bench.work.order == []
        assert bench.is_empty()

    run_virtually(main())


def test_a_backend_that_reports_no_usage_is_counted(run_virtually: Run) -> None:
    class Silent(Work):
        async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
            missing = Usage(source="missing")
            yield Chunk(usage=missing)
            yield Chunk(usage=missing, text="x" * 40, finish_reason=FinishReason.STOP)

    async def main() -> None:
        bench = Bench(Silent(1))

        chunks = await bench.ask(bench.request())

        (settled,) = bench.writer.events(Kind.SETTLE)
        assert (settled.source, settled.completion_tokens) == ("estimated", 10)
        assert chunks[-1].usage.completion_tokens == 10

    run_virtually(main())


def test_a_failure_that_nobody_received_anything_of_costs_nothing(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1, finishes=False))
        bench.terms.model_price = Price(
            version=1, model="m", prompt_nano=10**9, completion_nano=10**9, cached_nano=10**9
        )

        with pytest.raises(BackendFailed):
            await bench.ask(bench.request())

        (settled,) = bench.writer.events(Kind.SETTLE)
        assert (settled.outcome, settled.source, settled.cost_nano) == ("backend_error", "none", 0)

    run_virtually(main())


@pytest.mark.parametrize("num_pulled", [1, 2])
def test_the_line_of_a_batch_that_is_not_answered_costs_nothing_however_far_it_came(
    run_virtually: Run, num_pulled: int
) -> None:
    async def main() -> None:
        bench = Bench(Work(1))
        bench.terms.model_price = Price(
            version=1, model="m", prompt_nano=10**9, completion_nano=10**9, cached_nano=10**9
        )
        line = Line(batch_id="batch_1", number=1, request_id="standard-1", status=200, body=b"{}")
        order = replace(bench.order(bench.request()), line=lambda: line, line_name="batch_1/1")

        async with aclosing(bench.dispatcher.job(order).chunks()) as chunks:
            for _ in range(num_pulled):
                await anext(chunks)

        (settled,) = bench.writer.events(Kind.SETTLE)
        assert (settled.outcome, settled.prompt_tokens, settled.cost_nano) == ("client_abort", 0, 0)
        assert all(record.line is None for record in bench.writer.records if isinstance(record, Settled))
        assert bench.is_empty()

    run_virtually(main())


def test_what_was_used_is_priced_when_it_is_settled(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1))
        bench.terms.model_price = Price(
            version=7, model="m", prompt_nano=3_000_000, completion_nano=5_000_000, cached_nano=0
        )
        await bench.ask(bench.request())

        (settled,) = bench.writer.events(Kind.SETTLE)
        assert (settled.cost_nano, settled.price_version) == (8, 7)

    run_virtually(main())


def test_a_key_may_use_its_models_only(run_virtually: Run) -> None:
    async def main() -> None:
        bench = Bench(Work(1))
        request = bench.request()

        with pytest.raises(ModelNotFound):
            bench.dispatcher.job(Order(key=VirtualKey(id="k", models=("other",)), request=request))

    run_virtually(main())
