"""Every step of one request, out of the ledger: who asked, what was reserved, where it waited and ran, what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal
from typing import Literal

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, select

from gateway.events import Charge, Event, Kind
from gateway.history import NOTHING_SAID, History, detail_of, event_of, histories
from gateway.request_id import id_at, ledger_id
from gateway.rules import MILLION, NANO, Price
from gateway.store import Store
from gateway.tables import keys, ledger_events, limits, prices

# How far back an id that a client chose is looked for. It has no index, so that writing costs nothing.
SHOWN_ID_S = 3600
MOST_ADMITS = 200_000


class Attempt(Struct, frozen=True, kw_only=True):
    """One try of one backend. `outcome` None: it still runs."""

    number: int
    backend: str
    outcome: str | None
    error: str | None = None
    wait_ms: int | None = None
    total_ms: int | None = None


class BudgetUse(Struct, frozen=True, kw_only=True):
    """What a request took from one window of a budget, in tokens or nano-dollars as `meter` says.

    `charged` is None while it runs. `scope`, `meter` and `period` are None for a budget that the store does not know.
    """

    rule_id: str
    starts_at: int
    scope: str | None
    meter: str | None
    period: str | None
    reserved: int
    charged: int | None


class Step(Struct, frozen=True, kw_only=True):
    """One event in words. `at` is in Unix seconds, `after_ms` since the first."""

    at: float
    after_ms: int
    kind: str
    text: str


class Explanation(Struct, frozen=True, kw_only=True):
    """All that the ledger knows of a request. Instants in Unix seconds, money in nano-dollars.

    `line` is of the batch that made it: the batch's id and the line's number. While it is open, the tokens are what
    was last noted, and its cost is none. `cost_text` is the arithmetic of the cost in words.
    """

    request_id: str
    shown_id: str | None
    line: str | None
    state: Literal["open", "settled"]
    tenant: str
    project: str
    key_id: str
    key_name: str | None
    model: str
    route: str
    lane: str
    stream: bool | None
    run_id: str
    admitted_at: float | None
    settled_at: float | None
    reserved_prompt_tokens: int
    reserved_completion_tokens: int
    reserved_cost_nano: int
    budgets: tuple[BudgetUse, ...]
    attempts: tuple[Attempt, ...]
    wait_ms: int | None
    ttft_ms: int | None
    total_ms: int | None
    outcome: str | None
    error: str | None
    source: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    reasoning_tokens: int
    cost_nano: int
    price_version: int
    cost_text: str
    steps: tuple[Step, ...]


def explain(
    store: Store, request_id: str, *, tenant: str | None = None, clock: Callable[[], float] = time.time
) -> Explanation | None:
    """What happened to a request; None when the ledger does not know it, or it is not of `tenant` where one is given.

    `request_id` is any id that a client was shown. One that the client chose itself is looked for among the newest
    200,000 requests (`MOST_ADMITS`) of the last hour (`SHOWN_ID_S`), all tenants together; of several that it named so,
    the latest is meant. Raises `StoreUnavailable`.
    """
    with store.reading() as connection:
        history = _find(connection, ledger_id(request_id), tenant)
        if history is None:
            chosen = _by_shown_id(connection, request_id, tenant, clock() - SHOWN_ID_S)
            history = None if chosen is None else _find(connection, chosen, tenant)
        return None if history is None else _explanation(connection, history)


def _find(connection: Connection, request_id: str, tenant: str | None) -> History | None:
    found = histories(connection, [request_id])
    return found[0] if found and tenant in (None, found[0].events[0].tenant) else None


def _by_shown_id(connection: Connection, shown_id: str, tenant: str | None, since: float) -> str | None:
    column = ledger_events.c
    as_json = msgspec.json.encode(shown_id).decode()
    query = (
        select(ledger_events)
        .where(column.request_id >= _first_admit(connection, id_at(since)), column.kind == Kind.ADMIT)
        .where(column.detail.contains(f'"shown_id":{as_json}', autoescape=True))
        .order_by(column.request_id.desc())
    )
    if tenant is not None:
        query = query.where(column.tenant == tenant)
    with connection.execute(query, execution_options={"yield_per": 10}) as rows:
        admits = map(event_of, rows)
        # SQLite's LIKE takes capitals and small letters for the same.
        return next((admit.request_id for admit in admits if detail_of(admit).shown_id == shown_id), None)


def _first_admit(connection: Connection, since: str) -> str:
    """`since`, or the oldest of the newest `MOST_ADMITS` admits where more came after it; the key's index tells."""
    column = ledger_events.c
    query = (
        select(column.request_id)
        .where(column.request_id >= since, column.kind == Kind.ADMIT)
        .order_by(column.request_id.desc())
        .limit(1)
        .offset(MOST_ADMITS - 1)
    )
    first: str | None = connection.execute(query).scalar()
    return first or since


def _explanation(connection: Connection, history: History) -> Explanation:
    admit, settle = history.admit, history.settle
    first = history.events[0]
    opened = detail_of(admit) if admit is not None else NOTHING_SAID
    closed = detail_of(settle) if settle is not None else NOTHING_SAID
    last = settle or history.progress
    version = (settle or first).price_version
    attempts = _attempts(history)
    return Explanation(
        request_id=history.request_id,
        shown_id=opened.shown_id or closed.shown_id,
        line=opened.line,
        state="open" if settle is None else "settled",
        tenant=first.tenant,
        project=first.project,
        key_id=first.key_id,
        key_name=connection.execute(select(keys.c.name).where(keys.c.id == first.key_id)).scalar(),
        model=first.model,
        route=first.route,
        lane=first.lane,
        stream=opened.stream,
        run_id=first.run_id,
        admitted_at=None if admit is None else admit.at / 1000,
        settled_at=None if settle is None else settle.at / 1000,
        reserved_prompt_tokens=0 if admit is None else admit.prompt_tokens,
        reserved_completion_tokens=0 if admit is None else admit.completion_tokens,
        reserved_cost_nano=0 if admit is None else admit.cost_nano,
        budgets=_budgets(connection, opened.charges, None if settle is None else closed.charges),
        attempts=attempts,
        wait_ms=None if last is None else last.wait_ms,
        ttft_ms=None if settle is None else settle.ttft_ms,
        total_ms=None if settle is None else settle.total_ms,
        outcome=None if settle is None else settle.outcome,
        error=closed.error,
        source=None if last is None else last.source,
        prompt_tokens=0 if last is None else last.prompt_tokens,
        completion_tokens=0 if last is None else last.completion_tokens,
        cached_tokens=0 if last is None else last.cached_tokens,
        reasoning_tokens=0 if last is None else last.reasoning_tokens,
        cost_nano=0 if settle is None else settle.cost_nano,
        price_version=version,
        cost_text="not settled yet" if settle is None else _cost_text(settle, _price(connection, version)),
        steps=_steps(history),
    )


def _price(connection: Connection, version: int) -> Price | None:
    row = connection.execute(select(prices).where(prices.c.version == version)).one_or_none()
    if row is None:
        return None
    return Price(
        version=row.version,
        model=row.model,
        prompt_nano=row.prompt_nano,
        completion_nano=row.completion_nano,
        cached_nano=row.cached_nano,
    )


def _budgets(
    connection: Connection, reserved: tuple[Charge, ...], charged: tuple[Charge, ...] | None
) -> tuple[BudgetUse, ...]:
    """What was reserved in each window beside what was charged to it."""
    held = {(charge.rule_id, charge.starts_at): charge.amount for charge in reserved}
    taken = {(charge.rule_id, charge.starts_at): charge.amount for charge in charged or ()}
    query = select(limits).where(limits.c.id.in_({rule_id for rule_id, _ in held | taken}))
    rules = {row.id: row for row in connection.execute(query)}
    uses = []
    for rule_id, starts_at in sorted(held | taken):
        rule = rules.get(rule_id)
        use = BudgetUse(
            rule_id=rule_id,
            starts_at=starts_at,
            scope=None if rule is None else f"{rule.scope_kind}:{rule.scope_id}",
            meter=None if rule is None else rule.meter,
            period=None if rule is None else rule.period,
            reserved=held.get((rule_id, starts_at), 0),
            charged=None if charged is None else taken.get((rule_id, starts_at), 0),
        )
        uses.append(use)
    return tuple(uses)


def _attempts(history: History) -> tuple[Attempt, ...]:
    """Those that failed, each an event, and the last, which the settle tells, or progress while it runs."""
    attempts = [
        Attempt(
            number=event.seq,
            backend=event.backend,
            outcome=event.outcome,
            error=detail_of(event).error,
            wait_ms=event.wait_ms,
            total_ms=event.total_ms,
        )
        for event in history.failed_attempts
    ]
    last = history.settle or history.progress
    if last is not None and last.backend:
        detail = detail_of(last)
        number = max(detail.attempts or 1, len(attempts) + (history.settle is None))
        if number > len(attempts):
            attempts.append(
                Attempt(
                    number=number,
                    backend=last.backend,
                    outcome=last.outcome or None,
                    error=detail.error,
                    wait_ms=last.wait_ms,
                    total_ms=None if last.total_ms is None else last.total_ms - (last.wait_ms or 0),
                )
            )
    return tuple(attempts)


def _cost_text(settle: Event, price: Price | None) -> str:
    """The cost as it was computed, such as `80 prompt × $0.15 + 50 completion × $0.6, per million tokens`."""
    if price is None:
        return "no price: nothing is charged"
    fresh = settle.prompt_tokens - settle.cached_tokens
    parts = [
        (fresh, "prompt", price.prompt_nano),
        (settle.cached_tokens, "cached", price.cached_nano),
        (settle.completion_tokens, "completion", price.completion_nano),
    ]
    used = [f"{tokens} {what} × {_dollars(nano)}" for tokens, what, nano in parts if tokens]
    if not used:
        return f"no tokens were used: {_dollars(settle.cost_nano)}"
    is_rounded = sum(tokens * nano for tokens, _, nano in parts) % MILLION != 0
    rounding = ", rounded up to a nano-dollar" if is_rounded else ""
    total = _dollars(settle.cost_nano)
    return f"({' + '.join(used)}) / 1 million tokens = {total}{rounding}; price {price.version} of {price.model}"


def _dollars(nano: int) -> str:
    return f"${(Decimal(nano) / NANO).normalize():f}"


def _steps(history: History) -> tuple[Step, ...]:
    events = sorted(history.events, key=lambda event: (event.at, event.kind, event.seq))
    return tuple(
        Step(
            at=event.at / 1000,
            after_ms=event.at - events[0].at,
            kind=event.kind.name.lower(),
            text=_WORDS[event.kind](event),
        )
        for event in events
    )


def _admit_text(event: Event) -> str:
    reserved = f"{event.prompt_tokens} prompt and {event.completion_tokens} completion tokens"
    cost = f", {_dollars(event.cost_nano)}" if event.price_version else ""
    return f"admitted to lane {event.lane} for {event.model}; reserved {reserved}{cost}"


def _attempt_text(event: Event) -> str:
    return f"attempt {event.seq} on {event.backend} failed: {detail_of(event).error or event.outcome}"


def _progress_text(event: Event) -> str:
    return f"running on {event.backend}: so far {_tokens_text(event)}"


def _settle_text(event: Event) -> str:
    error = detail_of(event).error
    cost = f", {_dollars(event.cost_nano)}" if event.price_version else ""
    return f"{event.outcome}{f' ({error})' if error else ''}: {_tokens_text(event)}{cost}"


def _tokens_text(event: Event) -> str:
    if event.source == "none":
        return "no tokens"
    cached = f" ({event.cached_tokens} cached)" if event.cached_tokens else ""
    return f"{event.prompt_tokens} prompt{cached} and {event.completion_tokens} completion tokens, {event.source}"


_WORDS: dict[Kind, Callable[[Event], str]] = {
    Kind.ADMIT: _admit_text,
    Kind.ATTEMPT: _attempt_text,
    Kind.PROGRESS: _progress_text,
    Kind.SETTLE: _settle_text,
}
