"""Tables as files: the ledger's events, page by page, and small tables, as CSV, JSON and Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from types import ModuleType
from typing import BinaryIO, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct
from sqlalchemy import Text, select, tuple_

from backends.errors import ConfigError
from gateway.errors import InvalidBody
from gateway.events import Kind
from gateway.journal import DAY_S, HOUR_S
from gateway.request_id import id_at
from gateway.store import Store
from gateway.tables import ledger_events
from gateway.usage import SUMS

PAGE_ROWS = 5000
ROW_GROUP_ROWS = 50_000  # of Parquet
LONGEST_REQUEST_S = 31 * DAY_S  # from its first event to its last: a crash may be found out late
CLOCK_SLACK_S = HOUR_S  # how far a clock may have been set back between two events of a request
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would compute such a text

Cell: TypeAlias = str | int | None
Row: TypeAlias = Sequence[Cell]
Change: TypeAlias = Callable[[Cell], Cell]


class Column(Struct, frozen=True):
    """Of a file. Numbers are whole and may be absent; an instant is in Unix milliseconds and becomes a time."""

    name: str
    holds: Literal["text", "number", "instant"]


class Sheet(Protocol):
    """A file that is being written."""

    def write(self, rows: Sequence[Row]) -> None: ...

    def finish(self) -> None: ...


def export_events(
    store: Store,
    out: BinaryIO,
    *,
    since: float,
    until: float | None = None,
    format: str = "csv",  # noqa: A002 - as the command calls it
    all_events: bool = False,
) -> int:
    """Write what happened from `since` on and before `until` (Unix seconds; None: no end); how many rows it was.

    One row for each settled request, at the time of its settle, so that the rows of whole hours add up to what `usage`
    says; or every event. They come in the order of their requests' ids. Memory does not grow with the rows, and no
    transaction lasts longer than a page. A request that began over `LONGEST_REQUEST_S` before `since` is not looked
    for. `format` is csv, jsonl or parquet. Raises `InvalidBody` for another, `ConfigError` where the extra for Parquet
    is missing, and `StoreUnavailable`.
    """
    sheet = _sheet(("csv", "jsonl", "parquet"), format, out, EVENT_COLUMNS)
    num_rows = 0
    for page in _pages(store, since, until, all_events=all_events):
        sheet.write(page)
        num_rows += len(page)
    sheet.finish()
    return num_rows


def write_table(
    rows: Sequence[Mapping[str, str | int]],
    columns: Sequence[str],
    format: str,  # noqa: A002
    out: BinaryIO,
) -> None:
    """Write a table that is in memory. `format` is csv, json (a list of objects) or parquet; raises as above."""
    sheet = _sheet(("csv", "json", "parquet"), format, out, [_column(name, rows) for name in columns])
    sheet.write([[row[name] for name in columns] for row in rows])
    sheet.finish()


def _sheet(allowed: Sequence[str], name: str, out: BinaryIO, columns: Sequence[Column]) -> Sheet:
    if name not in allowed:
        raise InvalidBody(f"format: {name[:40]!r} is not written here; allowed: {', '.join(allowed)}", param="format")
    return SHEETS[name](out, columns)


def _column(name: str, rows: Sequence[Mapping[str, str | int]]) -> Column:
    """By its first value; without any, usage's sums are numbers, so that its files always fit together."""
    is_number = isinstance(rows[0][name], int) if rows else name in SUMS.values()
    return Column(name, "number" if is_number else "text")


def _event_column(name: str, is_text: bool) -> Column:
    return Column(name, "instant" if name == "at" else "text" if is_text or name == "kind" else "number")


EVENT_COLUMNS = [_event_column(column.name, isinstance(column.type, Text)) for column in ledger_events.c]
KIND_NAMES = {int(kind): kind.name.lower() for kind in Kind}


def _pages(store: Store, since: float, until: float | None, *, all_events: bool) -> Iterator[list[Row]]:
    """By ranges of the primary key, each page in a transaction of its own: a long one would let SQLite's log grow."""
    column = ledger_events.c
    wanted = [column.at >= int(since * 1000)]
    if until is not None:
        wanted += [column.at < int(until * 1000), column.request_id < id_at(until + CLOCK_SLACK_S)]
    if not all_events:
        wanted.append(column.kind == Kind.SETTLE)
    place = tuple_(column.request_id, column.kind, column.seq)
    query = select(ledger_events).where(*wanted).order_by(column.request_id, column.kind, column.seq).limit(PAGE_ROWS)
    last: tuple[str, int, int] = (id_at(since - LONGEST_REQUEST_S), -1, -1)
    while True:
        with store.reading() as connection:
            # The id once more: Postgres leaves out the partitions before it, which it does not by the whole place.
            page = connection.execute(query.where(place > last, column.request_id >= last[0])).all()
        if page:
            yield [(row[0], KIND_NAMES[row[1]], *row[2:]) for row in page]
            last = (page[-1][0], page[-1][1], page[-1][2])
        if len(page) < PAGE_ROWS:
            return


class _Csv:
    """RFC 4180 in UTF-8, with a line of names."""

    def __init__(self, out: BinaryIO, columns: Sequence[Column]) -> None:
        self._out = out
        self._changes = _changes(columns, {"text": _harmless, "instant": _time})
        self._write([[column.name for column in columns]])

    def write(self, rows: Sequence[Row]) -> None:
        self._write(_changed(rows, self._changes))

    def _write(self, rows: Iterable[Row]) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\r\n").writerows(rows)
        self._out.write(text.getvalue().encode())

    def finish(self) -> None:
        """Nothing follows the rows."""


class _Json:
    """An object for each row: one a line, or all in a list."""

    def __init__(self, out: BinaryIO, columns: Sequence[Column], *, is_list: bool) -> None:
        self._out = out
        self._names = [column.name for column in columns]
        self._changes = _changes(columns, {"instant": _time})
        self._is_list = is_list
        self._before = b"["  # of the next row of a list
        self._encoder = msgspec.json.Encoder()

    def write(self, rows: Sequence[Row]) -> None:
        objects = [dict(zip(self._names, row, strict=True)) for row in _changed(rows, self._changes)]
        if not self._is_list:
            self._out.write(self._encoder.encode_lines(objects))
            return
        for row in objects:
            self._out.write(self._before + b"\n" + self._encoder.encode(row))
            self._before = b","

    def finish(self) -> None:
        if self._is_list:
            self._out.write(b"[]\n" if self._before == b"[" else b"\n]\n")


def _harmless(cell: Cell) -> Cell:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(FORMULA_STARTS) else cell


def _time(cell: Cell) -> Cell:
    if cell is None:
        return None
    return datetime.fromtimestamp(int(cell) / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _changes(columns: Sequence[Column], by_type: Mapping[str, Change]) -> list[tuple[int, Change]]:
    return [(at, by_type[column.holds]) for at, column in enumerate(columns) if column.holds in by_type]


def _changed(rows: Iterable[Row], changes: Sequence[tuple[int, Change]]) -> Iterator[Row]:
    """The rows with the cells of some columns written otherwise."""
    for row in rows:
        cells = list(row)
        for at, change in changes:
            cells[at] = change(cells[at])
        yield cells


class _Parquet:
    """Typed columns in row groups of `ROW_GROUP_ROWS`. A page is kept as columns until a group is full."""

    def __init__(self, out: BinaryIO, columns: Sequence[Column]) -> None:
        self._arrow, parquet = _pyarrow()
        types = {
            "text": self._arrow.string(),
            "number": self._arrow.int64(),
            "instant": self._arrow.timestamp("ms", tz="UTC"),
        }
        self._schema = self._arrow.schema([(column.name, types[column.holds]) for column in columns])
        self._file = parquet.ParquetWriter(out, self._schema, compression="zstd")
        self._pages = self._schema.empty_table()

    def write(self, rows: Sequence[Row]) -> None:
        columns = list(zip(*rows, strict=True)) or [()] * len(self._schema)
        arrays = [self._arrow.array(cells, of.type) for cells, of in zip(columns, self._schema, strict=True)]
        page = self._arrow.Table.from_arrays(arrays, schema=self._schema)
        self._pages = self._arrow.concat_tables([self._pages, page])
        while len(self._pages) >= ROW_GROUP_ROWS:
            self._file.write_table(self._pages.slice(0, ROW_GROUP_ROWS), ROW_GROUP_ROWS)
            self._pages = self._pages.slice(ROW_GROUP_ROWS)

    def finish(self) -> None:
        if len(self._pages):
            self._file.write_table(self._pages)
        self._file.close()


def _pyarrow() -> tuple[ModuleType, ModuleType]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigError("Parquet needs the extra parquet: pip install 'laneway[parquet]'") from None
    return pyarrow, pyarrow.parquet


SHEETS: dict[str, Callable[[BinaryIO, Sequence[Column]], Sheet]] = {
    "csv": _Csv,
    "json": partial(_Json, is_list=True),
    "jsonl": partial(_Json, is_list=False),
    "parquet": _Parquet,
}
