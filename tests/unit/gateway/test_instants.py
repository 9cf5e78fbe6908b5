"""Durations and instants as people write them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from gateway.instants import duration_s, instant

NOW = 1_789_992_000.0
DAY = 86_400


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("7d", NOW - 7 * DAY),
        ("24h", NOW - DAY),
        ("30m", NOW - 1800),
        ("2026-11-01", datetime(2026, 11, 1, tzinfo=UTC).timestamp()),
        ("2026-11-01T14:00:00Z", datetime(2026, 11, 1, 14, tzinfo=UTC).timestamp()),
        ("2026-11-01T14:00", datetime(2026, 11, 1, 14, tzinfo=UTC).timestamp()),
        ("2026-11-01T14:00:00+02:00", datetime(2026, 11, 1, 12, tzinfo=UTC).timestamp()),
    ],
)
def test_a_start_is_so_long_ago_or_a_date_or_a_time(text: str, at: float) -> None:
    assert instant(text, NOW, -1) == at


@pytest.mark.parametrize("text", ["", "d", "7", "7y", "-7d", "9999999d", "yesterday", "2026-13-01"])
def test_any_other_start_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match=r"2026-01-31 or 2026-01-31T12:00Z|not a duration"):
        instant(text, NOW, -1)


def test_the_same_words_reach_into_the_future() -> None:
    assert instant("2w", NOW, 1) == NOW + 14 * DAY


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("24h", DAY), ("7d", 7 * DAY), ("2w", 14 * DAY)]
)
def test_durations(text: str, seconds: int) -> None:
    assert duration_s(text) == seconds
