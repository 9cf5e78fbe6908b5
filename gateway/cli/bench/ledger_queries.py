"""Scenario usage: how long questions to a big ledger take, on a SQLite store that is filled for it and removed again.

The requests are spread evenly over 90 days. Of 200 keys in 50 tenants some are used much more than others; a key calls
one or two of six models, in one lane; 95 % of the requests go well.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from functools import partial
from pathlib import Path

from msgspec import Struct
from sqlalchemy import Table, func, select
from sqlalchemy.dialects.sqlite import Insert, insert

from gateway.cli.bench.progress import Phases
from gateway.cli.bench.stats import Spread, spread
from gateway.events import Kind
from gateway.explain import explain
from gateway.journal import DAY_S, HOUR_S
from gateway.request_id import id_at
from gateway.store import Store, StoreOptions
from gateway.tables import ROLLUP_DIMENSIONS, ROLLUP_SUMS, ledger_events, prices, usage_days, usage_hours
from gateway.usage import usage

DAYS = 90
STEPS = 100
REPEATS = 20

# What is asked: `by`, over how many days, of whom.
QUERIES: tuple[tuple[str, float, Mapping[str, str]], ...] = (
    *((by, days, {}) for by in ("tenant", "tenant,day") for days in (7, 30, 90)),
    *((by, DAYS, {}) for by in ("", "day", "model", "tenant,model", "key", "project", "outcome", "model,day")),
    *((by, 1, {}) for by in ("hour", "tenant,hour", "model")),
    *((by, DAYS, {"tenant": "tenant-07"}) for by in ("", "key,model", "day")),
)

PRICE = {  # nano-dollars a million tokens; `EVENTS` counts with the same
    "version": 1,
    "model": "*",
    "prompt_nano": 150_000_000,
    "completion_nano": 600_000_000,
    "cached_nano": 150_000_000,
    "created_at": 0,
}

# Requests :start to :end of :rows, each with its admit and its settle. The multiplications scatter as if at random, and
# the same at every run; ids grow with the number, so that rows are added at the end.
EVENTS = """
WITH RECURSIVE
  numbers(n) AS (SELECT :start UNION ALL SELECT n + 1 FROM numbers WHERE n + 1 < :end),
  scattered AS (
    SELECT n, :since_ms + n * :span_ms / :rows AS at,
      (n * 2654435761) % 4294967296 / 4294967296.0 AS a,
      (n * 2246822519) % 4294967296 / 4294967296.0 AS b,
      (n * 3266489917) % 4294967296 / 4294967296.0 AS c
    FROM numbers),
  chosen AS MATERIALIZED (
    SELECT *, CAST(200 * a * a AS INTEGER) AS key,
      CASE WHEN c < 0.95 THEN 'ok' WHEN c < 0.98 THEN 'client_abort' WHEN c < 0.995 THEN 'backend_error'
        ELSE 'deadline' END AS outcome
    FROM scattered),
  requests AS MATERIALIZED (
    SELECT printf('%012x%020x', at, n) AS id, at, key, outcome, (key + (b < 0.25)) % 6 AS model,
      iif(outcome = 'backend_error', 0, 100 + n % 1900) AS prompt,
      iif(outcome = 'backend_error', 0, 10 + n % 490) AS completion
    FROM chosen),
  kinds(kind) AS (VALUES (0), (3))
INSERT INTO ledger_events (
  request_id, kind, seq, at, run_id, tenant, project, key_id, model, route, lane, backend, outcome, source,
  prompt_tokens, completion_tokens, cached_tokens, reasoning_tokens, cost_nano, price_version,
  wait_ms, ttft_ms, total_ms, detail)
SELECT id, kind, 0, at, '0192f0c0a1b2', printf('tenant-%02d', key / 4), printf('project-%d', key % 2),
  printf('key_%012d', key), printf('vendor/model-%d', model), 'chat', iif(key % 4 = 0, 'batch', 'interactive'),
  iif(kind = 3, 'upstream', ''), iif(kind = 3, outcome, ''),
  CASE WHEN kind = 0 THEN '' WHEN outcome = 'backend_error' THEN 'none'
    WHEN outcome = 'ok' AND model < 4 THEN 'reported' ELSE 'counted' END,
  prompt, completion, prompt / 3, 0, prompt * 150 + completion * 600, 1,
  iif(kind = 3, 5, NULL), iif(kind = 3, 200, NULL), iif(kind = 3, 1500, NULL),
  iif(kind = 3, '{"attempts":1}', '{"stream":true}')
FROM requests CROSS JOIN kinds
"""


class QueryOptions(Struct, frozen=True, kw_only=True):
    """How many settled requests the ledger has, and in which folder it lies meanwhile."""

    usage_rows: int
    usage_folder: str


class Query(Struct, frozen=True, kw_only=True):
    """One question and how many rows answer it."""

    what: str
    answers: int
    time_s: Spread


class LedgerQueries(Struct, frozen=True, kw_only=True):
    """What the store holds, how long it took to fill, and the questions."""

    requests: int
    events: int
    hours: int
    days: int
    file_bytes: int
    filled_in_s: float
    queries: list[Query]


def run(rows: int, folder: Path, phases: Phases) -> LedgerQueries:
    """Ask everything of a store with `rows` settled requests, about 0.5 kB each, in `folder`; nothing stays there."""
    with tempfile.TemporaryDirectory(prefix="laneway-bench-", dir=folder) as name:
        path = Path(name) / "laneway.db"
        began_at = time.perf_counter()
        store = Store.open(StoreOptions(url=f"sqlite:///{path}"))
        try:
            until = time.time()
            _fill(store, rows, until, phases)
            filled_in_s = time.perf_counter() - began_at
            step = phases.begin("usage: questions", len(QUERIES) + 1)
            queries = list(_ask(store, until, step))
            return LedgerQueries(
                requests=rows,
                **_counts(store),
                file_bytes=path.stat().st_size,
                filled_in_s=filled_in_s,
                queries=queries,
            )
        finally:
            store.close()


def _fill(store: Store, rows: int, until: float, phases: Phases) -> None:
    span_ms = DAYS * DAY_S * 1000
    since_ms = int(until * 1000) - span_ms
    step = phases.begin(f"usage: {rows} requests into the ledger", STEPS)
    with store.changing() as connection:
        connection.execute(insert(prices).values(PRICE | {"revision": store.next_revision(connection)}))
    for number in range(STEPS):
        start, end = number * rows // STEPS, (number + 1) * rows // STEPS
        values = {"start": start, "end": end, "since_ms": since_ms, "span_ms": span_ms, "rows": rows}
        with store.changing() as connection:
            connection.exec_driver_sql(EVENTS, values)
            for rollup, length_s in ((usage_hours, HOUR_S), (usage_days, DAY_S)):
                connection.execute(_add_up(rollup, length_s, id_at((since_ms + start * span_ms // rows) / 1000)))
        step()


def _add_up(rollup: Table, length_s: int, first: str) -> Insert:
    """The settles from the id `first` on into a rollup."""
    of = ledger_events.c
    groups = [of.at // (length_s * 1000) * length_s, *(of[name] for name in ROLLUP_DIMENSIONS)]
    sums = [func.count(), *(func.sum(of[name]) for name in ROLLUP_SUMS[1:])]
    settles = select(*groups, *sums).where(of.kind == Kind.SETTLE, of.request_id >= first).group_by(*groups)
    rows = insert(rollup).from_select(rollup.c.keys(), settles)
    added = {name: rollup.c[name] + rows.excluded[name] for name in ROLLUP_SUMS}
    return rows.on_conflict_do_update(index_elements=rollup.primary_key, set_=added)


def _counts(store: Store) -> dict[str, int]:
    tables = {"events": ledger_events, "hours": usage_hours, "days": usage_days}
    with store.reading() as connection:
        return {
            name: connection.execute(select(func.count()).select_from(tables[name])).scalar_one() for name in tables
        }


def _ask(store: Store, until: float, step: Callable[[], None]) -> Iterator[Query]:
    for by, days, where in QUERIES:
        names = by.split(",") if by else []
        of = "".join(f" where {name} = {value}" for name, value in where.items())
        ask = partial(usage, store, by=names, since=until - days * DAY_S, where=where)
        yield _time(f"{by or 'total'}, {days} d{of}", [ask] * REPEATS)
        step()
    ids = _some_ids(store)
    yield _time("explain by id", [partial(_steps, store, request_id) for request_id in ids])
    step()


def _time(what: str, questions: Sequence[Callable[[], Sized]]) -> Query:
    """Also the first, for which nothing is in the process's memory yet."""
    times = []
    for ask in questions:
        began_at = time.perf_counter()
        answers = len(ask())
        times.append(time.perf_counter() - began_at)
    return Query(what=what, answers=answers, time_s=spread(times))


def _some_ids(store: Store) -> list[str]:
    """Of requests all over the ledger."""
    column = ledger_events.c.request_id
    with store.reading() as connection:
        [(first, last)] = connection.execute(select(func.min(column), func.max(column)))
        places = (
            int(first[:12], 16) + (int(last[:12], 16) - int(first[:12], 16)) * n // REPEATS for n in range(REPEATS)
        )
        return [
            connection.execute(select(column).where(column >= f"{place:012x}").order_by(column).limit(1)).scalar_one()
            for place in places
        ]


def _steps(store: Store, request_id: str) -> Sized:
    explanation = explain(store, request_id)
    return () if explanation is None else explanation.steps
