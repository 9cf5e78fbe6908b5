"""Thousands of calls that end in every way leave nothing behind: no reservation, no place, no memory."""

from __future__ import annotations

import asyncio
import gc
import random
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Struct

from gateway.control import ask, flush
from gateway.events import Kind
from gateway.lanes import DEFAULT_LANES, LaneOptions
from gateway.rules import Scope
from gateway.state import ServerState
from tests.integration.front.books import Books, chat, says
from tests.integration.front.front_server import CHAT, Front, eventually, running

NUM_FIRST, NUM_COUNTED, NUM_TRACED = 300, 1300, 200
NUM_CALLERS = 16
MOST_OBJECTS = 1000  # when a call leaves anything behind, it leaves dozens
MOST_BYTES = 100_000


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with closing(Books(tmp_path)) as books:
        yield books


class Plan(Struct, frozen=True):
    """A way in which a call may go. `reads` is how many bytes the caller reads before it leaves, if it does."""

    body: dict[str, Any]
    headers: dict[str, str] = {}
    reads: int | None = None


SCRIPT = says(6, eos=True)
SLOW = says(6, eos=True, delay_s=0.005)
PLANS = [
    Plan(chat(script=SCRIPT)),
    Plan(chat(stream=True, script=SCRIPT)),
    Plan(chat(40, stream=True, script=SLOW, max_tokens=4)),
    Plan(chat(stream=True, script=SLOW), reads=1),
    Plan(chat(stream=True, script=SLOW), reads=600),
    Plan(chat(stream=True, script=says(6, first_delay_s=60)), reads=0),
    Plan(chat(script=says(6, first_delay_s=60)), reads=0),
    Plan(chat(script={"fail": {"kind": "crash"}})),
    Plan(chat(stream=True, script=says(6, fail={"kind": "end", "after_tokens": 2}))),
    Plan(chat(script={"fail": {"kind": "overloaded"}})),
    Plan(chat(stream=True, script=says(6, fail={"kind": "hang", "after_tokens": 1})), {"X-Request-Timeout": "0.02"}),
    Plan(chat(script=SCRIPT), {"X-Laneway-Lane": "batch"}),
    Plan(chat(model="made-up")),
    Plan(chat(stream=True, script={"usage": "missing", "tokens": ["word"] * 5})),
    Plan(chat(max_tokens="many")),
]


async def call(client: httpx.AsyncClient, plan: Plan) -> str:
    """One call; the status, or that the caller left."""
    try:
        async with asyncio.timeout(0.03 if plan.reads == 0 else 30):
            async with client.stream("POST", CHAT, json=plan.body, headers=plan.headers) as reply:
                num_bytes = 0
                async for piece in reply.aiter_bytes():
                    num_bytes += len(piece)
                    if plan.reads is not None and num_bytes >= plan.reads:
                        return "left"
                return str(reply.status_code)
    except TimeoutError:
        return "left"


async def call_again_and_again(front: Front, keys: list[dict[str, str]], num_calls: int, seed: int) -> Counter[str]:
    chance = random.Random(seed)
    outcomes: Counter[str] = Counter()
    left = iter(range(num_calls))

    async def caller(number: int) -> None:
        async with httpx.AsyncClient(base_url=front.url, headers=keys[number % len(keys)], timeout=30) as client:
            for _ in left:
                outcomes[await call(client, chance.choice(PLANS))] += 1

    async with asyncio.TaskGroup() as group:
        for number in range(NUM_CALLERS):
            group.create_task(caller(number))
    return outcomes


def num_objects() -> int:
    collect()
    return len(gc.get_objects())


def num_bytes_of_ours() -> int:
    """Allocated by our own lines since the tracing began, and still there."""
    collect()
    ours = [tracemalloc.Filter(True, f"*/{folder}/*") for folder in ("gateway", "backends")]
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(ours).traces)


def collect() -> None:
    for _ in range(3):
        gc.collect()


def assert_nothing_is_open(front: Front, books: Books) -> None:
    def state() -> ServerState:
        return ask(books.store, "state", ServerState)

    eventually(lambda: not state().requests and front.count("running") == 0, "all have ended")
    eventually(lambda: not front.server.server_state.connections, "all connections are closed")
    flush(books.store)
    now = state()
    assert [(lane.running, lane.waiting) for lane in now.lanes.values()] == [(0, 0)] * 3
    for limit in now.limits:
        assert limit.reserved == 0, limit
        assert limit.used == 0 or limit.rule.meter != "concurrency", limit
    assert (now.writer.queued, now.writer.rejected) == (0, 0)
    windows = ask(books.store, "windows", list[tuple[str, int, int, int]])
    assert windows
    for limit_id, _, used, durable in windows:
        assert used == durable, limit_id


def test_thousands_of_calls_that_end_in_every_way_leave_nothing_behind(
    books: Books, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """BerriAI/litellm#12685, #27954, #38193, #6404: memory climbs for days."""
    caplog.set_level("CRITICAL", "laneway")  # pytest would keep every line, and what the line was about
    keys = [books.key(rpm=10**6, tpm=10**9, concurrency=10), books.key("bolt"), books.key("tiny", tpm=1)]
    for scope, meter in ((Scope("tenant", "acme"), "tokens"), (Scope("tenant", "bolt"), "usd")):
        books.accounts.set_limit(scope, meter, 10**12, period="day")  # type: ignore[arg-type]
    books.price("*")
    lanes = {**DEFAULT_LANES, "batch": LaneOptions(priority=2, max_queue=1)}
    settings = books.settings(lanes=lanes, backends={"test": {"type": "scripted", "capacity": 8}})
    outcomes: Counter[str] = Counter()

    with running(settings, tmp_path) as front:

        def do(num_calls: int) -> None:
            outcomes.update(asyncio.run(call_again_and_again(front, keys, num_calls, seed=num_calls)))
            assert_nothing_is_open(front, books)

        do(NUM_FIRST)
        objects = num_objects()
        do(NUM_COUNTED)
        more_objects = num_objects() - objects
        tracemalloc.start()
        try:
            do(NUM_TRACED)  # what takes the place of what was there before is seen as new
            num_bytes = num_bytes_of_ours()
            do(NUM_TRACED)
            more_bytes = num_bytes_of_ours() - num_bytes
        finally:
            tracemalloc.stop()

    assert outcomes.keys() >= {"200", "400", "404", "429", "500", "503", "left"}
    assert more_objects < MOST_OBJECTS
    assert more_bytes < MOST_BYTES
    num_refused = sum(outcomes[status] for status in ("400", "404", "429"))
    num_settled = len(books.events(Kind.SETTLE))
    assert outcomes.total() - num_refused - outcomes["left"] <= num_settled <= outcomes.total() - num_refused
    books.assert_proven()
