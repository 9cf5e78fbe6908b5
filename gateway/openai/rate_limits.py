"""OpenAI's `x-ratelimit-*` headers, and its way to write durations."""

from __future__ import annotations

import math

from gateway.gcra import Headroom, Rates

REQUESTS = (b"x-ratelimit-limit-requests", b"x-ratelimit-remaining-requests", b"x-ratelimit-reset-requests")
TOKENS = (b"x-ratelimit-limit-tokens", b"x-ratelimit-remaining-tokens", b"x-ratelimit-reset-tokens")


def headers(rates: Rates) -> list[tuple[bytes, bytes]]:
    """Limit, remaining and reset, of requests and of tokens. What is unknown is left out, never -1 or 0."""
    return [*_of(rates.requests, REQUESTS), *_of(rates.tokens, TOKENS)]


def duration(seconds: float) -> str:
    """Rounded up to a millisecond: `0s`, `12ms`, `1s`, `7.66s`, `6m0s`, `1h2m3s`."""
    millis = math.ceil(round(seconds * 1000, 3))  # rounded first: 0.012 × 1000 is a little more than 12
    if millis <= 0:
        return "0s"
    if millis < 1000:
        return f"{millis}ms"
    minutes, millis = divmod(millis, 60_000)
    hours, minutes = divmod(minutes, 60)
    decimals = f".{millis % 1000:03d}".rstrip("0").rstrip(".")
    lead = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{lead}{millis // 1000}{decimals}s"


def _of(headroom: Headroom | None, names: tuple[bytes, bytes, bytes]) -> tuple[tuple[bytes, bytes], ...]:
    if headroom is None:
        return ()
    limit, remaining, reset = names
    return (
        (limit, b"%d" % headroom.limit),
        (remaining, b"%d" % headroom.remaining),
        (reset, duration(headroom.reset_s).encode()),
    )
