"""The rate limit headers, as OpenAI writes them."""

from __future__ import annotations

import pytest

from gateway.gcra import Headroom, Rates
from gateway.openai.rate_limits import duration, headers


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.000001, "1ms"),  # never "now" while there is something to wait for
        (0.012, "12ms"),
        (0.0121, "13ms"),
        (0.999, "999ms"),
        (0.9991, "1s"),
        (1, "1s"),
        (1.2, "1.2s"),
        (8.571429, "8.572s"),
        (59.9999, "1m0s"),
        (90.951, "1m30.951s"),
        (360, "6m0s"),
        (3723, "1h2m3s"),
        (7200, "2h0m0s"),
        (30 * 86400, "720h0m0s"),
    ],
)
def test_durations_are_written_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_both_kinds_have_limit_remaining_and_reset() -> None:
    rates = Rates(requests=Headroom(500, 499, 0.12), tokens=Headroom(30_000, 0, 60.0))

    assert headers(rates) == [
        (b"x-ratelimit-limit-requests", b"500"),
        (b"x-ratelimit-remaining-requests", b"499"),
        (b"x-ratelimit-reset-requests", b"120ms"),
        (b"x-ratelimit-limit-tokens", b"30000"),
        (b"x-ratelimit-remaining-tokens", b"0"),
        (b"x-ratelimit-reset-tokens", b"1m0s"),
    ]


def test_what_is_unknown_is_left_out() -> None:
    assert headers(Rates()) == []
    assert [name for name, _ in headers(Rates(tokens=Headroom(5, 5, 0.0)))] == [
        b"x-ratelimit-limit-tokens",
        b"x-ratelimit-remaining-tokens",
        b"x-ratelimit-reset-tokens",
    ]
