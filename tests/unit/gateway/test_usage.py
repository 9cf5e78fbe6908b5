"""Sums of what was used: against a sum over the events, on both databases, and from the rollups alone."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

from gateway import journal
from gateway.errors import InvalidBody
from gateway.events import Event, Kind, Settled
from gateway.request_id import id_at
from gateway.store import Store
from gateway.usage import NAMES, usage, usage_statement

HOUR = 3600
DAY = 24 * HOUR
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
MIDNIGHT = NOON - 12 * HOUR
SUMS = ("requests", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cost_nano_usd")

RANGES = {
    "within an hour": (NOON, NOON + 60),
    "within a day": (NOON - 2 * HOUR, NOON + HOUR),
    "over midnight": (MIDNIGHT - HOUR, MIDNIGHT + HOUR),
    "whole days": (MIDNIGHT - 3 * DAY, MIDNIGHT),
    "days and both edges": (NOON - 5 * DAY - 1000, NOON + 1000),
    "days without end": (NOON - 5 * DAY, None),
}


def settle(at: float, **fields: str | int) -> Event:
    """A settled request of tenant `acme` at an instant, with its counts."""
    named = {"tenant": "acme", "project": "web", "key_id": "k1", "model": "m", "lane": "batch", "outcome": "ok"}
    counts = {"prompt_tokens": 10, "completion_tokens": 3, "cached_tokens": 2, "reasoning_tokens": 1, "cost_nano": 7}
    request_id = id_at(at)[:-20] + f"{next(_serial):020x}"
    given = {"source": "reported", "run_id": "r", "route": "chat", "seq": 0} | named | counts | fields
    return Event(request_id=request_id, kind=Kind.SETTLE, at=int(at * 1000), **given)  # type: ignore[arg-type]


_serial = itertools.count()


def fill(store: Store, events: Sequence[Event]) -> None:
    with contextlib.closing(store.raw_connection()) as connection:
        journal.commit(connection, [Settled(event) for event in events], store.dialect)


def scattered(number: int, days: int = 7) -> list[Event]:
    """Settles of several of everything, over some days up to an hour after noon."""
    draw = random.Random(3)
    return [
        settle(
            NOON + HOUR - draw.random() * days * DAY,
            tenant=draw.choice(("acme", "zeta")),
            project=draw.choice(("web", "app")),
            key_id=draw.choice(("k1", "k2")),
            model=draw.choice(("m", "n")),
            lane=draw.choice(("batch", "interactive")),
            outcome=draw.choice(("ok", "client_abort")),
            source=draw.choice(("reported", "counted")),
            prompt_tokens=draw.randrange(100),
            cost_nano=draw.randrange(10**12),
        )
        for _ in range(number)
    ]


def expected(
    events: Sequence[Event], by: Sequence[str], since: float, until: float | None, where: dict[str, str]
) -> list[dict[str, str | int]]:
    """The same by a walk over the events."""
    start = since // HOUR * HOUR
    end = float("inf") if until is None else -(-until // HOUR) * HOUR
    totals: dict[tuple[str, ...], Counter[str]] = {}
    for event in events:
        named = names(event)
        if start <= event.at / 1000 < end and all(named[name] == value for name, value in where.items()):
            sums = totals.setdefault(tuple(named[name] for name in by), Counter(dict.fromkeys(SUMS, 0)))
            sums.update({name: getattr(event, name) for name in SUMS[1:5]})
            sums.update(requests=1, cost_nano_usd=event.cost_nano)
    return [dict(zip(by, key, strict=True)) | totals[key] for key in sorted(totals)]


def names(event: Event) -> dict[str, str]:
    at = datetime.fromtimestamp(event.at // 1000, UTC)
    columns = {name: getattr(event, name) for name in ("tenant", "project", "model", "lane", "outcome", "source")}
    return columns | {"key": event.key_id, "day": at.strftime("%Y-%m-%d"), "hour": at.strftime("%Y-%m-%dT%H:00:00Z")}


@pytest.fixture
def filled(store: Store) -> tuple[Store, list[Event]]:
    events = scattered(300)
    fill(store, events)
    return store, events


def test_every_sum_is_that_of_the_events(filled: tuple[Store, list[Event]]) -> None:
    store, events = filled
    by_count = [by for size in range(4) for by in itertools.combinations(NAMES, size)]
    draw = random.Random(5)

    for by in [(), *draw.sample(by_count, 15)]:
        for since, until in RANGES.values():
            for where in ({}, {"tenant": "acme"}, {"key": "k2", "model": "m", "outcome": "ok"}):
                found = usage(store, by=by, since=since, until=until, where=where)

                want = expected(events, by, since, until, where)
                assert found == (want or ([] if by else [dict.fromkeys(SUMS, 0)])), (by, since, until, where)


def test_the_names_come_in_the_order_asked_for_and_then_the_sums(sqlite_store: Store) -> None:
    fill(sqlite_store, [settle(NOON)])

    [row] = usage(sqlite_store, by=["model", "hour", "tenant", "day", "model"], since=NOON)

    assert list(row.items()) == [
        *(("model", "m"), ("hour", "2026-11-30T12:00:00Z"), ("tenant", "acme"), ("day", "2026-11-30")),
        *(("requests", 1), ("prompt_tokens", 10), ("completion_tokens", 3), ("cached_tokens", 2)),
        *(("reasoning_tokens", 1), ("cost_nano_usd", 7)),
    ]


def test_without_names_there_is_one_row_even_when_nothing_was_used(store: Store) -> None:
    assert usage(store, by=[], since=NOON) == [dict.fromkeys(SUMS, 0)]
    assert usage(store, by=["tenant"], since=NOON) == []


def test_no_more_rows_are_read_than_asked_for(store: Store) -> None:
    fill(store, [settle(NOON, tenant=tenant) for tenant in ("a", "b", "c")])
    by = ["tenant"]

    assert [len(usage(store, by=by, since=NOON, limit=limit)) for limit in (1, 2, 3, 4, None)] == [1, 2, 3, 3, 3]


def test_sums_larger_than_a_float_holds_are_exact(store: Store) -> None:
    cost = 2**60 + 1
    fill(store, [settle(NOON, cost_nano=cost), settle(NOON + DAY, cost_nano=cost), settle(NOON + DAY, cost_nano=cost)])

    assert usage(store, by=["tenant"], since=NOON)[0]["cost_nano_usd"] == 3 * cost


@pytest.mark.parametrize(
    ("by", "where", "says"),
    [
        (["tenant", "secret; --"], {}, "by: no 'secret; --' is kept; allowed: tenant, project, key, model, lane, "),
        (["tenant"], {"hour": "2026"}, "where: no 'hour' is kept; allowed: "),
        (["key_id"], {}, "by: no 'key_id'"),
    ],
)
def test_an_unknown_name_is_refused_with_those_that_are_known(
    sqlite_store: Store, by: list[str], where: dict[str, str], says: str
) -> None:
    with pytest.raises(InvalidBody) as refused:
        usage(sqlite_store, by=by, since=NOON, where=where)

    assert refused.value.message.startswith(says)
    assert refused.value.param == says.partition(":")[0]


def test_an_end_before_the_start_is_refused(sqlite_store: Store) -> None:
    with pytest.raises(InvalidBody, match="until is before since"):
        usage(sqlite_store, by=[], since=NOON, until=NOON - 1)


def test_values_are_bound_and_never_a_part_of_the_statement(sqlite_store: Store) -> None:
    fill(sqlite_store, [settle(NOON)])

    assert usage(sqlite_store, by=["tenant"], since=NOON, where={"tenant": "' OR ''='"}) == []


def every_query() -> Iterator[tuple[tuple[str, ...], float, float | None, dict[str, str]]]:
    """All that can be asked with up to three names."""
    for size in range(4):
        for by in itertools.combinations(NAMES, size):
            for name in ("within a day", "whole days", "days and both edges", "days without end"):
                since, until = RANGES[name]
                for where in ({}, {"tenant": "acme"}):
                    yield by, since, until, where


def test_no_query_reads_anything_but_ranges_of_the_rollups(store: Store) -> None:
    read = set()
    with store.reading() as connection:
        for query in every_query():
            compiled = usage_statement(*query).compile(connection)
            values = compiled.params
            if store.dialect == "sqlite":
                plan = connection.exec_driver_sql(
                    f"EXPLAIN QUERY PLAN {compiled}", tuple(values[name] for name in compiled.positiontup or ())
                )
                read |= {step for *_, step in plan if step.startswith(("SEARCH", "SCAN"))}
            else:
                [[[plan]]] = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {compiled}", values)
                read |= set(relations(plan["Plan"]))

    assert [what for what in read if not is_range_of_rollup(what)] == []
    assert all(any(name in what for what in read) for name in ("usage_days", "usage_hours"))


def relations(plan: dict[str, Any]) -> Iterator[str]:
    """What Postgres reads for a plan: tables, or indexes of them."""
    if "Relation Name" in plan:
        yield plan["Relation Name"]
    for below in plan.get("Plans", ()):
        yield from relations(below)


def is_range_of_rollup(what: str) -> bool:
    """Or a walk over what such ranges gave, the parts of the union."""
    ranges = [f"SEARCH {name} USING PRIMARY KEY (starts_at>?" for name in ("usage_days", "usage_hours")]
    return what in ("usage_days", "usage_hours") or what.startswith((*ranges, "SCAN anon_1", "SCAN (subquery"))


NOW = datetime(2026, 11, 30, 12, 30, tzinfo=UTC).timestamp()
