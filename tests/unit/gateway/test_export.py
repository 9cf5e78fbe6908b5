"""Files that other programs read: what is in them, what a spreadsheet makes of them, and how much memory they take."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import sys
import tracemalloc
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
import pyarrow
import pyarrow.parquet
import pytest

from backends.errors import ConfigError
from gateway import export, journal
from gateway.errors import InvalidBody
from gateway.events import Admitted, Event, Kind, Noted, Record, Settled
from gateway.export import export_events, write_table
from gateway.request_id import id_at
from gateway.store import Store
from gateway.usage import usage

HOUR = 3600
DAY = 24 * HOUR
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
NAMES = [field.name for field in msgspec.structs.fields(Event)]

_serial = itertools.count()


def settle(at: float, *, began_at: float | None = None, **fields: str | int | None) -> Event:
    request_id = id_at(at if began_at is None else began_at)[:-20] + f"{next(_serial):020x}"
    named = {"run_id": "r", "tenant": "acme", "project": "web", "key_id": "k1", "model": "m", "route": "chat"}
    rest = {"lane": "batch", "outcome": "ok", "source": "counted", "prompt_tokens": 10, "cost_nano": 7, "wait_ms": 0}
    values = {"request_id": request_id, "kind": Kind.SETTLE, "seq": 0, "at": int(at * 1000)} | named | rest | fields
    return Event(**values)  # type: ignore[arg-type]


def fill(store: Store, records: Sequence[Record]) -> None:
    with contextlib.closing(store.raw_connection()) as connection:
        journal.commit(connection, records, store.dialect)


def exported(store: Store, **options: float | str | bool) -> bytes:
    out = io.BytesIO()
    given: dict[str, float | str | bool] = {"since": NOON - DAY, **options}
    export_events(store, out, **given)  # type: ignore[arg-type]
    return out.getvalue()


def csv_rows(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def test_a_csv_has_a_line_of_names_and_one_for_each_settled_request(store: Store) -> None:
    event = settle(NOON, detail='{"attempts":2}')
    admit = msgspec.structs.replace(event, kind=Kind.ADMIT, outcome="", source="", at=event.at - 1500)
    fill(store, [Admitted(admit), Settled(event)])

    head, row, end = exported(store).decode().split("\r\n")

    assert head == ",".join(NAMES)
    assert row == (
        f"{event.request_id},settle,0,2026-11-30T12:00:00.000Z,r,acme,web,k1,m,chat,batch,,ok,counted,"
        '10,0,0,0,7,0,0,,,"{""attempts"":2}"'
    )
    assert end == ""


def test_all_events_of_a_request_come_in_their_order(store: Store) -> None:
    event = settle(NOON)
    noted = [Noted(msgspec.structs.replace(event, kind=Kind.PROGRESS, seq=seq)) for seq in (1, 2)]
    attempt = Noted(msgspec.structs.replace(event, kind=Kind.ATTEMPT, seq=1))
    fill(store, [Admitted(msgspec.structs.replace(event, kind=Kind.ADMIT)), *noted, attempt, Settled(event)])

    rows = csv_rows(exported(store, all_events=True))

    assert [(row["kind"], row["seq"]) for row in rows] == [
        *(("admit", "0"), ("attempt", "1"), ("progress", "1"), ("progress", "2"), ("settle", "0"))
    ]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@A1", "\t=1", "\r=1"])
def test_a_spreadsheet_does_not_compute_a_text(sqlite_store: Store, text: str) -> None:
    fill(sqlite_store, [Settled(settle(NOON, model=text, cost_nano=-5))])

    [row] = csv_rows(exported(sqlite_store))

    assert row["model"] == f"'{text}"
    assert row["cost_nano"] == "-5"


@pytest.mark.parametrize("text", ["a,b", 'say "x"', "two\nlines", "two\r\nlines", "ünï ✓", "1=1", "a-b", " =1"])
def test_other_text_comes_back_as_it_was(sqlite_store: Store, text: str) -> None:
    fill(sqlite_store, [Settled(settle(NOON, tenant=text))])

    assert csv_rows(exported(sqlite_store))[0]["tenant"] == text
    assert msgspec.json.decode(exported(sqlite_store, format="jsonl"))["tenant"] == text


def test_json_lines_hold_an_object_for_each_request(store: Store) -> None:
    events = [settle(NOON + at, prompt_tokens=2**60 + at, detail='{"attempts":2}') for at in range(3)]
    fill(store, [Settled(event) for event in events])

    lines = [msgspec.json.decode(line) for line in exported(store, format="jsonl").splitlines()]

    assert [list(line) for line in lines] == [NAMES] * 3
    assert [(line["request_id"], line["prompt_tokens"]) for line in lines] == [
        (event.request_id, event.prompt_tokens) for event in events
    ]
    assert lines[2] | {"at": "2026-11-30T12:00:02.000Z", "kind": "settle", "ttft_ms": None} == lines[2]
    assert lines[2]["detail"] == '{"attempts":2}'


def test_parquet_has_typed_columns(store: Store) -> None:
    event = settle(NOON + 0.25, cost_nano=2**60 + 1)
    fill(store, [Settled(event)])

    table = pyarrow.parquet.read_table(io.BytesIO(exported(store, format="parquet")))

    assert table.schema.names == NAMES
    types = {name: str(table.schema.field(name).type) for name in ("kind", "at", "tenant", "cost_nano", "ttft_ms")}
    assert types == {
        "kind": "string",
        "at": "timestamp[ms, tz=UTC]",
        "tenant": "string",
        "cost_nano": "int64",
        "ttft_ms": "int64",
    }
    [row] = table.to_pylist()
    assert (row["at"], row["cost_nano"]) == (datetime(2026, 11, 30, 12, 0, 0, 250_000, UTC), 2**60 + 1)
    assert (row["kind"], row["wait_ms"], row["ttft_ms"]) == ("settle", 0, None)


def test_parquet_of_many_rows_has_row_groups_of_one_size() -> None:
    out = io.BytesIO()

    write_table([{"tenant": "acme", "requests": 1}] * 120_000, ["tenant", "requests"], "parquet", out)

    file = pyarrow.parquet.ParquetFile(io.BytesIO(out.getvalue()))
    groups = [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)]
    assert groups == [50_000, 50_000, 20_000]


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_nothing_is_a_file_too(sqlite_store: Store, form: str) -> None:
    data = exported(sqlite_store, format=form)

    if form == "parquet":
        assert pyarrow.parquet.read_table(io.BytesIO(data)).num_rows == 0
    else:
        assert data == (b"" if form == "jsonl" else ",".join(NAMES).encode() + b"\r\n")


def test_without_pyarrow_the_missing_extra_is_named_and_nothing_is_written(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = io.BytesIO()

    with pytest.raises(ConfigError, match=r"pip install 'laneway\[parquet\]'"):
        export_events(sqlite_store, out, since=0, format="parquet")

    assert out.getvalue() == b""


def test_an_unknown_format_is_refused_with_those_that_are_known(sqlite_store: Store) -> None:
    with pytest.raises(InvalidBody, match="'xls' is not written here; allowed: csv, jsonl, parquet"):
        exported(sqlite_store, format="xls")
    with pytest.raises(InvalidBody, match="allowed: csv, json, parquet"):
        write_table([], [], "jsonl", io.BytesIO())


def test_every_row_comes_once_over_many_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PAGE_ROWS", 7)
    events = [settle(NOON + number % 5) for number in range(50)]
    fill(store, [Settled(event) for event in events])

    for all_events in (False, True):
        rows = csv_rows(exported(store, all_events=all_events))

        assert [row["request_id"] for row in rows] == sorted(event.request_id for event in events)


def test_rows_of_a_range_add_up_to_what_usage_says(store: Store) -> None:
    """A request is counted when it is settled, however long it ran."""
    began_long_before = settle(NOON, began_at=NOON - 30 * DAY, cost_nano=100)
    ended_after = settle(NOON + HOUR, began_at=NOON, cost_nano=10)
    fill(store, [Settled(began_long_before), Settled(ended_after), Settled(settle(NOON - 1, cost_nano=1))])

    rows = csv_rows(exported(store, since=NOON, until=NOON + HOUR))

    assert [int(row["cost_nano"]) for row in rows] == [100]
    assert usage(store, by=[], since=NOON, until=NOON + HOUR)[0]["cost_nano_usd"] == 100


def test_no_transaction_is_held_while_a_page_is_written(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PAGE_ROWS", 7)
    fill(sqlite_store, [Settled(settle(NOON)) for _ in range(30)])

    class SlowFile(io.BytesIO):
        def write(self, data: object) -> int:
            fill(sqlite_store, [Settled(settle(NOON - 60 * DAY))])
            with contextlib.closing(sqlite_store.raw_connection()) as connection:
                [(is_blocked, _, _)] = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            checkpoints.append(is_blocked)
            return 0

    checkpoints: list[int] = []
    export_events(sqlite_store, SlowFile(), since=NOON - DAY)

    assert checkpoints == [0] * 6


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_memory_does_not_grow_with_the_rows(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, form: str) -> None:
    monkeypatch.setattr(export, "PAGE_ROWS", 100)

    class Nowhere(io.BytesIO):
        def write(self, data: object) -> int:
            return 0

    def peak() -> int:
        tracemalloc.start()
        export_events(sqlite_store, Nowhere(), since=0, format=form)
        [_, most] = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    fill(sqlite_store, [Settled(settle(NOON)) for _ in range(200)])
    peak()  # what is made once
    of_few = peak()
    fill(sqlite_store, [Settled(settle(NOON)) for _ in range(5000)])

    assert peak() < 1.5 * of_few


ROWS: list[dict[str, str | int]] = [{"tenant": "acme", "requests": 3}, {"tenant": "=zeta", "requests": 4}]


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("csv", "requests,tenant\r\n3,acme\r\n4,'=zeta\r\n"),
        ("json", '[\n{"requests":3,"tenant":"acme"},\n{"requests":4,"tenant":"=zeta"}\n]\n'),
    ],
)
def test_a_table_is_written_in_the_order_of_its_columns(form: str, text: str) -> None:
    out = io.BytesIO()

    write_table(ROWS, ["requests", "tenant"], form, out)

    assert out.getvalue().decode() == text


def test_an_empty_table_is_an_empty_list() -> None:
    out = io.BytesIO()

    write_table([], ["tenant"], "json", out)

    assert out.getvalue() == b"[]\n"


def test_parquet_of_an_empty_usage_has_the_types_of_a_full_one() -> None:
    full, empty = io.BytesIO(), io.BytesIO()

    write_table(ROWS, ["tenant", "requests"], "parquet", full)
    write_table([], ["tenant", "requests"], "parquet", empty)

    tables = [pyarrow.parquet.read_table(io.BytesIO(out.getvalue())) for out in (full, empty)]
    assert pyarrow.concat_tables(tables).to_pylist() == ROWS
