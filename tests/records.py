"""Records of the ledger for tests: numbered requests that say only what a test is about, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select

from gateway.events import Admitted, Answer, Charge, Event, Kind, Noted, Settled
from gateway.store import Store
from gateway.tables import answers, budget_windows, ledger_events, open_requests, usage_days, usage_hours

START_MS = 1_790_000_000_000  # 2026-09-21 14:13:20 UTC
LEDGER = (ledger_events, open_requests, usage_hours, usage_days, budget_windows, answers)


def request_id(number: int) -> str:
    return f"{START_MS + number:012x}{number:020x}"


def event(number: int, kind: Kind, **fields: Any) -> Event:
    usual: dict[str, Any] = {"at": START_MS + number, "run_id": "run", "tenant": "acme", "project": "default"}
    usual |= {"seq": 0, "key_id": "key", "model": "m", "route": "chat", "lane": "standard"}
    return Event(request_id=request_id(number), kind=kind, **(usual | fields))


def admit(number: int, **fields: Any) -> Admitted:
    return Admitted(event(number, Kind.ADMIT, **fields))


def note(number: int, seq: int, **fields: Any) -> Noted:
    return Noted(event(number, Kind.PROGRESS, seq=seq, **fields))


def settle(number: int, charges: Sequence[Charge] = (), answer: Answer | None = None, **fields: Any) -> Settled:
    usual = {"outcome": "ok", "source": "reported", "prompt_tokens": 10, "completion_tokens": 5, "cost_nano": 700}
    return Settled(event(number, Kind.SETTLE, **(usual | fields)), tuple(charges), answer)


def answer(number: int, name: str, body: bytes = b"{}") -> Answer:
    return Answer(
        key_id="key",
        name_digest=name.encode(),
        body_digest=b"digest",
        request_id=request_id(number),
        at=START_MS,
        content_type="application/json",
        body=body,
    )


def tables(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    """Every row that the journal writes, in the order of their keys."""
    with store.reading() as connection:
        return {
            table.name: [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))]
            for table in LEDGER
        }
