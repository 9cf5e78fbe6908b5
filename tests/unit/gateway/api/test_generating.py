"""What a request says of the time it has."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.api.exchange import Exchange
from gateway.api.generating import SILENCE_HEADER, WHOLE_SILENCE_HEADER, silence_in


def silence(headers: dict[str, str]) -> float | None:
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope: Any = {"type": "http", "method": "POST", "path": "/x", "headers": pairs, "state": {}}
    return silence_in(Exchange.of(scope))


@pytest.mark.parametrize(("sent", "silence_s"), [("2", 3.0), ("600", 601.0), ("0", None), ("soon", None)])
def test_a_time_out_cut_to_whole_seconds_is_never_less_than_the_sdk_waits(sent: str, silence_s: float | None) -> None:
    assert silence({WHOLE_SILENCE_HEADER: sent}) == silence_s


def test_a_time_out_that_is_told_exactly_is_taken_so() -> None:
    assert silence({WHOLE_SILENCE_HEADER: "1", SILENCE_HEADER: "1.9"}) == 1.9


def test_who_announces_none_has_all_the_time() -> None:
    assert silence({}) is None
