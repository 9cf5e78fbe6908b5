"""Durations and instants as people write them, for the command line and for the admin API."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Literal

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
LONGEST_S = 10_000 * SECONDS["d"]
SHOWN = 60

_DURATION = re.compile(r"([0-9]{1,9})([smhdw])")


def duration_s(text: str) -> int:
    """`90s`, `15m`, `24h`, `7d` or `2w` → seconds. Raises `ValueError` with what would be right."""
    found = _DURATION.fullmatch(text.strip())
    seconds = LONGEST_S + 1 if found is None else int(found[1]) * SECONDS[found[2]]
    if seconds > LONGEST_S:
        raise ValueError(f"{text[:SHOWN]} is not a duration up to 10000d, such as 90s, 15m, 24h, 7d or 2w")
    return seconds


def instant(text: str, now: float, direction: Literal[-1, 1]) -> float:
    """`7d`, so long before (-1) or after (1) `now`, or `2026-01-31[T12:00[+01:00]]`, of UTC where it names no zone →
    Unix seconds. Raises `ValueError` with what would be right.
    """
    if _DURATION.fullmatch(text.strip()):
        return now + direction * duration_s(text)
    try:
        at = datetime.fromisoformat(text.strip())
        return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text[:SHOWN]} is neither a duration, such as 7d, nor an instant, such as 2026-01-31 or 2026-01-31T12:00Z"
        ) from None
