"""Records as the ledger tells them, and a store that has them, for the tests of what reads the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from msgspec.structs import replace

from gateway import journal
from gateway.events import Admitted, Charge, Detail, Event, Kind, Noted, Record, Settled
from gateway.history import detail_text
from gateway.rules import Meter, Price
from gateway.store import Store
from gateway.tables import limits, prices

NOON = 1_789_992_000  # 2026-09-21 12:00 UTC
DEAD = "run-that-died"
PRICE = Price(version=1, model="m", prompt_nano=150_000_000, completion_nano=600_000_000, cached_nano=75_000_000)


def request_id(number: int, at: float = NOON) -> str:
    """The id of a request that came at `at`."""
    return f"{int(at * 1000):012x}{number:020x}"


def admitted(number: int = 1, *, at: float = NOON, detail: Detail | None = None, **fields: Any) -> Admitted:
    """Request `number` is let in, of tenant `acme` and of a run that is dead unless `fields` says otherwise."""
    event = Event(
        request_id=request_id(number, at),
        kind=Kind.ADMIT,
        seq=0,
        at=int(at * 1000),
        run_id=DEAD,
        tenant="acme",
        project="default",
        key_id="key_1",
        model="m",
        route="chat",
        lane="standard",
        prompt_tokens=100,
        completion_tokens=500,
        cost_nano=PRICE.cost(100, 500),
        price_version=PRICE.version,
        detail=detail_text(detail or Detail(stream=True)),
    )
    return Admitted(replace(event, **fields))


def failed(admit: Admitted, seq: int = 1, *, after_s: float = 0.5, error: str = "BackendFailed") -> Noted:
    """An attempt came to nothing."""
    return Noted(
        _later(
            admit,
            Kind.ATTEMPT,
            after_s,
            seq=seq,
            backend=f"b{seq}",
            outcome="backend_error",
            wait_ms=10,
            total_ms=200,
            detail=detail_text(Detail(error=error)),
        )
    )


def progressed(admit: Admitted, seq: int = 1, *, after_s: float = 1.0, **fields: Any) -> Noted:
    """What it has used so far."""
    told = {"backend": "b", "source": "reported", "wait_ms": 20, "price_version": admit.event.price_version}
    return Noted(_later(admit, Kind.PROGRESS, after_s, seq=seq, **(told | fields)))


def settled(admit: Admitted, *charges: Charge, after_s: float = 2.0, **fields: Any) -> Settled:
    """It ends well, with 100 + 50 tokens at `PRICE` unless `fields` says otherwise."""
    told: dict[str, Any] = {
        "backend": "b",
        "outcome": "ok",
        "source": "reported",
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "price_version": admit.event.price_version,
        "wait_ms": 20,
        "ttft_ms": 300,
        "total_ms": int(after_s * 1000),
        "detail": detail_text(Detail(charges=charges)),
    } | fields
    tokens = (told["prompt_tokens"], told["completion_tokens"], told.get("cached_tokens", 0))
    told.setdefault("cost_nano", PRICE.cost(*tokens) if told["price_version"] else 0)
    return Settled(_later(admit, Kind.SETTLE, after_s, **told), charges)


def write(store: Store, *records: Record) -> None:
    """Make them durable, as one group."""
    with closing(store.raw_connection()) as connection:
        journal.commit(connection, records, store.dialect)


def add_price(store: Store, price: Price = PRICE) -> None:
    """The store knows `price`."""
    row = {field: getattr(price, field) for field in price.__struct_fields__}
    with store.changing() as connection:
        connection.execute(prices.insert().values(**row, created_at=NOON, revision=1))


def add_budgets(store: Store, budgets: Sequence[tuple[str, Meter]], ended_at: int | None = None) -> None:
    """The store knows budgets of tenant `acme` by these ids."""
    with store.changing() as connection:
        for rule_id, meter in budgets:
            connection.execute(
                limits.insert().values(
                    id=rule_id,
                    scope_kind="tenant",
                    scope_id="acme",
                    meter=meter,
                    amount=10**9,
                    period="day",
                    mode="enforce",
                    created_at=NOON,
                    ended_at=ended_at,
                    revision=1,
                )
            )


def _later(admit: Admitted, kind: Kind, after_s: float, **fields: Any) -> Event:
    event = admit.event
    blank: dict[str, Any] = {"seq": 0, "prompt_tokens": 0, "completion_tokens": 0, "cost_nano": 0, "price_version": 0}
    return replace(event, kind=kind, at=event.at + int(after_s * 1000), **(blank | {"detail": ""} | fields))
