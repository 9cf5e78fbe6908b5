"""Limits of an account: set in the place of the same one before, opened with what was used, topped up, ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, and_, or_, select

from gateway.accounts.change import Change
from gateway.accounts.checks import check_amount, check_choice, check_limit, check_model
from gateway.accounts.lineage import first_ids, line_of
from gateway.accounts.openings import openings
from gateway.accounts.rows import LimitRow, read_row
from gateway.errors import Conflict, InvalidBody
from gateway.rules import PREPAID, Meter, Mode, Scope
from gateway.tables import budget_windows, keys, limits, projects
from gateway.virtual_keys import random_text

SCOPES = ("key", "project", "tenant", "model")


class Order(Struct, frozen=True, kw_only=True):
    """A limit as it is asked for. `param` names what its amount came in as."""

    scope: Scope
    meter: Meter
    amount: int
    period: str | None = None
    mode: Mode = "enforce"
    model: str | None = None
    param: str = "amount"


def set_limit(change: Change, order: Order, *, count_cached: bool) -> LimitRow:
    """The limit that holds now. One with the same scope, meter, period, mode and model is changed and keeps its id, and
    so what was used of it; another begins with what was used in its present window.

    Raises `InvalidBody`, `NotFound`, and `Conflict` for a scope that has ended.
    """
    check_amount(order.amount, order.param)
    period = check_limit(order.meter, order.period, order.mode)
    scope, zone = _find_scope(change, order.scope)
    asked: dict[str, str | None] = {
        "scope_kind": scope.kind,
        "scope_id": scope.id,
        "meter": order.meter,
        "mode": order.mode,
    }
    asked |= {"period": period, "model": _only_model(order, scope)}
    live = change.first(limits, and_(limits.c.ended_at.is_(None), *(limits.c[name] == asked[name] for name in asked)))
    if live is not None:
        change.update(limits, limits.c.id == live["id"], amount=order.amount)
    limit_id = f"lim_{random_text(20)}" if live is None else live["id"]
    if live is None:
        change.insert(limits, id=limit_id, amount=order.amount, **asked)
    row = read_row(LimitRow, change.limit(limit_id))
    if live is None and period is not None:
        _open_windows(change, row, zone, count_cached)
    change.note("limit.set", limit_id, amount=order.amount, before=live["amount"] if live else None, **asked)
    return row


def top_up(change: Change, limit_id: str, amount: int) -> LimitRow:
    """Credit paid in advance grows. Raises `InvalidBody`, `NotFound`, and `Conflict` for any other limit."""
    check_amount(amount)
    row = change.limit(limit_id)
    if row["ended_at"] is not None or row["period"] != PREPAID:
        raise Conflict(f"The limit '{limit_id}' is no prepaid budget that could grow; set its amount instead.")
    total = row["amount"] + amount
    check_amount(total)
    change.update(limits, limits.c.id == limit_id, amount=total)
    change.note("limit.top_up", limit_id, by=amount, amount=total)
    return read_row(LimitRow, change.limit(limit_id))


def end_limit(change: Change, limit_id: str) -> LimitRow:
    """It holds no more; one that has ended stays as it is. Raises `NotFound`."""
    if change.limit(limit_id)["ended_at"] is None:
        change.update(limits, limits.c.id == limit_id, ended_at=change.now)
        change.note("limit.end", limit_id)
    return read_row(LimitRow, change.limit(limit_id))


def end_limits(change: Change, tenant: str, project: str | None = None) -> None:
    """Those of a tenant, its projects and keys; or only those of one project and its keys."""
    its_keys = select(keys.c.id).where(keys.c.tenant == tenant)
    its_projects = select(projects.c.tenant + "/" + projects.c.name).where(projects.c.tenant == tenant)
    if project is not None:
        its_keys = its_keys.where(keys.c.project == project)
        its_projects = its_projects.where(projects.c.name == project)
    scope_ids = {"key": its_keys, "project": its_projects}
    ending = [_is_of(kind, limits.c.scope_id.in_(ids)) for kind, ids in scope_ids.items()]
    if project is None:
        ending.append(_is_of("tenant", limits.c.scope_id == tenant))
    change.update(limits, and_(limits.c.ended_at.is_(None), or_(*ending)), ended_at=change.now)


def _is_of(kind: str, is_it: ColumnElement[bool]) -> ColumnElement[bool]:
    return and_(limits.c.scope_kind == kind, is_it)


def _find_scope(change: Change, scope: Scope) -> tuple[Scope, str]:
    """The scope that limits are kept under (a key's is its line's first), and its time zone."""
    check_choice(scope.kind, SCOPES, "scope_kind")
    if scope.kind == "model":
        check_model(scope.id, "scope_id")
        return scope, "UTC"
    if scope.kind == "key":
        tenant = change.key(scope.id)["tenant"]
        scope = Scope("key", first_ids(change.connection).get(scope.id, scope.id))
    else:
        tenant, _, project = scope.id.partition("/")
        if scope.kind == "project":
            change.project(tenant, project)
    return scope, change.tenant(scope.id if scope.kind == "tenant" else tenant)["time_zone"]


def _only_model(order: Order, scope: Scope) -> str | None:
    """The model that the limit is restricted to; a limit of a model is so anyway."""
    if order.model is None or scope == Scope("model", order.model):
        return None
    check_model(order.model)
    if scope.kind == "model":
        raise InvalidBody(f"A limit of the model '{scope.id}' cannot be of another model only.", param="model")
    return order.model


def _open_windows(change: Change, row: LimitRow, zone: str, count_cached: bool) -> None:
    line = line_of(change.connection, row.scope_id) if row.scope_kind == "key" else ()
    used = openings(change.connection, row.rule(zone), line, change.now, count_cached=count_cached)
    windows: list[Mapping[str, Any]] = [
        {"rule_id": row.id, "starts_at": starts_at, "opening": opening, "used": 0} for starts_at, opening in used
    ]
    if windows:
        change.connection.execute(budget_windows.insert(), windows)
