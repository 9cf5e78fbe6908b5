"""What limits say: scopes, rules, periods and prices, as values. What was used against them is `limits.py`'s."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Literal, TypeAlias
from zoneinfo import ZoneInfo

from msgspec import Struct

ScopeKind: TypeAlias = Literal["key", "project", "tenant", "model"]
Meter: TypeAlias = Literal["rpm", "tpm", "concurrency", "tokens", "usd"]
Mode: TypeAlias = Literal["enforce", "shadow", "soft"]

BUDGETS: frozenset[Meter] = frozenset(("tokens", "usd"))
CALENDAR = ("hour", "day", "week", "month")
PREPAID = "prepaid"
ANY_MODEL = "*"  # its price is that of models without one
ROLLING_BUCKET_S = 3600
LONGEST_ROLLING_H = 366 * 24
NANO = 1_000_000_000  # nano-dollars in a dollar
MILLION = 1_000_000

_ROLLING = re.compile(r"rolling:([1-9][0-9]{0,4})([hd])")


class Scope(Struct, frozen=True):
    """Whose use is counted. A project's id is `tenant/project`; the others are a tenant's name, a key's id, a model."""

    kind: ScopeKind
    id: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


class Rule(Struct, frozen=True, kw_only=True):
    """One limit of one scope.

    `amount` is in requests a minute (rpm), tokens a minute (tpm), requests at once (concurrency), tokens (tokens) or
    nano-dollars (usd). Budgets (tokens, usd) have a `period`: `hour`, `day`, `week` or `month` by the calendar of
    `time_zone`, `rolling:24h`, `rolling:30d`, or `prepaid`, which never resets and grows by top-ups. `model` restricts
    the rule to requests for that model. `enforce` refuses; `shadow` only counts what it would have refused; `soft`
    tells once a window (log line and webhook) when the amount is passed, and refuses nothing.
    """

    id: str
    scope: Scope
    meter: Meter
    amount: int
    period: str | None = None
    time_zone: str = "UTC"
    mode: Mode = "enforce"
    model: str | None = None

    @property
    def is_budget(self) -> bool:
        """Whether it counts over a window rather than a rate or what runs."""
        return self.meter in BUDGETS


class Price(Struct, frozen=True, kw_only=True):
    """What a model costs, in nano-dollars a million tokens. Of several versions the highest holds."""

    version: int
    model: str
    prompt_nano: int
    completion_nano: int
    cached_nano: int

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> int:
        """Nano-dollars, rounded up once, so that no request that has a price is free by rounding."""
        fresh = prompt_tokens - cached_tokens
        exact = fresh * self.prompt_nano + cached_tokens * self.cached_nano + completion_tokens * self.completion_nano
        return -(-exact // MILLION)


class Window(Struct, frozen=True):
    """A stretch of a budget's time, in Unix seconds: `starts_at` is its name in the store, `ends_at` None is never."""

    starts_at: int
    ends_at: int | None


def check_period(period: str) -> str | None:
    """None when `period` can be a budget's, else what would be right."""
    rolling = rolling_hours(period)
    if period in CALENDAR or period == PREPAID or (rolling is not None and rolling <= LONGEST_ROLLING_H):
        return None
    return f"one of {', '.join(CALENDAR)}, {PREPAID}, or rolling:Nh or rolling:Nd up to 366 days"


def rolling_hours(period: str | None) -> int | None:
    """Hours of a rolling period, None for any other."""
    found = _ROLLING.fullmatch(period or "")
    return None if found is None else int(found[1]) * (24 if found[2] == "d" else 1)


def window_at(rule: Rule, now: float) -> Window:
    """The window of a budget at `now` (Unix seconds), into which a request admitted now is charged.

    A rolling budget is charged into buckets of an hour; `ends_at` is when the bucket has left the period.
    """
    assert rule.period is not None, "a budget has a period"
    hours = rolling_hours(rule.period)
    if hours is not None:
        bucket = int(now) // ROLLING_BUCKET_S * ROLLING_BUCKET_S
        return Window(bucket, bucket + (hours + 1) * ROLLING_BUCKET_S)
    if rule.period == PREPAID:
        return Window(0, None)
    zone = ZoneInfo(rule.time_zone)
    start = _calendar_start(rule.period, datetime.fromtimestamp(now, zone))
    return Window(int(start.timestamp()), int(_calendar_next(rule.period, start).timestamp()))


def _calendar_start(period: str, at: datetime) -> datetime:
    if period == "hour":
        return at.replace(minute=0, second=0, microsecond=0)
    day = at.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if period == "week":
        return day - timedelta(days=day.weekday())
    return day.replace(day=1) if period == "month" else day


def _calendar_next(period: str, start: datetime) -> datetime:
    if period == "hour":  # by the clock on the wall: an hour that happens twice is two windows
        return datetime.fromtimestamp(start.timestamp() + 3600, start.tzinfo)
    if period == "month":
        return (start + timedelta(days=32)).replace(day=1)
    return start + timedelta(days=7 if period == "week" else 1)
