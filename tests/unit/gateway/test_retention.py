"""What is removed after its time, and above all what is not: nothing open, no sum, nothing the proof needs."""

from __future__ import annotations

import contextlib
import itertools
import tracemalloc
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec
import pytest
from sqlalchemy import func, select, text

from gateway import journal
from gateway.events import Admitted, Answer, Charge, Detail, Event, Kind, Noted, Record, Settled
from gateway.request_id import id_at
from gateway.retention import ensure_partitions, purge_answers, remove_events
from gateway.store import Store, StoreOptions
from gateway.tables import answers, audit, budget_windows, ledger_events, usage_days, usage_hours
from gateway.verify import verify

DAY = 24 * 3600
NOW = datetime(2026, 11, 30, 12, 20, tzinfo=UTC).timestamp()
RUN = "a-run"

_serial = itertools.count()


def request(
    began_at: float, *, takes_s: float | None = 1.0, notes: int = 0, charges: tuple[Charge, ...] = ()
) -> list[Record]:
    """The records of one request; `takes_s` None: it is open."""
    began = Event(
        request_id=id_at(began_at)[:-20] + f"{next(_serial):020x}",
        kind=Kind.ADMIT,
        seq=0,
        at=int(began_at * 1000),
        run_id=RUN,
        tenant="acme",
        project="web",
        key_id="k1",
        model="m",
        route="chat",
        lane="batch",
    )
    replace = msgspec.structs.replace
    records: list[Record] = [Admitted(began)]
    records += [Noted(replace(began, kind=Kind.PROGRESS, seq=seq, source="counted")) for seq in range(1, notes + 1)]
    if takes_s is not None:
        ended = {"at": int((began_at + takes_s) * 1000), "outcome": "ok", "source": "counted", "prompt_tokens": 10}
        detail = msgspec.json.encode(Detail(charges=charges)).decode()
        records.append(Settled(replace(began, kind=Kind.SETTLE, detail=detail, **ended), charges=charges))
    return records


def fill(store: Store, *requests: Sequence[Record]) -> None:
    """Each admit in a group before its settle, as when requests take their time."""
    with contextlib.closing(store.raw_connection()) as connection:
        for is_settle in (False, True):
            group = [record for records in requests for record in records if (type(record) is Settled) is is_settle]
            journal.commit(connection, group, store.dialect)


def id_of(records: Sequence[Record]) -> str:
    return records[0].event.request_id


def left(store: Store) -> list[str]:
    """Ids of the requests that have events, each once for each event."""
    with store.reading() as connection:
        query = select(ledger_events.c.request_id).order_by(ledger_events.c.request_id, ledger_events.c.kind)
        return list(connection.execute(query).scalars())


def sums(store: Store) -> list[list[tuple[object, ...]]]:
    with store.reading() as connection:
        return [
            [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))]
            for table in (usage_hours, usage_days, budget_windows)
        ]


def horizons(store: Store) -> list[int]:
    with store.reading() as connection:
        rows = connection.execute(select(audit).where(audit.c.action == "ledger.retain").order_by(audit.c.id)).all()
    assert {(row.actor, row.target) for row in rows} <= {("server", "ledger_events")}
    return [msgspec.json.decode(row.detail)["before"] for row in rows]


def remove(store: Store, before: float, batch: int = 500) -> int:
    return remove_events(store, before, batch=batch, clock=lambda: NOW, sleep=lambda _: None)


def test_old_events_go_and_what_they_add_up_to_stays(store: Store) -> None:
    old = [request(NOW - age * DAY, charges=(Charge("budget", 0, 7),)) for age in (90, 60, 31)]
    young = [request(NOW - age * DAY) for age in (29, 1)]
    fill(store, *old, *young)
    before = sums(store)

    assert remove(store, NOW - 30 * DAY) == 6

    assert left(store) == sorted(2 * [id_of(records) for records in young])
    assert sums(store) == before
    assert len(before[0]) == 5


def test_an_open_request_keeps_its_events_however_old_it_is(store: Store) -> None:
    is_open = request(NOW - 90 * DAY, takes_s=None, notes=2)
    fill(store, is_open, request(NOW - 91 * DAY), request(NOW - 89 * DAY))

    assert remove(store, NOW - 30 * DAY) == 4
    assert left(store) == 3 * [id_of(is_open)]

    assert remove(store, NOW - 30 * DAY) == 0


def test_a_request_that_was_settled_later_goes_with_the_time_of_its_settle(store: Store) -> None:
    """A crash is found out late: the rollups of that hour are still proved from it."""
    settled_late = request(NOW - 90 * DAY, takes_s=80 * DAY)
    fill(store, settled_late, request(NOW - 89 * DAY))

    assert remove(store, NOW - 30 * DAY) == 2
    assert left(store) == 2 * [id_of(settled_late)]

    assert remove(store, NOW - 9 * DAY) == 2


def test_the_ledger_is_proved_after_a_removal(store: Store) -> None:
    """Also where the limit cuts an hour, and requests that cross it."""
    cut = NOW - 30 * DAY
    crossing = [request(cut - 600 + at * 10, takes_s=600, charges=(Charge("budget", 0, 7),)) for at in range(120)]
    fill(store, *crossing, *[request(cut + (at - 20) * 3600) for at in range(60)])
    assert verify(store).findings == ()

    assert remove(store, cut, batch=7) > 0

    report = verify(store)
    assert (report.findings, report.since) == ((), int(cut))


def test_the_audit_log_says_up_to_when_before_anything_goes(sqlite_store: Store) -> None:
    fill(sqlite_store, request(NOW - 90 * DAY))

    class LightsOut(Exception):
        pass

    def fail(_: float) -> None:
        raise LightsOut

    with pytest.raises(LightsOut):
        remove_events(sqlite_store, NOW - 30 * DAY, batch=1, clock=lambda: NOW, sleep=fail)

    assert horizons(sqlite_store) == [int(NOW - 30 * DAY)]


def test_the_newest_audit_row_is_the_latest_time_of_all_removals(sqlite_store: Store) -> None:
    is_open = request(NOW - 90 * DAY, takes_s=None)
    fill(sqlite_store, is_open)

    for age in (30, 40, 30, 20):
        remove(sqlite_store, NOW - age * DAY)

    assert horizons(sqlite_store) == [int(NOW - 30 * DAY), int(NOW - 20 * DAY)]


def test_where_nothing_is_old_nothing_is_said(store: Store) -> None:
    fill(store, request(NOW - DAY))

    assert remove(store, NOW - 30 * DAY) == 0
    assert horizons(store) == []


def test_events_go_in_batches_with_a_pause_after_each(sqlite_store: Store) -> None:
    fill(sqlite_store, *[request(NOW - 90 * DAY + at) for at in range(25)])
    seen = []

    def pause(seconds: float) -> None:
        seen.append((seconds, len(left(sqlite_store))))

    remove_events(sqlite_store, NOW - 30 * DAY, batch=20, pause_s=0.5, clock=lambda: NOW, sleep=pause)

    assert seen == [(0.5, 30), (0.5, 10), (0.5, 0)]


def test_a_request_goes_whole_even_when_it_has_more_events_than_a_batch(store: Store) -> None:
    fill(store, request(NOW - 90 * DAY, notes=30), request(NOW - 89 * DAY, notes=30), request(NOW - DAY))

    assert remove(store, NOW - 30 * DAY, batch=5) == 64
    assert len(left(store)) == 2


def test_a_removal_that_is_stopped_goes_on_at_the_next_call(sqlite_store: Store) -> None:
    fill(sqlite_store, *[request(NOW - 90 * DAY + at) for at in range(25)])

    stopped = remove_events(sqlite_store, NOW - 30 * DAY, batch=20, clock=lambda: NOW, is_stopping=lambda: True)

    assert stopped == 20
    assert remove(sqlite_store, NOW - 30 * DAY) == 30


def test_memory_does_not_grow_with_what_is_removed(sqlite_store: Store) -> None:
    for _ in range(10):
        fill(sqlite_store, *[request(NOW - 90 * DAY + at / 10) for at in range(5_000)])
    before = sums(sqlite_store)

    tracemalloc.start()
    removed = remove(sqlite_store, NOW - 30 * DAY)
    [_, most] = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert removed == 100_000
    assert most < 5_000_000
    assert sums(sqlite_store) == before


def answer(at: float, number: int = 0) -> Record:
    settled = request(at)[-1]
    assert type(settled) is Settled
    kept = Answer(
        key_id="k1",
        name_digest=number.to_bytes(32),
        body_digest=b"b" * 32,
        request_id=settled.event.request_id,
        at=int(at * 1000),
        content_type="application/json",
        body=b"{}",
    )
    return msgspec.structs.replace(settled, answer=kept)


def test_answers_are_kept_for_ten_minutes(store: Store) -> None:
    fill(store, [answer(NOW - 601, 1), answer(NOW - 600, 2), answer(NOW, 3)])

    assert purge_answers(store, NOW) == 1

    with store.reading() as connection:
        assert sorted(connection.execute(select(answers.c.at)).scalars()) == [int((NOW - 600) * 1000), int(NOW * 1000)]


def test_any_number_of_answers_is_purged(store: Store) -> None:
    fill(store, [answer(NOW - 700, number) for number in range(55)])

    assert purge_answers(store, NOW) == 55
    assert purge_answers(store, NOW) == 0


# Months of Postgres.


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[Store]:
    store = Store.open(StoreOptions(url=postgres_url))
    yield store
    store.close()


def partitions(store: Store) -> dict[str, int]:
    """Events in each."""
    with store.reading() as connection:
        names = connection.execute(
            text("SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'ledger_events'::regclass")
        ).scalars()
        of = text("tableoid::regclass::text")
        found = dict.fromkeys(names, 0)
        query = select(of, func.count()).select_from(ledger_events).group_by(of)
        return found | {name: int(num) for name, num in connection.execute(query)}


def at(month: int, day: int = 1, year: int = 2026) -> float:
    return datetime(year, month, day, tzinfo=UTC).timestamp()


def test_this_month_and_the_next_get_partitions_and_their_events_go_there(postgres_store: Store) -> None:
    ensure_partitions(postgres_store, at(12, 31))
    ensure_partitions(postgres_store, at(12, 31))
    last_moment = at(1, year=2027) - 0.001

    fill(postgres_store, request(at(12)), request(last_moment), request(at(1, year=2027)), request(at(12) - 0.001))

    assert partitions(postgres_store) == {
        "ledger_events_default": 2,
        "ledger_events_2026_12": 4,
        "ledger_events_2027_01": 2,
    }


def test_a_month_whose_events_are_in_the_default_partition_stays_there(postgres_store: Store) -> None:
    fill(postgres_store, request(at(11, 15)))

    ensure_partitions(postgres_store, at(11, 20))

    assert partitions(postgres_store) == {"ledger_events_default": 2, "ledger_events_2026_12": 0}


def test_sqlite_needs_no_partitions(sqlite_store: Store) -> None:
    ensure_partitions(sqlite_store, NOW)


@pytest.fixture
def two_months(postgres_store: Store) -> Store:
    """Partitions of September to December; events in the first two, and before."""
    for month in (9, 11):
        ensure_partitions(postgres_store, at(month))
    days = ((8, 5), (9, 5), (9, 30), (10, 5), (10, 30))
    fill(postgres_store, *[request(at(month, day)) for month, day in days])
    return postgres_store


def test_a_month_that_is_over_goes_as_a_whole_and_the_rest_in_batches(two_months: Store) -> None:
    assert remove(two_months, at(10, 20)) == 8

    assert partitions(two_months) == {
        "ledger_events_default": 0,
        "ledger_events_2026_10": 2,
        "ledger_events_2026_11": 0,
        "ledger_events_2026_12": 0,
    }
    assert verify(two_months).findings == ()


def test_a_month_with_an_open_request_or_a_late_settle_does_not_go_as_a_whole(two_months: Store) -> None:
    is_open, settled_late = request(at(9, 7), takes_s=None), request(at(10, 7), takes_s=30 * DAY)
    fill(two_months, is_open, settled_late)

    assert remove(two_months, at(11)) == 10

    assert left(two_months) == [id_of(is_open), *2 * [id_of(settled_late)]]
    assert [finding.kind for finding in verify(two_months).findings] == ["unrecovered"]


def test_a_month_that_batches_have_emptied_goes_too(two_months: Store) -> None:
    remove(two_months, at(10))
    remove(two_months, at(10, 31))
    assert partitions(two_months)["ledger_events_2026_10"] == 0

    remove(two_months, at(11))

    assert "ledger_events_2026_10" not in partitions(two_months)


def test_a_long_reader_holds_nobody_up(two_months: Store, caplog: pytest.LogCaptureFixture) -> None:
    """Months cannot go under it, so their events do, and the months at the next call."""
    with two_months.reading() as reader:
        reader.execute(select(func.count()).select_from(ledger_events)).scalar_one()

        assert remove(two_months, at(11)) == 10
        ensure_partitions(two_months, at(12))

    assert "the partitions of the ledger could not be changed now: " in caplog.text
    remove(two_months, at(11))
    assert sorted(partitions(two_months)) == ["ledger_events_2026_11", "ledger_events_2026_12", "ledger_events_default"]
