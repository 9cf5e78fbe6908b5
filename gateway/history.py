"""What the ledger has of single requests: their events in order, and what their details say."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby

import msgspec
from msgspec import Struct
from sqlalchemy import Connection, Row, select

from gateway.events import Detail, Event, Kind
from gateway.tables import ledger_events

NOTHING_SAID = Detail()

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Detail)


class History(Struct, frozen=True):
    """The events of one request, of which there is at least one. Any of them may be missing: it is still running, it
    was cut short, or somebody changed the store."""

    events: tuple[Event, ...]

    @property
    def request_id(self) -> str:
        return self.events[0].request_id

    @property
    def admit(self) -> Event | None:
        """That it was let in, and what was reserved for it."""
        return self._last(Kind.ADMIT)

    @property
    def failed_attempts(self) -> tuple[Event, ...]:
        """The attempts that came to nothing; the last attempt is told by the settle."""
        return tuple(event for event in self.events if event.kind == Kind.ATTEMPT)

    @property
    def progress(self) -> Event | None:
        """The last that was noted of its use while it ran."""
        return self._last(Kind.PROGRESS)

    @property
    def settle(self) -> Event | None:
        """How it ended."""
        return self._last(Kind.SETTLE)

    def _last(self, kind: Kind) -> Event | None:
        return next((event for event in reversed(self.events) if event.kind == kind), None)


def histories(connection: Connection, request_ids: Collection[str]) -> list[History]:
    """Of these requests, those that the ledger knows, by id. `request_ids` is a batch, not thousands."""
    query = (
        select(ledger_events)
        .where(ledger_events.c.request_id.in_(request_ids))
        .order_by(ledger_events.c.request_id, ledger_events.c.kind, ledger_events.c.seq)
    )
    events = (event_of(row) for row in connection.execute(query))
    return [History(tuple(group)) for _, group in groupby(events, key=lambda event: event.request_id)]


def event_of(row: Row[tuple[object, ...]]) -> Event:
    """A whole row of `ledger_events` as the event that it is."""
    return msgspec.convert(tuple(row), Event)


def detail_of(event: Event) -> Detail:
    """What `event.detail` says. Raises `msgspec.DecodeError` when it is not what the ledger writes."""
    return _decoder.decode(event.detail) if event.detail else NOTHING_SAID


def detail_text(detail: Detail) -> str:
    """`Event.detail`: as JSON, nothing at all when nothing is set."""
    text = _encoder.encode(detail)
    return "" if text == b"{}" else text.decode()
