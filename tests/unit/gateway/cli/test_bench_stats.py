"""Percentiles of few values, and what a report counts."""

from __future__ import annotations

import pytest

from gateway.cli.bench.client import Reply
from gateway.cli.bench.roofline import Roofline
from gateway.cli.bench.stats import percentile, ratio, spread, tally


@pytest.mark.parametrize(
    ("values", "q", "expected"),
    [
        ([], 99, None),
        ([7], 50, 7),
        ([7], 99, 7),
        ([1, 3], 50, 2),
        ([3, 1], 99, 2.98),
        ([1, 2, 3], 50, 2),
        ([4, 1, 3, 2], 50, 2.5),
        ([1, 2, 3, 4], 0, 1),
        ([1, 2, 3, 4], 100, 4),
        (list(range(101)), 99, 99),
    ],
)
def test_percentiles_interpolate_between_the_nearest_ranks(values: list[float], q: float, expected: float) -> None:
    assert percentile(values, q) == pytest.approx(expected)


def test_the_spread_of_nothing_is_unknown() -> None:
    empty = spread([])

    assert (empty.n, empty.p50, empty.p99, empty.max) == (0, None, None, None)


def test_failures_and_short_answers_are_counted_apart() -> None:
    good = Reply(started_at=0, tokens_asked=2, stamps=[1, 2], ended_at=2, completion_tokens=2)
    short = Reply(started_at=0, tokens_asked=2, stamps=[1], ended_at=2, completion_tokens=1)
    failed = Reply(started_at=0, tokens_asked=2, error="HTTP 500")

    count = tally([good, short, failed, failed])

    assert (count.requests, count.failed, count.first_error, count.short_outputs) == (4, 2, "HTTP 500", 1)


def test_times_come_from_the_events_with_text() -> None:
    reply = Reply(started_at=1, tokens_asked=3, stamps=[2, 3, 5], ended_at=6, completion_tokens=4)

    assert (reply.ttft, reply.gaps, reply.tpot, reply.e2e) == (1, [1, 2], 1, 5)


def test_one_token_has_no_time_per_later_token() -> None:
    assert Reply(started_at=0, tokens_asked=1, stamps=[2], completion_tokens=1).tpot is None


def test_a_ratio_to_nothing_is_unknown() -> None:
    assert (ratio(1, 2), ratio(None, 2), ratio(1, None), ratio(1, 0)) == (0.5, None, None, None)


def test_the_roofline_counts_the_head_for_sampled_tokens_only() -> None:
    roofline = Roofline(flops_s=1000, threads=2, body_params=10, head_params=5)

    assert roofline.share(tokens=100, sampled_tokens=20, wall_s=4) == (2 * 10 * 100 + 2 * 5 * 20) / 4000
