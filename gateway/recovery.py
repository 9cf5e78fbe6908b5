"""Settles what a dead server left open: each request once, from the last that was noted of its use."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace
from sqlalchemy import Connection, select

from backends.types import Usage
from gateway import journal, log
from gateway.counting import sane
from gateway.events import Charge, Detail, Event, Kind, Record, Settled
from gateway.history import History, detail_of, detail_text, histories
from gateway.intake import Intake, IntakeBusy
from gateway.rules import Meter, Price
from gateway.store import Store
from gateway.tables import ledger_events, limits, open_requests, prices

BATCH = 200
NOTHING = Usage()

logger = logging.getLogger(f"{log.ROOT}.ledger")


def recover(
    store: Store,
    *,
    dead: set[str] | None = None,
    count_cached: bool = False,
    clock: Callable[[], float] = time.time,
) -> list[Event]:
    """Settle every open request of the runs in `dead`; None: of every run that is not living.

    The outcome is `crash`. What was last noted is charged, at the price and into the budget windows of the admit:
    never nothing where something was known, never the whole reservation. Nothing is charged for the line of a batch,
    since nobody received any of it and the batch has it made again. Returns the settles that were written here.
    When somebody settles the same request at the same moment, the first settle stands; a second call changes nothing.
    Records in the spool of a dead server must have been shipped before; those in its intake are taken in here, where
    `dead` is None. `clock` gives Unix seconds.
    """
    if dead is None and store.dialect == "sqlite":
        _take_in(store)
    runs = _dead_runs(store) if dead is None else dead
    settles: list[Event] = []
    after: str | None = ""
    while runs and after is not None:
        with store.changing() as connection:
            found = _open_requests(connection, runs, after)
            settles += _settle(connection, store, found, count_cached, int(clock() * 1000))
        after = found[-1] if len(found) == BATCH else None
    if settles:
        logger.warning("settled requests that a dead server had left open: %d", len(settles))
    return settles


def _take_in(store: Store) -> None:
    """What a dead server had made durable beside the store. A living one has it in its hands."""
    try:
        intake = Intake(store.file)
    except IntakeBusy:
        return

    def keep(records: Sequence[Record]) -> None:
        with store.changing() as connection:
            _apply(connection, store, records)

    with contextlib.closing(intake):
        intake.take_in(BATCH, keep)


def _apply(connection: Connection, store: Store, records: Sequence[Record]) -> None:
    """Write records in the transaction that is open."""
    dbapi_connection = connection.connection.driver_connection
    assert dbapi_connection is not None
    journal.apply(dbapi_connection, records, store.dialect)


def counted_tokens(usage: Usage, *, count_cached: bool) -> int:
    """What a request counts against limits of tokens: cached tokens only where `limits.count_cached` says so."""
    cached = 0 if count_cached else usage.cached_tokens
    return max(0, usage.prompt_tokens - cached + usage.completion_tokens)


def _dead_runs(store: Store) -> set[str]:
    # In this order: a run that is seen here was already among the living, so one that just starts is never taken.
    with store.reading() as connection:
        found = set(connection.execute(select(open_requests.c.run_id).distinct()).scalars())
    return found - store.living_runs() if found else found


def _open_requests(connection: Connection, runs: set[str], after: str) -> list[str]:
    query = (
        select(open_requests.c.request_id)
        .where(open_requests.c.run_id.in_(runs), open_requests.c.request_id > after)
        .order_by(open_requests.c.request_id)
        .limit(BATCH)
    )
    return list(connection.execute(query).scalars())


def _settle(
    connection: Connection, store: Store, request_ids: Sequence[str], count_cached: bool, at_ms: int
) -> list[Event]:
    """Settle these in the transaction that is open; the settles that were written by it."""
    open_histories = [history for history in histories(connection, request_ids) if history.settle is None]
    tariff = _tariff(connection, open_histories, count_cached)
    settled = [tariff.settle(history, admit, at_ms) for history in open_histories if (admit := history.admit)]
    if not settled:
        return []
    _apply(connection, store, settled)
    # On Postgres a living server may have been first since the histories were read; only it never says `crash`.
    query = select(ledger_events.c.request_id).where(
        ledger_events.c.request_id.in_([record.event.request_id for record in settled]),
        ledger_events.c.kind == Kind.SETTLE,
        ledger_events.c.outcome == "crash",
    )
    ours = set(connection.execute(query).scalars())
    return [record.event for record in settled if record.event.request_id in ours]


class _Tariff(Struct, frozen=True):
    """By what a batch is charged: prices by version, and what rules count by their id."""

    prices: Mapping[int, Price]
    meters: Mapping[str, Meter]
    count_cached: bool

    def settle(self, history: History, admit: Event, at_ms: int) -> Settled:
        """The end of a request that a crash cut short."""
        opened = detail_of(admit)
        noted = history.progress if opened.line is None else None
        usage = NOTHING if noted is None else _usage_of(noted)
        price = self.prices.get(admit.price_version)
        cost = 0
        if price is not None:
            cost = price.cost(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)
        charges = tuple(self._charges(opened.charges, usage, cost))
        attempts = len(history.failed_attempts) + (noted is not None)
        event = replace(
            admit,
            kind=Kind.SETTLE,
            at=at_ms,
            backend="" if noted is None else noted.backend,
            outcome="crash",
            source="none" if noted is None else "estimated",
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost_nano=cost,
            wait_ms=None if noted is None else noted.wait_ms,
            detail=detail_text(
                Detail(shown_id=opened.shown_id, charges=charges, attempts=attempts if attempts > 1 else None)
            ),
        )
        return Settled(event, charges)

    def _charges(self, reserved: Sequence[Charge], usage: Usage, cost: int) -> Iterator[Charge]:
        tokens = counted_tokens(usage, count_cached=self.count_cached)
        for charge in reserved:
            meter = self.meters.get(charge.rule_id)
            if meter is None:
                logger.warning(
                    "the budget %s is not in the store: a crashed request is not charged to it", charge.rule_id
                )
            else:
                yield Charge(charge.rule_id, charge.starts_at, tokens if meter == "tokens" else cost)


def _tariff(connection: Connection, open_histories: Sequence[History], count_cached: bool) -> _Tariff:
    admits = [admit for history in open_histories if (admit := history.admit)]
    versions = {admit.price_version for admit in admits}
    rule_ids = {charge.rule_id for admit in admits for charge in detail_of(admit).charges}
    priced = connection.execute(select(prices).where(prices.c.version.in_(versions)))
    metered = connection.execute(select(limits.c.id, limits.c.meter).where(limits.c.id.in_(rule_ids)))
    return _Tariff(
        prices={
            row.version: Price(
                version=row.version,
                model=row.model,
                prompt_nano=row.prompt_nano,
                completion_nano=row.completion_nano,
                cached_nano=row.cached_nano,
            )
            for row in priced
        },
        meters={row.id: row.meter for row in metered},
        count_cached=count_cached,
    )


def _usage_of(event: Event) -> Usage:
    usage = Usage(
        prompt_tokens=event.prompt_tokens,
        completion_tokens=event.completion_tokens,
        cached_tokens=event.cached_tokens,
        reasoning_tokens=event.reasoning_tokens,
    )
    return sane(usage)
