"""The events of a request are read as they were written."""

from __future__ import annotations

import msgspec
import pytest

from gateway.events import Charge, Detail, Record
from gateway.history import detail_of, detail_text, histories
from gateway.store import Store
from tests.ledger_records import admitted, failed, progressed, request_id, settled, write


def test_events_come_back_by_request_and_in_order(store: Store) -> None:
    first, second = admitted(1), admitted(2, detail=Detail(charges=(Charge("lim", 0, 5),)))
    of_first: list[Record] = [first, failed(first), progressed(first, 1), progressed(first, 2), settled(first)]
    for record in reversed([*of_first, second]):
        write(store, record)

    with store.reading() as connection:
        one, two = histories(connection, [request_id(2), request_id(1), request_id(3)])

    assert one.events == tuple(record.event for record in of_first)
    assert (one.request_id, one.admit, one.settle) == (request_id(1), first.event, of_first[-1].event)
    assert (one.failed_attempts, one.progress) == ((of_first[1].event,), of_first[3].event)
    assert (two.events, two.progress, two.settle) == ((second.event,), None, None)


def test_a_detail_comes_back_as_it_was_and_nothing_is_written_for_nothing() -> None:
    detail = Detail(shown_id="mine", stream=False, charges=(Charge("lim", 0, 5),), error="E", attempts=2)
    event = admitted(detail=detail).event

    assert detail_of(event) == detail
    assert detail_text(Detail()) == ""
    assert detail_of(msgspec.structs.replace(event, detail="")) == Detail()


def test_a_detail_that_the_ledger_did_not_write_is_an_error() -> None:
    with pytest.raises(msgspec.DecodeError):
        detail_of(msgspec.structs.replace(admitted().event, detail="{'"))
