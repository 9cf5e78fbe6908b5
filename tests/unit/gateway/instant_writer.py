"""A writer that is always done at once, for tests in virtual time, where no thread can be waited for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

from gateway.events import Event, Kind, Record
from gateway.writer import Writer


class InstantWriter:
    """Keeps what it is told; `is_accepting` can be taken away."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.is_accepting = True

    def write_ahead(self, records: Sequence[Record]) -> bool:
        return False

    def submit(self, records: Sequence[Record], done: Callable[[], None] | None = None) -> None:
        self.records += records
        if done is not None:
            done()

    def as_writer(self) -> Writer:
        return cast(Writer, self)

    def events(self, kind: Kind) -> list[Event]:
        """Of one kind, in the order in which they were told."""
        return [record.event for record in self.records if record.event.kind == kind]
