"""How records become rows: a group of them in one transaction, with everything that a settle changes, exactly once."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import Any, Protocol, TypeAlias

import msgspec
from msgspec import Struct
from sqlalchemy import Column, Delete, Select, Table, Text, bindparam, cast, delete, func, literal_column, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.engine.interfaces import DBAPICursor

from gateway.events import Admitted, Record, Settled
from gateway.store import DBAPIConnection, Dialect
from gateway.tables import (
    ROLLUP_SUMS,
    answers,
    batch_lines,
    budget_windows,
    ledger_events,
    open_requests,
    usage_days,
    usage_hours,
)

HOUR_S = 3600
DAY_S = 24 * HOUR_S

# How many rows a statement of SQLite's has: each step of sqlite3 gives up the GIL, and may have to wait for a busy
# loop to get it back, so a group is written in as few steps as these few prepared statements allow.
SIZES = (128, 32, 8, 4, 3, 2, 1)

Row: TypeAlias = Sequence[object]
Insert: TypeAlias = sqlite.Insert | postgresql.Insert
Usage: TypeAlias = dict[tuple[int | str, ...], list[int]]  # starts_at and dimensions of a rollup's row → its sums

_BEGIN = {"sqlite": "BEGIN IMMEDIATE", "postgresql": "BEGIN"}


def commit(connection: DBAPIConnection, records: Sequence[Record], dialect: Dialect) -> None:
    """`apply` as a transaction of its own, on a connection in autocommit. Raises what the driver raises.

    When the connection is lost during the commit, it may have happened or not; to apply the group again is right then.
    """
    try:
        _transact(connection, records, dialect, _Group.insert_all)
    except _KnownError:
        _transact(connection, records, dialect, _Group.insert_fresh)


def apply(connection: DBAPIConnection, records: Sequence[Record], dialect: Dialect) -> None:
    """Write one group into the open transaction of a driver's connection.

    A group may come again, in any grouping: only an event that was not there before changes anything else, and the
    first settle of a request wins. Raises what the driver raises; the transaction is to be rolled back then.
    """
    with _sent_together(connection, dialect) as sent:
        _Group(connection, _statements(dialect), sent).write(records, _Group.insert_fresh)


class _KnownError(Exception):
    """Some event of a group was in the store already, which nearly never happens."""


InsertEvents: TypeAlias = Callable[["_Group", Sequence[Record]], Sequence[Record]]


def _transact(connection: DBAPIConnection, records: Sequence[Record], dialect: Dialect, insert: InsertEvents) -> None:
    try:
        with _sent_together(connection, dialect) as sent:
            connection.execute(_BEGIN[dialect])
            _Group(connection, _statements(dialect), sent).write(records, insert)
            connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(connection.Error):  # a lost connection has nothing to roll back
            connection.rollback()
        raise


class _Group:
    """One group on its way into the tables."""

    __slots__ = ("_connection", "_sent", "_statements")

    def __init__(self, connection: DBAPIConnection, statements: _Statements, sent: _Sent) -> None:
        self._connection = connection
        self._statements = statements
        self._sent = sent

    def write(self, records: Sequence[Record], insert: InsertEvents) -> None:
        """The events, and all that follows from those that were not there before."""
        fresh = insert(self, records)
        self.note_open(records, fresh)
        settles = [record for record in fresh if type(record) is Settled]
        if settles:
            self.add_usage(settles)
            self.charge(settles)
            self.keep_answers(settles)
            self.keep_lines(settles)

    def insert_all(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records, none of whose events was there before. Raises `_KnownError`; the transaction is spoiled then."""
        if self._num_inserted(records) != len(records):
            raise _KnownError
        return records

    def insert_fresh(self, records: Sequence[Record]) -> Sequence[Record]:
        """The records whose events were not there before."""
        self._connection.execute("SAVEPOINT events")
        fresh = records
        if self._num_inserted(records) != len(records):
            self._connection.execute("ROLLBACK TO SAVEPOINT events")
            fresh = [record for record in records if self._num_inserted([record])]
        self._connection.execute("RELEASE SAVEPOINT events")
        return fresh

    def _num_inserted(self, records: Sequence[Record]) -> int:
        rows: list[Row] = msgspec.to_builtins([record.event for record in records])  # enumerations as numbers
        cursors = self._statements.events.run(self._connection, rows)
        self._sent.sync()
        return sum(cursor.rowcount for cursor in cursors)

    def note_open(self, records: Sequence[Record], fresh: Sequence[Record]) -> None:
        """A request is open from its admit to its settle; with both in one group it never is."""
        opened = {record.event.request_id: record.event.run_id for record in fresh if type(record) is Admitted}
        closed = {
            record.event.request_id
            for record in records
            if type(record) is Settled and opened.pop(record.event.request_id, None) is None
        }
        if opened:
            self._statements.open.run(self._connection, list(opened.items()))
        if closed:
            self._statements.close.run(self._connection, [(request_id,) for request_id in closed])

    def add_usage(self, settles: Sequence[Settled]) -> None:
        hours = _by_hour(settles)
        self._statements.hours.run(self._connection, _in_order(hours))
        self._statements.days.run(self._connection, _in_order(_by_day(hours)))

    def charge(self, settles: Sequence[Settled]) -> None:
        used: dict[tuple[str, int], int] = {}
        for record in settles:
            for charge in record.charges:
                window = (charge.rule_id, charge.starts_at)
                used[window] = used.get(window, 0) + charge.amount
        self._statements.windows.run(self._connection, [(*window, 0, used[window]) for window in sorted(used)])

    def keep_answers(self, settles: Sequence[Settled]) -> None:
        """Of several answers under one name the last; an older one in the store has passed its time."""
        kept = {(r.answer.key_id, r.answer.name_digest): r.answer for r in settles if r.answer is not None}
        for name in sorted(kept):
            self._connection.execute(self._statements.answer, msgspec.structs.astuple(kept[name]))

    def keep_lines(self, settles: Sequence[Settled]) -> None:
        lines = [record.line for record in settles if record.line is not None]
        for line in sorted(lines, key=lambda line: (line.batch_id, line.number)):
            self._connection.execute(self._statements.line, msgspec.structs.astuple(line))


def _by_hour(settles: Sequence[Settled]) -> Usage:
    hours: Usage = {}
    for record in settles:
        event = record.event
        hour = event.at // (HOUR_S * 1000) * HOUR_S
        of = (event.tenant, event.project, event.key_id, event.model, event.lane, event.outcome, event.source)
        sums = hours.setdefault((hour, *of), [0] * len(ROLLUP_SUMS))
        sums[0] += 1
        sums[1] += event.prompt_tokens
        sums[2] += event.completion_tokens
        sums[3] += event.cached_tokens
        sums[4] += event.reasoning_tokens
        sums[5] += event.cost_nano
    return hours


def _by_day(hours: Usage) -> Usage:
    days: Usage = {}
    for (hour, *of), sums in hours.items():
        key = (int(hour) // DAY_S * DAY_S, *of)
        days[key] = [so_far + more for so_far, more in zip(days[key], sums, strict=True)] if key in days else sums
    return days


def _in_order(usage: Usage) -> list[Row]:
    """In the order of their keys, so that servers that change the same rows never wait for each other in a ring."""
    return [(*key, *usage[key]) for key in sorted(usage)]


class _Sent(Protocol):
    """Statements on their way; after `sync` their cursors know what they changed."""

    def sync(self) -> None: ...


class _AtOnce:
    def sync(self) -> None: ...


_AT_ONCE = contextlib.nullcontext(_AtOnce())


def _sent_together(connection: DBAPIConnection, dialect: Dialect) -> AbstractContextManager[_Sent]:
    """To Postgres, statements go together, so that a group takes few round trips; sqlite3 has none."""
    return _AT_ONCE if dialect == "sqlite" else connection.pipeline()


class _Rows(Protocol):
    """A statement for any number of rows. Its cursors say how many rows were changed, once it has been sent."""

    def run(self, connection: DBAPIConnection, rows: Sequence[Row]) -> list[DBAPICursor]: ...


class _Brackets:
    """For SQLite: the brackets around the values of one row, repeated; prepared in a few sizes."""

    def __init__(self, sql: str) -> None:
        of_a_row = re.search(r"(?<= VALUES )\([^)]*\)|(?<= IN \()[^)]*", sql)
        assert of_a_row is not None, sql
        head, row, tail = sql[: of_a_row.start()], of_a_row[0], sql[of_a_row.end() :]
        self._sql = {size: head + ", ".join([row] * size) + tail for size in SIZES}

    def run(self, connection: DBAPIConnection, rows: Sequence[Row]) -> list[DBAPICursor]:
        cursors: list[DBAPICursor] = []
        at, num_rows = 0, len(rows)
        while at < num_rows:
            size = next(size for size in SIZES if size <= num_rows - at)
            cursors.append(connection.execute(self._sql[size], list(chain.from_iterable(rows[at : at + size]))))
            at += size
        return cursors


class _Array:
    """For Postgres: all rows as one parameter, an array in JSON; psycopg needs ten times as long to bind each value."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._encoder = msgspec.json.Encoder()

    def run(self, connection: DBAPIConnection, rows: Sequence[Row]) -> list[DBAPICursor]:
        return [connection.execute(self._sql, (self._encoder.encode(rows).decode(),))] if rows else []


class _Statements(Struct, frozen=True, kw_only=True):
    """What a group is written with, in the order of its transaction: the same for all, so that none waits in a ring."""

    events: _Rows
    open: _Rows
    close: _Rows
    hours: _Rows
    days: _Rows
    windows: _Rows
    answer: str
    line: str


@functools.cache
def _statements(dialect: Dialect) -> _Statements:
    """Of one dialect, as text: nothing of SQLAlchemy is on the way of a group."""
    many: Callable[[str], _Rows] = _Brackets if dialect == "sqlite" else _Array
    return _Statements(
        events=many(_insert(ledger_events, dialect)),
        open=many(_insert(open_requests, dialect)),
        close=many(_close(dialect)),
        hours=many(_insert(usage_hours, dialect, ROLLUP_SUMS)),
        days=many(_insert(usage_days, dialect, ROLLUP_SUMS)),
        windows=many(_insert(budget_windows, dialect, ("used",))),
        answer=_replace_answer(dialect),
        line=_text(_insert_of(batch_lines, dialect).on_conflict_do_nothing(), dialect),
    )


def _insert(table: Table, dialect: Dialect, sums: Sequence[str] = ()) -> str:
    """What is there already stays as it is, but for the columns in `sums`: to them the new values are added."""
    insert: Insert = sqlite.insert(table)
    if dialect == "postgresql":
        insert = postgresql.insert(table).from_select(table.columns.keys(), _items(table.columns))
    if not sums:
        return _text(insert.on_conflict_do_nothing(), dialect)
    added = {name: table.c[name] + insert.excluded[name] for name in sums}
    return _text(insert.on_conflict_do_update(index_elements=table.primary_key, set_=added), dialect)


def _close(dialect: Dialect) -> str:
    request_id = open_requests.c.request_id
    ids = request_id.in_([bindparam("request_id")] if dialect == "sqlite" else _items([request_id]))
    return _text(delete(open_requests).where(ids), dialect)


def _replace_answer(dialect: Dialect) -> str:
    insert = _insert_of(answers, dialect)
    new = {column.name: insert.excluded[column.name] for column in answers.columns if not column.primary_key}
    return _text(insert.on_conflict_do_update(index_elements=answers.primary_key, set_=new), dialect)


def _insert_of(table: Table, dialect: Dialect) -> Insert:
    return sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)


def _items(columns: Iterable[Column[Any]]) -> Select[Any]:
    """The rows in a parameter that is an array of arrays in JSON."""
    item = func.jsonb_array_elements(cast(bindparam("rows", type_=Text), JSONB)).column_valued("item")
    return select(*(cast(item.op("->>")(literal_column(str(n))), column.type) for n, column in enumerate(columns)))


def _text(statement: Insert | Delete, dialect: Dialect) -> str:
    """With the driver's own placeholders."""
    of = sqlite.dialect if dialect == "sqlite" else postgresql.dialect
    made_for = of(paramstyle="qmark" if dialect == "sqlite" else "format")
    return str(statement.compile(dialect=made_for, compile_kwargs={"render_postcompile": True}))
