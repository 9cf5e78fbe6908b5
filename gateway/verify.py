"""Proves the ledger: what its settles add up to is what the rollups and the budgets say, and every request is whole."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import groupby
from operator import add, itemgetter
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, Numeric, Select, Table, and_, cast, exists, func, literal, or_, select
from sqlalchemy.sql import ColumnElement

from gateway.events import Detail, Kind
from gateway.journal import DAY_S, HOUR_S
from gateway.retention import Retained
from gateway.rules import MILLION
from gateway.store import Store
from gateway.tables import (
    ROLLUP_DIMENSIONS,
    ROLLUP_SUMS,
    audit,
    budget_windows,
    ledger_events,
    open_requests,
    prices,
    usage_days,
    usage_hours,
)

MOST_LISTED = 100  # findings of one kind: a broken store has too many to read
ROWS_AT_ONCE = 1000

FindingKind: TypeAlias = Literal[
    "hour",  # a row of `usage_hours` is not the sum of its settles
    "day",  # likewise of `usage_days`
    "window",  # a budget's window is not the sum of its charges
    "reservation",  # the running server holds something for a request that is over
    "unsettled",  # an admitted request is neither settled nor open
    "unrecovered",  # a request is open, and its server is dead: `laneway ledger recover` settles it
    "unadmitted",  # a request has events and no admit
    "open",  # a row of `open_requests` has no admit, or a settle
    "counts",  # token counts that cannot be
    "cost",  # a cost that is not what the price makes of the counts
    "detail",  # a settle's detail cannot be read
]
Key: TypeAlias = tuple[str, ...]  # tables.ROLLUP_DIMENSIONS
Sums: TypeAlias = tuple[int, ...]  # tables.ROLLUP_SUMS
Groups: TypeAlias = dict[Key, Sums]  # of one hour or day
WindowUse: TypeAlias = tuple[str, int, int]  # rule id, starts_at, used

NO_SUMS: Sums = (0,) * len(ROLLUP_SUMS)


class Finding(Struct, frozen=True, kw_only=True):
    """Something that cannot be: `what` names the row or the request, the others say in words what it says."""

    kind: FindingKind
    what: str
    expected: str
    found: str


class InFlight(Struct, frozen=True, kw_only=True):
    """A request that a living server works on. `admitted_at` in Unix seconds."""

    request_id: str
    run_id: str
    tenant: str
    model: str
    admitted_at: float


class Checked(Struct, frozen=True, kw_only=True):
    """How much was compared."""

    settles: int = 0
    hours: int = 0
    days: int = 0
    windows: int = 0


class Report(Struct, frozen=True, kw_only=True):
    """What `verify` found. At most `MOST_LISTED` findings of a kind are listed, `left_out` are not.

    Where retention removed events, only what lies wholly after `since` (Unix seconds) could be compared.
    """

    findings: tuple[Finding, ...]
    left_out: int
    in_flight: tuple[InFlight, ...]
    checked: Checked
    since: int | None

    @property
    def is_clean(self) -> bool:
        """Whether the ledger holds. Requests in flight are no finding."""
        return not self.findings


def verify(store: Store) -> Report:
    """Compare everything, at one moment, also while servers write. Memory does not grow with the events.

    Raises `StoreUnavailable`.
    """
    living = store.living_runs()
    findings = _Findings()
    with store.reading() as connection:  # sees one moment
        horizon = _horizon(connection)
        since = horizon or 0
        rollups = _check_rollups(connection, since, findings)
        num_windows = _check_windows(connection, since, findings)
        living |= store.living_runs()  # one that ended since the snapshot was alive in it, and one that began since
        in_flight = _check_whole(connection, living, findings)
        _check_open(connection, findings)
        _check_counts(connection, findings)
        _check_costs(connection, findings)
    checked = Checked(settles=rollups["settles"], hours=rollups["hour"], days=rollups["day"], windows=num_windows)
    return Report(
        findings=tuple(findings.listed),
        left_out=findings.num_left_out,
        in_flight=in_flight,
        checked=checked,
        since=horizon,
    )


def compare_windows(durable: Iterable[WindowUse], live: Iterable[WindowUse]) -> list[Finding]:
    """Budget windows as the store has them (opening + used) and as a running server counts them, at one moment.

    A window that only one side has counts as unused on the other.
    """
    expected, found = _used(durable), _used(live)
    return [
        Finding(kind="window", what=_window_name(*window), expected=str(expected[window]), found=str(found[window]))
        for window in sorted(expected.keys() | found.keys())
        if expected[window] != found[window]
    ]


class _Findings:
    """What was found so far."""

    def __init__(self) -> None:
        self.listed: list[Finding] = []
        self.num_left_out = 0
        self._num: Counter[str] = Counter()

    def add(self, kind: FindingKind, what: str, expected: object, found: object) -> None:
        self._num[kind] += 1
        if self._num[kind] > MOST_LISTED:
            self.num_left_out += 1
        else:
            self.listed.append(Finding(kind=kind, what=what, expected=str(expected), found=str(found)))


def _horizon(connection: Connection) -> int | None:
    """Up to when retention may have removed events, in Unix seconds; None when it never did."""
    query = select(audit.c.detail).where(audit.c.action == "ledger.retain").order_by(audit.c.id.desc()).limit(1)
    detail = connection.execute(query).scalar()
    return None if detail is None else msgspec.json.decode(detail, type=Retained).before


# Rollups. Both sides come by hour, so what is in memory is one day, however many events there are.


def _check_rollups(connection: Connection, since: int, findings: _Findings) -> Counter[str]:
    """Hours and days against the settles, from the first whole ones after `since`; how many rows were compared."""
    num: Counter[str] = Counter()
    first_hour, first_day = _next_start(since, HOUR_S), _next_start(since, DAY_S)

    def compare(kind: Literal["hour", "day"], starts_at: int, expected: Groups, found: Groups) -> None:
        num[kind] += len(expected.keys() | found.keys())
        for key in sorted(expected.keys() | found.keys()):
            wanted, there = expected.get(key, NO_SUMS), found.get(key, NO_SUMS)
            if wanted != there:
                findings.add(kind, _rollup_name(starts_at, key), _differing(wanted, there), _differing(there, wanted))

    def days() -> Iterator[tuple[int, Groups]]:
        settles = _groups(connection, _settles_by_hour(first_hour))
        hours = _side_by_side(settles, _groups(connection, _rollup(usage_hours, first_hour)))
        for day, hours_of_day in groupby(hours, key=lambda hour: hour[0] // DAY_S * DAY_S):
            total: defaultdict[Key, Sums] = defaultdict(lambda: NO_SUMS)
            for starts_at, expected, found in hours_of_day:
                compare("hour", starts_at, expected, found)
                for key, sums in expected.items():
                    total[key] = tuple(map(add, total[key], sums))
                    num["settles"] += sums[0]
            if day >= first_day:
                yield day, dict(total)

    for starts_at, expected, found in _side_by_side(days(), _groups(connection, _rollup(usage_days, first_day))):
        compare("day", starts_at, expected, found)
    return num


def _settles_by_hour(since: int) -> Select[Any]:
    column = ledger_events.c
    hour = (column.at // (HOUR_S * 1000) * HOUR_S).label("hour")
    dimensions = [column[name] for name in ROLLUP_DIMENSIONS]
    sums = [func.count(), *(func.sum(column[name]) for name in ROLLUP_SUMS[1:])]
    return (
        select(hour, *dimensions, *sums)
        .where(column.kind == Kind.SETTLE, column.at >= since * 1000)
        .group_by(hour, *dimensions)
        .order_by(hour)
    )


def _rollup(table: Table, since: int) -> Select[Any]:
    columns = [table.c[name] for name in ("starts_at", *ROLLUP_DIMENSIONS, *ROLLUP_SUMS)]
    return select(*columns).where(table.c.starts_at >= since).order_by(table.c.starts_at)


def _groups(connection: Connection, query: Select[Any]) -> Iterator[tuple[int, Groups]]:
    """Rows of (hour or day, dimensions, sums) in the order of time, as one dictionary for each."""
    first_sum = 1 + len(ROLLUP_DIMENSIONS)
    rows = connection.execute(query, execution_options={"yield_per": ROWS_AT_ONCE})
    for starts_at, group in groupby(rows, key=itemgetter(0)):
        yield starts_at, {tuple(row[1:first_sum]): tuple(map(int, row[first_sum:])) for row in group}


def _side_by_side(
    expected: Iterator[tuple[int, Groups]], found: Iterator[tuple[int, Groups]]
) -> Iterator[tuple[int, Groups, Groups]]:
    """Both in the order of time; what only one has is empty on the other side."""
    merged = heapq.merge(
        ((starts_at, 0, groups) for starts_at, groups in expected),
        ((starts_at, 1, groups) for starts_at, groups in found),
        key=itemgetter(0, 1),
    )
    for starts_at, parts in groupby(merged, key=itemgetter(0)):
        sides: tuple[Groups, Groups] = ({}, {})
        for _, side, groups in parts:
            sides[side].update(groups)
        yield starts_at, *sides


def _next_start(since: int, length_s: int) -> int:
    return -(-since // length_s) * length_s


def _rollup_name(starts_at: int, key: Key) -> str:
    dimensions = ", ".join(f"{name} {value}" for name, value in zip(ROLLUP_DIMENSIONS, key, strict=True))
    return f"{_instant(starts_at)}: {dimensions}"


def _differing(sums: Sums, other: Sums) -> str:
    parts = zip(ROLLUP_SUMS, sums, other, strict=True)
    return ", ".join(f"{name} {value}" for name, value, there in parts if value != there)


def _instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


# Budgets.


def _check_windows(connection: Connection, since: int, findings: _Findings) -> int:
    """Each window that began after `since` against the charges of the settles; how many were compared."""
    charged = _charged(connection, findings)
    query = select(budget_windows.c.rule_id, budget_windows.c.starts_at, budget_windows.c.used)
    used = _used(connection.execute(query))
    windows = [window for window in charged.keys() | used.keys() if window[1] >= since]
    for window in sorted(windows):
        if charged[window] != used[window]:
            findings.add("window", _window_name(*window), charged[window], used[window])
    return len(windows)


def _charged(connection: Connection, findings: _Findings) -> Counter[tuple[str, int]]:
    charged: Counter[tuple[str, int]] = Counter()
    decoder = msgspec.json.Decoder(Detail)
    query = select(ledger_events.c.request_id, ledger_events.c.detail).where(
        ledger_events.c.kind == Kind.SETTLE, ledger_events.c.detail != ""
    )
    for request_id, detail in connection.execute(query, execution_options={"yield_per": ROWS_AT_ONCE}):
        try:
            charges = decoder.decode(detail).charges
        except msgspec.DecodeError as error:
            findings.add("detail", request_id, "JSON of a settle's detail", str(error)[:200])
            continue
        for charge in charges:
            charged[charge.rule_id, charge.starts_at] += charge.amount
    return charged


def _used(windows: Iterable[WindowUse]) -> Counter[tuple[str, int]]:
    return Counter({(rule_id, starts_at): used for rule_id, starts_at, used in windows})


def _window_name(rule_id: str, starts_at: int) -> str:
    return f"{rule_id} from {_instant(starts_at)}"


# Requests.


def _check_whole(connection: Connection, living: set[str], findings: _Findings) -> tuple[InFlight, ...]:
    """That every request has an admit, and a settle unless a living server works on it; those are returned."""
    column = ledger_events.c
    first, last = func.min(column.kind), func.max(column.kind)
    broken = (
        select(column.request_id, first.label("first"), last.label("last"))
        .group_by(column.request_id)
        .having(or_(first != Kind.ADMIT, last != Kind.SETTLE))
        .subquery()
    )
    admit = ledger_events.alias()
    query = (
        select(broken, open_requests.c.run_id, admit.c.tenant, admit.c.model, admit.c.at)
        .outerjoin(open_requests, open_requests.c.request_id == broken.c.request_id)
        .outerjoin(admit, and_(admit.c.request_id == broken.c.request_id, admit.c.kind == Kind.ADMIT))
        .order_by(broken.c.request_id)
    )
    in_flight = []
    for row in connection.execute(query, execution_options={"yield_per": ROWS_AT_ONCE}):
        if row.first != Kind.ADMIT:
            findings.add("unadmitted", row.request_id, "an admit", Kind(row.first).name.lower())
        elif row.run_id is None:
            findings.add("unsettled", row.request_id, "a settle", "none, and it is not open")
        elif row.run_id not in living:
            findings.add("unrecovered", row.request_id, "a settle", f"open, of the dead run {row.run_id}")
        else:
            in_flight.append(
                InFlight(
                    request_id=row.request_id,
                    run_id=row.run_id,
                    tenant=row.tenant,
                    model=row.model,
                    admitted_at=row.at / 1000,
                )
            )
    return tuple(in_flight)


def _check_open(connection: Connection, findings: _Findings) -> None:
    def has(kind: Kind) -> ColumnElement[bool]:
        event = ledger_events.alias()
        return exists().where(event.c.request_id == open_requests.c.request_id, event.c.kind == kind)

    query = select(open_requests.c.request_id, has(Kind.ADMIT), has(Kind.SETTLE)).order_by(open_requests.c.request_id)
    for request_id, is_admitted, is_settled in connection.execute(query):
        if not is_admitted:
            findings.add("open", request_id, "an admit", "none")
        if is_settled:
            findings.add("open", request_id, "closed, since it is settled", "open")


def _check_counts(connection: Connection, findings: _Findings) -> None:
    names = [f"{kind}_tokens" for kind in ("prompt", "completion", "cached", "reasoning")] + ["cost_nano"]
    column = ledger_events.c
    query = (
        select(column.request_id, column.kind, *(column[name] for name in names))
        .where(or_(column.cached_tokens > column.prompt_tokens, *(column[name] < 0 for name in names)))
        .order_by(column.request_id)
    )
    for row in connection.execute(query, execution_options={"yield_per": ROWS_AT_ONCE}):
        counts = ", ".join(f"{name} {row._mapping[name]}" for name in names)
        what = f"{row.request_id} {Kind(row.kind).name.lower()}"
        findings.add("counts", what, "none below 0, and cached_tokens among prompt_tokens", counts)


def _check_costs(connection: Connection, findings: _Findings) -> None:
    """That every settle costs what its price says, rounded up to a nano-dollar; nothing without a price."""
    column = ledger_events.c

    def product(tokens: ColumnElement[int], nano: ColumnElement[int]) -> ColumnElement[int]:
        return cast(tokens, Numeric) * nano

    exact = (
        product(column.prompt_tokens - column.cached_tokens, prices.c.prompt_nano)
        + product(column.cached_tokens, prices.c.cached_nano)
        + product(column.completion_tokens, prices.c.completion_nano)
    )
    too_much = product(column.cost_nano, literal(MILLION)) - exact
    query = (
        select(column.request_id, column.price_version, column.cost_nano, exact.label("exact"))
        .outerjoin(prices, prices.c.version == column.price_version)
        .where(column.kind == Kind.SETTLE)
        .where(
            or_(
                and_(prices.c.version.is_(None), column.cost_nano != 0),
                and_(prices.c.version.is_not(None), or_(too_much < 0, too_much >= MILLION)),
            )
        )
        .order_by(column.request_id)
    )
    for request_id, version, cost, millionths in connection.execute(
        query, execution_options={"yield_per": ROWS_AT_ONCE}
    ):
        expected = 0 if millionths is None else -(-int(millionths) // MILLION)
        findings.add("cost", request_id, f"{expected} nano-dollars by price {version}", cost)
