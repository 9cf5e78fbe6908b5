"""What requests in flight tell the writer, when, and what their tasks wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import func, select

from backends.types import Usage
from gateway.errors import StoreUnavailable
from gateway.events import Admitted, Answer, Charge, Detail, Event, Kind, Noted, Record, Settled
from gateway.history import detail_of
from gateway.intake import SIDES
from gateway.ledger import PATIENCE_S, End, Entry, Ledger, Opening
from gateway.recovery import recover
from gateway.store import Store
from gateway.tables import ledger_events
from gateway.verify import verify
from gateway.writer import Writer
from tests.ledger_records import NOON, PRICE, add_price, request_id

Run = Callable[[Coroutine[Any, Any, None]], None]

USED = Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=60, reasoning_tokens=5)
CHARGES = (Charge("lim", NOON, 60),)
OK = End(
    outcome="ok",
    source="reported",
    usage=USED,
    cost_nano=PRICE.cost(100, 20, 60),
    charges=CHARGES,
    wait_ms=3,
    ttft_ms=40,
    total_ms=900,
)


def opening(number: int = 1, **changes: Any) -> Opening:
    fields: dict[str, Any] = {
        "request_id": request_id(number),
        "tenant": "acme",
        "project": "default",
        "key_id": "key_1",
        "model": "m",
        "route": "chat",
        "lane": "standard",
        "prompt_tokens": 100,
        "completion_tokens": 500,
        "cost_nano": PRICE.cost(100, 500),
        "price_version": PRICE.version,
        "charges": (Charge("lim", NOON, 600),),
    }
    return Opening(**(fields | changes))


class SlowWriter:
    """Makes durable what it was told only when a test says so: in a test of times, a thread would have its own."""

    def __init__(self) -> None:
        self.is_accepting = True
        self.groups: list[list[Record]] = []
        self._waiting: list[Callable[[], None]] = []

    def write_ahead(self, records: Sequence[Record]) -> bool:
        return False

    def submit(self, records: Sequence[Record], done: Callable[[], None] | None = None) -> None:
        self.groups.append(list(records))
        if done is not None:
            self._waiting.append(done)

    def commit(self) -> None:
        """All of it is one group, and durable."""
        waiting, self._waiting = self._waiting, []
        for done in waiting:
            done()

    @property
    def kinds(self) -> list[list[Kind]]:
        return [[record.event.kind for record in group] for group in self.groups]

    @property
    def events(self) -> list[Event]:
        return [record.event for group in self.groups for record in group]


@pytest.fixture
def writer() -> SlowWriter:
    return SlowWriter()


@pytest.fixture
def ledger(writer: SlowWriter, now: Callable[[], float]) -> Ledger:
    return Ledger(cast(Writer, writer), "run", progress_s=2.0, clock=now)


async def soon() -> None:
    """Let everything run that can."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_an_admit_is_told_five_milliseconds_later_with_what_came_meanwhile(
    run_virtually: Run, ledger: Ledger, writer: SlowWriter
) -> None:
    async def main() -> None:
        ledger.start()
        ledger.admit(opening(1))
        await asyncio.sleep(0.003)
        ledger.admit(opening(2))
        assert writer.groups == []
        await asyncio.sleep(0.003)
        assert writer.kinds == [[Kind.ADMIT, Kind.ADMIT]]

    run_virtually(main())


def test_a_settle_is_told_at_once_with_everything_before_it_in_order(
    run_virtually: Run, ledger: Ledger, writer: SlowWriter
) -> None:
    async def main() -> None:
        ledger.start()
        first, second = ledger.admit(opening(1)), ledger.admit(opening(2))
        second.attempt("a", 0)
        second.attempt_failed("BackendFailed")
        first.settle_later(OK)
        assert writer.kinds == [[Kind.ADMIT, Kind.ADMIT, Kind.ATTEMPT, Kind.SETTLE]]
        assert [type(record) for record in writer.groups[0]] == [Admitted, Admitted, Noted, Settled]
        await asyncio.sleep(1)
        assert len(writer.groups) == 1

    run_virtually(main())


def test_a_settle_returns_when_it_is_durable(run_virtually: Run, ledger: Ledger, writer: SlowWriter) -> None:
    async def main() -> None:
        ledger.start()
        answer = Answer(
            key_id="key_1",
            name_digest=b"n",
            body_digest=b"b",
            request_id=request_id(1),
            at=0,
            content_type="application/json",
            body=b"{}",
        )
        settling = asyncio.create_task(ledger.admit(opening()).settle(OK, answer))
        await asyncio.sleep(PATIENCE_S - 1)
        assert not settling.done()
        writer.commit()
        await soon()
        assert settling.done()
        settled = writer.groups[0][-1]
        assert isinstance(settled, Settled)
        assert (settled.charges, settled.answer) == (CHARGES, answer)

    run_virtually(main())


def test_one_call_wakes_all_settles_of_a_group(
    run_virtually: Run, ledger: Ledger, writer: SlowWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        ledger.start()
        settling = [asyncio.create_task(ledger.admit(opening(number)).settle(OK)) for number in range(50)]
        await soon()
        loop, wakes = asyncio.get_running_loop(), []
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda call: wakes.append(loop.call_soon(call)))
        writer.commit()
        await asyncio.gather(*settling)
        assert len(wakes) == 1

    run_virtually(main())


def test_only_the_first_settle_counts(run_virtually: Run, ledger: Ledger, writer: SlowWriter) -> None:
    async def main() -> None:
        ledger.start()
        entry = ledger.admit(opening())
        entry.settle_later(OK)
        entry.settle_later(End(outcome="client_abort", source="none", usage=Usage()))
        again = asyncio.create_task(entry.settle(OK))
        await soon()
        assert not again.done()
        writer.commit()
        await again
        assert [event.outcome for event in writer.events if event.kind == Kind.SETTLE] == ["ok"]

    run_virtually(main())


def test_a_settle_whose_wait_is_cancelled_is_told_once_and_harms_no_other(
    run_virtually: Run, ledger: Ledger, writer: SlowWriter
) -> None:
    async def main() -> None:
        ledger.start()
        entry = ledger.admit(opening(1))
        cancelled = asyncio.create_task(entry.settle(OK))
        other = asyncio.create_task(ledger.admit(opening(2)).settle(OK))
        await soon()
        cancelled.cancel()
        await soon()
        entry.settle_later(End(outcome="client_abort", source="none", usage=Usage()))
        writer.commit()
        await other
        assert cancelled.cancelled()
        assert [event.request_id for event in writer.events if event.kind == Kind.SETTLE] == [
            request_id(1),
            request_id(2),
        ]

    run_virtually(main())


def test_the_admit_says_what_was_reserved(run_virtually: Run, ledger: Ledger, writer: SlowWriter) -> None:
    async def main() -> None:
        ledger.start()
        ledger.admit(opening(shown_id="mine", stream=True)).settle_later(OK)

    run_virtually(main())

    assert writer.events[0] == Event(
        request_id=request_id(1),
        kind=Kind.ADMIT,
        seq=0,
        at=1_000_000,
        run_id="run",
        tenant="acme",
        project="default",
        key_id="key_1",
        model="m",
        route="chat",
        lane="standard",
        prompt_tokens=100,
        completion_tokens=500,
        cost_nano=PRICE.cost(100, 500),
        price_version=1,
        detail='{"shown_id":"mine","stream":true,"charges":[["lim",1789992000,600]]}',
    )


def test_the_settle_says_all_of_the_request_again(run_virtually: Run, ledger: Ledger, writer: SlowWriter) -> None:
    async def main() -> None:
        ledger.start()
        entry = ledger.admit(opening(shown_id="mine"))
        entry.attempt("gpu", 0.003)
        await asyncio.sleep(0.9)
        entry.settle_later(OK)

    run_virtually(main())

    assert writer.events[-1] == Event(
        request_id=request_id(1),
        kind=Kind.SETTLE,
        seq=0,
        at=1_000_900,
        run_id="run",
        tenant="acme",
        project="default",
        key_id="key_1",
        model="m",
        route="chat",
        lane="standard",
        backend="gpu",
        outcome="ok",
        source="reported",
        prompt_tokens=100,
        completion_tokens=20,
        cached_tokens=60,
        reasoning_tokens=5,
        cost_nano=PRICE.cost(100, 20, 60),
        price_version=1,
        wait_ms=3,
        ttft_ms=40,
        total_ms=900,
        detail='{"shown_id":"mine","charges":[["lim",1789992000,60]]}',
    )


@pytest.mark.parametrize("shown_id", [None, f"req_{request_id(1)}", request_id(1)])
def test_an_id_that_the_client_did_not_choose_is_not_kept(
    run_virtually: Run, ledger: Ledger, writer: SlowWriter, shown_id: str | None
) -> None:
    async def main() -> None:
        ledger.start()
        entry = ledger.admit(opening(shown_id=shown_id, charges=()))
        entry.settle_later(End(outcome="ok", source="reported", usage=USED))

    run_virtually(main())

    assert [event.detail for event in writer.events] == ['{"stream":false}', ""]


def test_failed_attempts_are_events_and_the_last_one_is_the_settle(
    run_virtually: Run, ledger: Ledger, writer: SlowWriter
) -> None:
    async def main() -> None:
        ledger.start()
        entry = ledger.admit(opening(charges=()))
        for backend in ("a", "b"):
            entry.attempt(backend, 0.5)
            await asyncio.sleep(0.25)
            entry.attempt_failed("BackendFailed" * 100)
        entry.attempt("c", 0)
        entry.settle_later(End(outcome="ok", source="reported", usage=USED))

    run_virtually(main())

    attempts = [event for event in writer.events if event.kind == Kind.ATTEMPT]
    assert [(event.seq, event.backend, event.outcome) for event in attempts] == [
        (1, "a", "backend_error"),
        (2, "b", "backend_error"),
    ]
    assert [(event.wait_ms, event.total_ms) for event in attempts] == [(500, 250), (500, 250)]
    assert detail_of(attempts[0]).error == ("BackendFailed" * 100)[:200]
    settle = writer.events[-1]
    assert (settle.backend, detail_of(settle)) == ("c", Detail(attempts=3))


def test_progress_is_noted_of_all_whose_use_changed_as_one_batch(
    run_virtually: Run, ledger: Ledger, writer: SlowWriter
) -> None:
    async def main() -> None:
        ledger.start()
        entries = [ledger.admit(opening(number)) for number in range(3)]
        await asyncio.sleep(1)
        writer.groups.clear()
        for entry in entries[:2]:
            entry.attempt("gpu", 0.5)
            entry.usage = USED
        await asyncio.sleep(1.5)
        assert writer.kinds == [[Kind.PROGRESS, Kind.PROGRESS]]
        entries[1].usage = Usage(prompt_tokens=100, completion_tokens=21, source="missing")
        await asyncio.sleep(2)
        await asyncio.sleep(2)

    run_virtually(main())

    assert [(event.request_id, event.seq, event.at) for event in writer.events] == [
        (request_id(0), 1, 1_002_000),
        (request_id(1), 1, 1_002_000),
        (request_id(1), 2, 1_004_000),
    ]
    first, *_, last = writer.events
    assert (first.backend, first.source, first.wait_ms, first.price_version) == ("gpu", "reported", 500, 1)
    assert (first.prompt_tokens, first.completion_tokens, first.cached_tokens, first.reasoning_tokens) == (
        100,
        20,
        60,
        5,
    )
    assert (last.completion_tokens, last.source, last.cost_nano) == (21, "none", 0)


def test_no_timer_runs_when_no_request_does(run_virtually: Run, ledger: Ledger, writer: SlowWriter) -> None:
    async def main() -> None:
        ledger.start()
        ledger.admit(opening()).settle_later(OK)
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="no timer is set"):  # says the virtual loop
        run_virtually(main())


def test_nothing_is_let_in_that_could_not_be_settled(run_virtually: Run, ledger: Ledger, writer: SlowWriter) -> None:
    async def main() -> None:
        ledger.start()
        writer.is_accepting = False
        with pytest.raises(StoreUnavailable, match="store is away"):
            ledger.admit(opening())
        await asyncio.sleep(1)
        assert ledger.entries() == []
        assert writer.groups == []

    run_virtually(main())


def test_requests_in_flight_can_be_seen(run_virtually: Run, ledger: Ledger, writer: SlowWriter) -> None:
    async def main() -> None:
        ledger.start()
        entry = ledger.admit(opening(1, shown_id="mine"))
        ledger.admit(opening(2)).settle_later(OK)
        await asyncio.sleep(1.5)
        [waiting] = ledger.entries()
        assert (waiting.request_id, waiting.shown_id, waiting.state) == (request_id(1), "mine", "waiting")
        assert (waiting.age_s, waiting.backend, waiting.usage) == (1.5, "", Usage())
        entry.attempt("gpu", 1.5)
        entry.usage = USED
        [running] = ledger.entries()
        assert (running.state, running.backend, running.usage) == ("running", "gpu", USED)
        entry.attempt_failed("BackendFailed")
        assert ledger.entries()[0].state == "waiting"

    run_virtually(main())


def test_who_is_strict_waits_until_the_admit_is_durable(run_virtually: Run, ledger: Ledger, writer: SlowWriter) -> None:
    async def main() -> None:
        ledger.start()
        entry = ledger.admit(opening())
        admitted = asyncio.create_task(entry.admitted())
        await soon()
        assert writer.kinds == [[Kind.ADMIT]]
        assert not admitted.done()
        writer.commit()
        await admitted

    run_virtually(main())


def test_stop_waits_for_what_was_told_and_leaves_open_what_is_open(
    run_virtually: Run, ledger: Ledger, writer: SlowWriter
) -> None:
    async def main() -> None:
        ledger.start()
        ledger.admit(opening())
        stopping = asyncio.create_task(ledger.stop())
        await soon()
        assert writer.kinds == [[Kind.ADMIT]]
        assert not stopping.done()
        writer.commit()
        await stopping

    run_virtually(main())

    assert len(writer.groups) == 1


def test_a_commit_after_the_loop_has_closed_wakes_nobody(
    run_virtually: Run, ledger: Ledger, writer: SlowWriter
) -> None:
    async def main() -> None:
        ledger.start()
        settling = asyncio.create_task(ledger.admit(opening()).settle(OK))
        await soon()
        settling.cancel()

    run_virtually(main())

    writer.commit()


async def test_a_settle_after_the_writer_has_stopped_is_left_to_recovery(
    sqlite_store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Writer(sqlite_store)
    writer.start()
    ledger = Ledger(writer, "run")
    ledger.start()
    late, later = ledger.admit(opening(1)), ledger.admit(opening(2))
    await ledger.stop()
    await asyncio.to_thread(writer.stop)

    late.settle_later(OK)
    with pytest.raises(StoreUnavailable, match="has stopped"):
        await later.settle(OK)

    assert "left to recovery" in caplog.text
    assert len(recover(sqlite_store)) == 2


@pytest.fixture
async def live(store: Store) -> AsyncIterator[Ledger]:
    """A ledger on a store."""
    add_price(store)
    writer = Writer(store)
    await asyncio.to_thread(writer.start)
    ledger = Ledger(writer, "run", progress_s=0.01)
    ledger.start()
    yield ledger
    await ledger.stop()
    await asyncio.to_thread(writer.stop)


async def _live_through(ledger: Ledger, store: Store, number: int) -> None:
    entry: Entry = ledger.admit(opening(number))
    entry.attempt("b", 0)
    await asyncio.sleep(number % 7 / 1000)
    entry.usage = USED
    if number % 5 == 0:
        entry.settle_later(OK)
        return
    await entry.settle(OK)
    if number % 10 == 1:
        assert await asyncio.to_thread(_is_settled, store, number)


def _is_settled(store: Store, number: int) -> bool:
    """In the intake, or in the store: looked for in the order in which records move."""
    files = [Path(f"{store.file}-intake-{side}") for side in SIDES] if store.dialect == "sqlite" else []
    in_intake = sum(file.read_bytes().count(request_id(number).encode()) for file in files)
    return in_intake >= 2 or _num_settles(store, number) == 1


def _num_settles(store: Store, number: int | None = None) -> int:
    query = select(func.count()).where(ledger_events.c.kind == Kind.SETTLE)
    if number is not None:
        query = query.where(ledger_events.c.request_id == request_id(number))
    with store.reading() as connection:
        return connection.execute(query).scalar_one()


async def test_many_requests_at_once_are_each_settled_once_and_durable_when_they_say_so(
    live: Ledger, store: Store
) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(300):
            group.create_task(_live_through(live, store, number))
    await live.durable()

    assert live.entries() == []
    assert await asyncio.to_thread(_num_settles, store) == 300
    report = await asyncio.to_thread(verify, store)
    assert report.findings == ()
    assert report.checked.settles == 300


@pytest.mark.parametrize("is_strict", [False, True])
def test_nobody_waits_for_ever_for_a_commit(
    run_virtually: Run, ledger: Ledger, writer: SlowWriter, is_strict: bool
) -> None:
    async def main() -> None:
        ledger.start()
        entry = ledger.admit(opening())
        waiting = asyncio.create_task(entry.admitted() if is_strict else entry.settle(OK))
        await asyncio.sleep(PATIENCE_S + 0.1)
        with pytest.raises(StoreUnavailable):
            await waiting
        assert len(writer.groups) >= 1, "the writer has it still"

    run_virtually(main())
