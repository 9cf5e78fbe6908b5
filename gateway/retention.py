"""What the store need not keep for ever: old events of the ledger and kept answers; and, on Postgres, its months."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Text,
    and_,
    bindparam,
    column,
    delete,
    exists,
    func,
    insert,
    select,
    table,
    text,
    tuple_,
    union_all,
)
from sqlalchemy.exc import DBAPIError

from gateway.connections import is_away
from gateway.events import Kind
from gateway.idempotency import KEPT_S
from gateway.request_id import id_at
from gateway.store import Store
from gateway.tables import answers, audit, ledger_events, open_requests

log = logging.getLogger("laneway.front")

ANSWERS_AT_ONCE = 20  # of up to a MiB each
ALTER_WITHIN_MS = 300  # whoever writes events waits behind a change of their table, and behind the wait for its lock
MONTH_NAME = re.compile(r"ledger_events_([0-9]{4})_([0-9]{2})")


class Removal(Struct, frozen=True, kw_only=True):
    """What goes: requests that began before the id `until`, are over, and ended before `ended_before_ms`."""

    until: str
    ended_before_ms: int


class Retained(Struct, frozen=True):
    """The detail of a removal's audit row: events before this (Unix seconds) may be gone."""

    before: int


def remove_events(
    store: Store,
    before: float,
    *,
    batch: int = 500,
    pause_s: float = 0.05,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], object] = time.sleep,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Remove the events of requests that were over before `before` (Unix seconds); how many events it was.

    Open requests, rollups and budget windows stay as they are. About `batch` events go in one transaction, and a pause
    follows, so that the ledger's writer hardly waits; on Postgres whole months go at once. The audit log says up to
    when before anything goes. Once `is_stopping`, the rest is left to the next call. Raises `StoreUnavailable`; what
    was removed by then stays removed.
    """
    removal = Removal(until=id_at(int(before)), ended_before_ms=int(before) * 1000)
    if _end_of_batch(store, "", removal.until, 1) is not None:
        _note_horizon(store, int(before), clock)
    num_removed = 0
    for num in _removals(store, removal, batch):
        num_removed += num
        if is_stopping():
            break
        sleep(pause_s)
    return num_removed


def purge_answers(store: Store, now: float) -> int:
    """Remove the answers that were kept for their time (`now` in Unix seconds); how many. Raises `StoreUnavailable`."""
    is_old = answers.c.at < int((now - KEPT_S) * 1000)
    place = (answers.c.key_id, answers.c.name_digest)
    some = select(*place).where(is_old).limit(ANSWERS_AT_ONCE)
    with store.reading() as connection:
        is_more = connection.execute(select(exists(some))).scalar_one()
    num_removed = 0
    while is_more:
        with store.changing() as connection:
            removed = connection.execute(delete(answers).where(tuple_(*place).in_(some))).rowcount
        num_removed += removed
        is_more = removed == ANSWERS_AT_ONCE
    return num_removed


def ensure_partitions(store: Store, now: float) -> None:
    """On Postgres, let the month of `now` (Unix seconds) and the next have their partitions.

    A month that the default partition already has rows of is left there. What cannot be done now is logged, and left to
    the next call. Raises `StoreUnavailable`.
    """
    if store.dialect != "postgresql":
        return
    this = _month_at(now)
    with store.reading() as connection:
        missing = {this, this.next} - set(_months(connection))
    for month in sorted(missing, key=lambda month: month.start):
        with store.changing() as connection:
            if month not in _months(connection) and not _default_has(connection, month):
                create = "CREATE TABLE %I PARTITION OF ledger_events FOR VALUES FROM (%L) TO (%L)"
                _alter(connection, (create, month.name, month.start, month.end))


def _note_horizon(store: Store, before: int, clock: Callable[[], float]) -> None:
    """The newest row is the one that holds, so none is added for less than was removed already."""
    with store.changing() as connection:
        query = select(audit.c.detail).where(audit.c.action == "ledger.retain").order_by(audit.c.id.desc()).limit(1)
        newest = connection.execute(query).scalar()
        if newest is None or msgspec.json.decode(newest, type=Retained).before < before:
            detail = msgspec.json.encode(Retained(before)).decode()
            what = {"actor": "server", "action": "ledger.retain", "target": ledger_events.name, "detail": detail}
            connection.execute(insert(audit).values(created_at=int(clock()), **what))


def _removals(store: Store, removal: Removal, batch: int) -> Iterator[int]:
    """How many events each step removed."""
    if store.dialect == "postgresql":
        yield from _drop_months(store, removal)
    after = ""
    while True:
        last = _end_of_batch(store, after, removal.until, batch)
        if last is None:
            return
        values = {"after": after, "last": last, "late_ms": removal.ended_before_ms}
        with store.changing() as connection:
            num = connection.execute(_REMOVE, values).rowcount
        _write_back(store)
        yield num
        after = last


def _write_back(store: Store) -> None:
    """Empty SQLite's log: whoever commits when it is full has to, and that should not be the ledger's writer."""
    if store.dialect == "sqlite":
        with contextlib.closing(store.raw_connection()) as connection:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


def _end_of_batch(store: Store, after: str, until: str, batch: int) -> str | None:
    """The id that the next `batch` events end with, between `after` and `until`; None when there are none."""
    request_id = ledger_events.c.request_id
    rest = select(request_id).where(request_id > after, request_id < until)
    with store.reading() as connection:
        full = connection.execute(rest.order_by(request_id).offset(batch - 1).limit(1)).scalar()
        return full or connection.execute(rest.order_by(request_id.desc()).limit(1)).scalar()


def _remove() -> Delete:
    """Whole requests with ids from behind :after up to :last. Made once: others wait while it runs.

    Those stay that are open, and those that ended from :late_ms on: the rollups of that time must stay provable.
    """
    settles = ledger_events.alias()
    is_late = and_(settles.c.kind == Kind.SETTLE, settles.c.at >= bindparam("late_ms"))
    kept = union_all(
        select(open_requests.c.request_id).where(_is_in_batch(open_requests.c.request_id)),
        select(settles.c.request_id).where(_is_in_batch(settles.c.request_id), is_late),
    )
    request_id = ledger_events.c.request_id
    return delete(ledger_events).where(_is_in_batch(request_id), request_id.not_in(kept))


def _is_in_batch(request_id: ColumnElement[str]) -> ColumnElement[bool]:
    return and_(request_id > bindparam("after"), request_id <= bindparam("last"))


_REMOVE = _remove()


# Months of Postgres: partitions by id. Their names say which month they hold.


class Month(Struct, frozen=True):
    """Of the calendar in UTC."""

    year: int
    number: int

    @property
    def name(self) -> str:
        """Of its partition."""
        return f"ledger_events_{self.year:04}_{self.number:02}"

    @property
    def start(self) -> str:
        """The first id."""
        return id_at(datetime(self.year, self.number, 1, tzinfo=UTC).timestamp())

    @property
    def end(self) -> str:
        """The first id after it."""
        return self.next.start

    @property
    def next(self) -> Month:
        """The one after it."""
        return Month(self.year + self.number // 12, self.number % 12 + 1)


def _month_at(at: float) -> Month:
    day = datetime.fromtimestamp(at, UTC)
    return Month(day.year, day.month)


def _months(connection: Connection) -> list[Month]:
    """That have partitions, the oldest first."""
    query = text(
        "SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid"
        " WHERE inhparent = 'ledger_events'::regclass ORDER BY relname"
    )
    names = map(MONTH_NAME.fullmatch, connection.execute(query).scalars())
    return [Month(int(name[1]), int(name[2])) for name in names if name is not None]


def _default_has(connection: Connection, month: Month) -> bool:
    request_id = column("request_id", Text)
    rows = select(request_id).select_from(table("ledger_events_default", request_id))
    found: bool = connection.execute(select(exists(rows.where(_is_in(month, request_id))))).scalar_one()
    return found


def _drop_months(store: Store, removal: Removal) -> Iterator[int]:
    """Those that nothing is kept of; how many events each had."""
    with store.reading() as connection:
        months = [month for month in _months(connection) if month.end <= removal.until]
    for month in months:
        of = ledger_events.c
        ended_at = func.max(of.at).filter(of.kind == Kind.SETTLE)
        with store.reading() as connection:
            count = select(func.count(), func.coalesce(ended_at, 0)).where(_is_in(month, of.request_id))
            [(num, last_ended_at)] = connection.execute(count)
        if last_ended_at < removal.ended_before_ms and _drop(store, month):
            yield num


def _drop(store: Store, month: Month) -> bool:
    is_open = exists(select(open_requests.c.request_id).where(_is_in(month, open_requests.c.request_id)))
    with store.changing() as connection:
        if connection.execute(select(is_open)).scalar_one():
            return False
        return _alter(
            connection, ("ALTER TABLE ledger_events DETACH PARTITION %I", month.name), ("DROP TABLE %I", month.name)
        )


def _is_in(month: Month, request_id: ColumnElement[str]) -> ColumnElement[bool]:
    return and_(request_id >= month.start, request_id < month.end)


def _alter(connection: Connection, *changes: tuple[str, ...]) -> bool:
    """Make all the changes, each a format of Postgres with what to put in, or none: then False, and why in the log."""
    try:
        with connection.begin_nested():
            connection.execute(select(func.set_config("statement_timeout", str(ALTER_WITHIN_MS), True)))
            for change in changes:
                connection.exec_driver_sql(connection.execute(select(func.format(*change))).scalar_one())
    except DBAPIError as error:
        if is_away(error):
            raise
        log.warning("the partitions of the ledger could not be changed now: %s", str(error.orig).partition("\n")[0])
        return False
    return True
