"""What was used, by whom and when: sums over the rollups, never over the ledger's events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Row, Select, Table, and_, func, select, union_all

from gateway.errors import InvalidBody
from gateway.journal import DAY_S, HOUR_S
from gateway.store import Store
from gateway.tables import ROLLUP_SUMS, usage_days, usage_hours

COLUMNS = {name: name for name in ("tenant", "project", "model", "lane", "outcome", "source")} | {"key": "key_id"}
TIMES = {"day": (DAY_S, "%Y-%m-%d"), "hour": (HOUR_S, "%Y-%m-%dT%H:%M:%SZ")}
NAMES = ("tenant", "project", "key", "model", "lane", "outcome", "source", "day", "hour")
SUMS = {name: "cost_nano_usd" if name == "cost_nano" else name for name in ROLLUP_SUMS}  # column → name in the answer

# The rollups' rows lie in this order, so a sum by the first few of these needs no sorting.
KEY_ORDER = ("tenant", "project", "key")


Part: TypeAlias = tuple[Table, int, int | None]  # a rollup, and the stretch that is read of it; None: no end
Statement: TypeAlias = Select[*tuple[Any, ...]]


def usage(
    store: Store,
    *,
    by: Sequence[str],
    since: float,
    until: float | None = None,
    where: Mapping[str, str] = {},
    limit: int | None = None,
) -> list[dict[str, str | int]]:
    """A row for each combination of the names in `by` that was used, sorted by them; without names one row in all.

    From the hour of `since` up to the end of the hour that `until` falls into (Unix seconds; None: no end). `by` takes
    `NAMES`, `where` those of them that are no times, each with the one value to count. Days and hours are UTC's.
    No more than `limit` rows are read, of all that there are any. Raises `InvalidBody` naming what is not allowed, and
    `StoreUnavailable`.
    """
    names = list(dict.fromkeys(by))
    statement = usage_statement(names, since, until, where).limit(limit)
    with store.reading() as connection:
        rows = connection.execute(statement).all()
    return list(_named(names, sorted(rows, key=lambda row: row[: len(names)])))


def usage_statement(by: Sequence[str], since: float, until: float | None, where: Mapping[str, str]) -> Statement:
    """The one statement that `usage` runs: sums of each part, summed up. Raises `InvalidBody`."""
    _check("by", by, NAMES)
    _check("where", where, tuple(COLUMNS))
    if until is not None and until < since:
        raise InvalidBody(f"until is before since: {until:.0f} < {since:.0f}", param="until")
    parts = union_all(*(_sums(part, by, where) for part in _parts(since, until, is_hourly="hour" in by))).subquery()
    groups = [parts.c[name] if name in COLUMNS else _start_of(parts.c.starts_at, name) for name in by]
    sums = [func.coalesce(func.sum(parts.c[name]), 0).label(name) for name in SUMS]
    return select(*groups, *sums).group_by(*by)


def _check(what: str, names: Sequence[str] | Mapping[str, str], allowed: Sequence[str]) -> None:
    for name in names:
        if name not in allowed:
            raise InvalidBody(f"{what}: no {name[:40]!r} is kept; allowed: {', '.join(allowed)}", param=what)


def _parts(since: float, until: float | None, *, is_hourly: bool) -> list[Part]:
    """Whole days from the days, the hours before and after them from the hours."""
    start = int(since // HOUR_S * HOUR_S)
    end = None if until is None else int(-(-until // HOUR_S) * HOUR_S)
    first_day = -(-start // DAY_S) * DAY_S
    last_day = None if end is None else end // DAY_S * DAY_S
    if is_hourly or (last_day is not None and last_day <= first_day):
        return [(usage_hours, start, end)]
    edges: list[Part] = [(usage_hours, start, first_day)]
    if last_day is not None:
        edges.append((usage_hours, last_day, end))
    return [(usage_days, first_day, last_day), *(edge for edge in edges if edge[1] != edge[2])]


def _sums(part: Part, by: Sequence[str], where: Mapping[str, str]) -> Statement:
    """Of one part, as finely as can be had without sorting, or as finely as is asked for."""
    table, start, end = part
    names = [name for name in by if name in COLUMNS]
    if names and set(names) <= set(KEY_ORDER):
        names = list(KEY_ORDER[: 1 + max(map(KEY_ORDER.index, names))])
        is_by_time = True
    else:
        is_by_time = any(name in TIMES for name in by)
    groups: list[ColumnElement[str | int]] = [table.c[COLUMNS[name]].label(name) for name in names]
    if is_by_time:
        groups.insert(0, table.c.starts_at)
    wanted = [table.c.starts_at >= start, *(table.c[COLUMNS[name]] == value for name, value in where.items())]
    if end is not None:
        wanted.append(table.c.starts_at < end)
    sums = [func.sum(table.c[name]).label(name) for name in SUMS]
    grouped_by = [table.c.starts_at] * is_by_time + [table.c[COLUMNS[name]] for name in names]
    return select(*groups, *sums).where(and_(*wanted)).group_by(*grouped_by)


def _start_of(starts_at: ColumnElement[int], name: str) -> ColumnElement[int]:
    return (starts_at - starts_at % TIMES[name][0]).label(name)


def _named(by: Sequence[str], rows: Iterable[Row[*tuple[Any, ...]]]) -> Iterator[dict[str, str | int]]:
    """As JSON names them, with times as text; sums as whole numbers, which Postgres gives as decimals."""
    names = (*by, *SUMS.values())
    times = [(at, cache(partial(_instant, TIMES[name][1]))) for at, name in enumerate(by) if name in TIMES]
    for row in rows:
        cells = [*row[: len(by)], *map(int, row[len(by) :])]
        for at, text in times:
            cells[at] = text(cells[at])
        yield dict(zip(names, cells, strict=True))


def _instant(form: str, at: int) -> str:
    return datetime.fromtimestamp(at, UTC).strftime(form)
