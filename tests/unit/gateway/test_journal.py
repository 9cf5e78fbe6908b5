from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Table, func, insert, select
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateTable

from gateway import journal
from gateway.events import Charge, Kind, Record
from gateway.store import DBAPIConnection, Store
from gateway.tables import (
    ROLLUP_DIMENSIONS,
    ROLLUP_SUMS,
    budget_windows,
    ledger_events,
    usage_days,
    usage_hours,
)
from tests.records import LEDGER, START_MS, admit, answer, note, request_id, settle, tables

HOUR_MS = 3_600_000
SCHEMA = [str(CreateTable(table).compile(dialect=sqlite.dialect())) for table in LEDGER]


@pytest.fixture
def connection(store: Store) -> Iterator[DBAPIConnection]:
    with closing(store.raw_connection()) as connection:
        yield connection


@pytest.fixture
def write(store: Store, connection: DBAPIConnection) -> Callable[..., None]:
    """Commit one group."""

    def write(*records: Record) -> None:
        journal.commit(connection, records, store.dialect)

    return write


def test_a_settle_that_comes_twice_in_a_group_counts_once(store: Store, write: Callable[..., None]) -> None:
    write(settle(1, [Charge("budget", 0, 7)]), settle(1, [Charge("budget", 0, 7)]), settle(2))

    found = tables(store)
    assert len(found["ledger_events"]) == 2
    assert [row[8:] for row in found["usage_hours"]] == [(2, 20, 10, 0, 0, 1400)]
    assert found["budget_windows"] == [("budget", 0, 0, 7)]


def test_a_group_that_comes_again_changes_nothing(store: Store, write: Callable[..., None]) -> None:
    group = [admit(1), settle(1, [Charge("budget", 0, 7)], answer(1, "name")), admit(2), note(2, 1)]
    write(*group)
    before = tables(store)

    write(*group)

    assert tables(store) == before


def test_a_group_with_old_and_new_counts_the_new(store: Store, write: Callable[..., None]) -> None:
    write(admit(1), settle(1), admit(2))

    write(settle(1), settle(2), admit(3), settle(3), admit(4))

    found = tables(store)
    assert [row[8:] for row in found["usage_days"]] == [(3, 30, 15, 0, 0, 2100)]
    assert [row[0] for row in found["open_requests"]] == [request_id(4)]


def test_the_first_settle_of_a_request_wins(store: Store, write: Callable[..., None]) -> None:
    write(admit(1))
    write(settle(1, [Charge("budget", 0, 3)], outcome="crash", completion_tokens=2))

    write(settle(1, [Charge("budget", 0, 7)], answer(1, "name"), completion_tokens=90))

    found = tables(store)
    assert [row[5:8] + row[8:11] for row in found["usage_hours"]] == [("standard", "crash", "reported", 1, 10, 2)]
    assert found["budget_windows"] == [("budget", 0, 0, 3)]
    assert found["answers"] == []


def test_rollups_are_the_sums_of_the_settles(store: Store, write: Callable[..., None]) -> None:
    outcomes, sources = itertools.cycle(("ok", "client_abort")), itertools.cycle(("reported", "counted", "estimated"))
    settles = [
        settle(
            number,
            at=START_MS + number * HOUR_MS // 3,
            tenant=f"tenant-{number % 3}",
            outcome=next(outcomes),
            source=next(sources),
            prompt_tokens=number,
            completion_tokens=number * 2,
            cached_tokens=number // 2,
            reasoning_tokens=number // 3,
            cost_nano=2**40 + number,
        )
        for number in range(150)
    ]
    write(*(admit(number) for number in range(150)), note(3, 1, prompt_tokens=999))
    write(*settles[:100])
    write(*settles[100:103])
    write(*settles[103:])

    assert sums_of_events(store, HOUR_MS) == rows_of(store, usage_hours)
    assert sums_of_events(store, 24 * HOUR_MS) == rows_of(store, usage_days)
    assert len(rows_of(store, usage_days)) < len(rows_of(store, usage_hours)) <= 150


def sums_of_events(store: Store, bucket_ms: int) -> list[tuple[Any, ...]]:
    events = ledger_events.c
    starts_at = (events.at - events.at % bucket_ms) // 1000
    by = [starts_at.label("starts_at"), *(events[name] for name in ROLLUP_DIMENSIONS)]
    sums = [func.count(), *(func.sum(events[name]) for name in ROLLUP_SUMS[1:])]
    query = select(*by, *sums).where(events.kind == Kind.SETTLE).group_by(*by)
    with store.reading() as connection:
        found = connection.execute(query)
        return sorted(tuple(v if isinstance(v, str) else int(v) for v in row) for row in found)  # not as decimals


def rows_of(store: Store, table: Table) -> list[tuple[Any, ...]]:
    with store.reading() as connection:
        return sorted(tuple(row) for row in connection.execute(select(table)))


def test_what_was_used_before_a_budget_was_made_stays_beside_what_settles_add(
    store: Store, write: Callable[..., None]
) -> None:
    with store.changing() as changing:
        changing.execute(insert(budget_windows).values(rule_id="budget", starts_at=60, opening=1000, used=0))

    write(settle(1, [Charge("budget", 60, 3), Charge("budget", 120, 4)]), settle(2, [Charge("budget", 60, 5)]))
    write(settle(3, [Charge("budget", 60, 2**40)]))

    assert tables(store)["budget_windows"] == [("budget", 60, 1000, 8 + 2**40), ("budget", 120, 0, 4)]


def test_a_request_is_open_from_its_admit_to_its_settle(store: Store, write: Callable[..., None]) -> None:
    write(admit(1, run_id="a"), admit(2, run_id="b"), note(1, 1), settle(3), admit(4), settle(4))
    assert tables(store)["open_requests"] == [(request_id(1), "a"), (request_id(2), "b")]

    write(settle(1))
    assert tables(store)["open_requests"] == [(request_id(2), "b")]


def test_an_admit_that_comes_again_after_the_settle_opens_nothing(store: Store, write: Callable[..., None]) -> None:
    write(admit(1))
    write(settle(1))

    write(admit(1), admit(2))

    assert [row[0] for row in tables(store)["open_requests"]] == [request_id(2)]


def test_a_newer_answer_replaces_the_one_of_the_same_name(store: Store, write: Callable[..., None]) -> None:
    write(settle(1, answer=answer(1, "name", b"\x00old")), settle(2, answer=answer(2, "name", b"\x00new")))
    write(settle(3, answer=answer(3, "other", b"1")))
    write(settle(4, answer=answer(4, "other", b"2")))

    kept = [(bytes(row[1]), row[3], bytes(row[6])) for row in tables(store)["answers"]]
    assert kept == [(b"name", request_id(2), b"\x00new"), (b"other", request_id(4), b"2")]


@pytest.mark.parametrize("num_records", [1, 2, 3, 7, 63, 300])
def test_a_group_may_have_any_size(store: Store, write: Callable[..., None], num_records: int) -> None:
    write(*(admit(number) for number in range(num_records)))
    write(*(settle(number, tenant=f"tenant-{number}") for number in range(num_records)))

    found = tables(store)
    assert len(found["ledger_events"]) == 2 * num_records
    assert len(found["usage_hours"]) == num_records
    assert found["open_requests"] == []


def test_every_field_of_an_event_is_kept(store: Store, write: Callable[..., None]) -> None:
    written = settle(
        1,
        backend="local",
        cached_tokens=1,
        reasoning_tokens=2,
        price_version=3,
        wait_ms=4,
        ttft_ms=None,
        total_ms=2**33,
        detail='{"error":"ü \\u0000 \'%s\' ?"}',
    ).event

    write(settle(1, **{name: getattr(written, name) for name in written.__struct_fields__[3:]}))

    [row] = tables(store)["ledger_events"]
    assert row == tuple(getattr(written, name) for name in written.__struct_fields__)


def test_a_group_that_fails_leaves_nothing_and_the_connection_works(
    store: Store, connection: DBAPIConnection, write: Callable[..., None]
) -> None:
    with pytest.raises((OverflowError, connection.Error)):
        write(admit(1), settle(2, [Charge("budget", 0, 2**80)]))
    assert not any(tables(store).values())

    write(admit(1))
    assert len(tables(store)["ledger_events"]) == 1


def test_a_group_that_was_there_undoes_nothing_else_of_its_transaction(
    store: Store, connection: DBAPIConnection, write: Callable[..., None]
) -> None:
    write(settle(1))

    connection.execute("BEGIN")
    connection.execute("INSERT INTO open_requests (request_id, run_id) VALUES ('other', 'run')")
    journal.apply(connection, [settle(1), settle(2)], store.dialect)
    journal.apply(connection, [settle(2), settle(3)], store.dialect)
    connection.execute("COMMIT")

    found = tables(store)
    assert found["open_requests"] == [("other", "run")]
    assert [row[8] for row in found["usage_hours"]] == [3]


@pytest.mark.parametrize("shares_rollups", [True, False])
def test_servers_that_write_the_same_rows_at_once_all_get_through(store: Store, shares_rollups: bool) -> None:
    names = [f"t{number:02}" for number in range(50)]
    failures = []

    def serve(server: int) -> None:
        order = names if server % 2 else names[::-1]
        try:
            with closing(store.raw_connection()) as connection:
                for turn in range(10):
                    numbers = itertools.count(server * 10_000 + turn * 100)
                    tenants = order if shares_rollups else [f"t{server}"] * len(order)
                    group = [
                        settle(next(numbers), [Charge(name, 0, 1)], tenant=tenant)
                        for name, tenant in zip(order, tenants, strict=True)
                    ]
                    journal.commit(connection, group, store.dialect)
        except Exception as error:
            failures.append(error)

    servers = [threading.Thread(target=serve, args=(server,)) for server in range(3)]
    for server in servers:
        server.start()
    for server in servers:
        server.join()

    assert failures == []
    found = tables(store)
    assert sum(row[8] for row in found["usage_hours"]) == 3 * 10 * 50
    assert found["budget_windows"] == [(name, 0, 0, 3 * 10) for name in names]


@st.composite
def histories(draw: st.DrawFn) -> list[Record]:
    """What a ledger says of a few requests, each in its order, all of them mixed."""
    left: list[list[Record]] = [
        [admit(n), *(note(n, seq + 1) for seq in range(draw(st.integers(0, 2)))), settle(n, [Charge("b", n % 2, n)])]
        for n in range(draw(st.integers(1, 4)))
    ]
    for request in left:
        del request[draw(st.integers(1, len(request))) :]
    mixed: list[Record] = []
    while any(left):
        mixed.append(draw(st.sampled_from([request for request in left if request])).pop(0))
    return mixed


@st.composite
def groupings(draw: st.DrawFn, records: Sequence[Record]) -> list[Sequence[Record]]:
    cuts = sorted(draw(st.sets(st.integers(1, len(records)))) | {0, len(records)})
    return [records[start:end] for start, end in itertools.pairwise(cuts)]


def tables_after(*groups: Sequence[Record]) -> list[list[tuple[Any, ...]]]:
    opened: DBAPIConnection = sqlite3.connect(":memory:", isolation_level=None)  # type: ignore[assignment]
    with closing(opened) as connection:
        for statement in SCHEMA:
            connection.execute(statement)
        for group in groups:
            journal.commit(connection, group, "sqlite")
        return [sorted(connection.execute(str(select(table)))) for table in LEDGER]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_records_in_any_groups_and_again_in_others_are_as_written_once_one_by_one(data: st.DataObject) -> None:
    records = data.draw(histories())
    first, second = data.draw(groupings(records)), data.draw(groupings(records))
    until = data.draw(st.integers(0, len(first)))

    assert tables_after(*first[:until], *second, *first) == tables_after(*([record] for record in records))
