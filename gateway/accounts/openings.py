"""What was used before a budget was made, in the windows that count for it now, from the rollups of hours."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from sqlalchemy import ColumnElement, Connection, func, select

from gateway.rules import PREPAID, ROLLING_BUCKET_S, Rule, rolling_hours, window_at
from gateway.tables import usage_hours

HOUR_S = 3600


def openings(
    connection: Connection, rule: Rule, key_ids: Collection[str], now: float, *, count_cached: bool
) -> Iterator[tuple[int, int]]:
    """Pairs of a window's `starts_at` and what was used in it, where anything was.

    `key_ids` are the keys that a rule of the scope "key" is of. An hour that a window begins in counts as a whole, so
    that a budget is never larger than it says. Credit that is paid in advance begins with nothing used.
    """
    if rule.period == PREPAID:
        return
    window = window_at(rule, now)
    hours = rolling_hours(rule.period)
    if hours is not None:
        since = window.starts_at - hours * ROLLING_BUCKET_S
        yield from sorted(_used(connection, rule, key_ids, since, count_cached).items())
        return
    since = window.starts_at // HOUR_S * HOUR_S
    used = sum(_used(connection, rule, key_ids, since, count_cached).values())
    if used > 0:
        yield window.starts_at, used


def _used(
    connection: Connection, rule: Rule, key_ids: Collection[str], since: int, count_cached: bool
) -> dict[int, int]:
    """By hour."""
    hour = usage_hours.c.starts_at
    total = func.sum(_amount(rule, count_cached))
    query = select(hour, total).where(hour >= since, *_meant(rule, key_ids)).group_by(hour).having(total > 0)
    return {int(starts_at): int(used) for starts_at, used in connection.execute(query)}


def _amount(rule: Rule, count_cached: bool) -> ColumnElement[int]:
    c = usage_hours.c
    if rule.meter == "usd":
        return c.cost_nano
    tokens = c.prompt_tokens + c.completion_tokens
    return tokens if count_cached else tokens - c.cached_tokens


def _meant(rule: Rule, key_ids: Collection[str]) -> Iterator[ColumnElement[bool]]:
    c, scope = usage_hours.c, rule.scope
    if scope.kind == "key":
        yield c.key_id.in_(key_ids)
    elif scope.kind == "project":
        tenant, _, project = scope.id.partition("/")
        yield c.tenant == tenant
        yield c.project == project
    elif scope.kind == "tenant":
        yield c.tenant == scope.id
    else:
        yield c.model == scope.id
    if rule.model is not None:
        yield c.model == rule.model
