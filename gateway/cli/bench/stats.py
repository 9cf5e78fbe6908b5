"""Numbers out of replies: percentiles, spreads, and a tally of what went wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from gateway.cli.bench.client import Reply


class Spread(Struct, frozen=True):
    """How values are distributed; all None when there are none."""

    n: int
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None


class Tally(Struct, frozen=True):
    """What went wrong or short. Failed requests are in no other number."""

    requests: int
    failed: int
    first_error: str | None
    short_outputs: int


def percentile(values: Iterable[float], q: float) -> float | None:
    """Linear interpolation between the two nearest ranks, `q` in 0..100; None when empty."""
    ordered = sorted(values)
    if not ordered:
        return None
    rank = (len(ordered) - 1) * q / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def spread(values: Iterable[float]) -> Spread:
    """The spread of `values`."""
    data = sorted(values)
    return Spread(
        n=len(data),
        p50=percentile(data, 50),
        p95=percentile(data, 95),
        p99=percentile(data, 99),
        max=data[-1] if data else None,
    )


def tally(replies: Iterable[Reply]) -> Tally:
    """Count failures, and answers shorter than asked for."""
    every = list(replies)
    errors = [reply.error for reply in every if reply.error is not None]
    short = sum(reply.is_good and reply.output_tokens < reply.tokens_asked for reply in every)
    return Tally(
        requests=len(every), failed=len(errors), first_error=errors[0] if errors else None, short_outputs=short
    )


def ratio(above: float | None, below: float | None) -> float | None:
    """`above / below` where both are known."""
    return above / below if above is not None and below else None
