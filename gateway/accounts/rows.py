"""What operators see of tenants, projects, keys, limits and the audit log, read from rows of their tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from sqlalchemy import RowMapping

from gateway.rules import Meter, Mode, Rule, Scope, ScopeKind
from gateway.virtual_keys import Role

State: TypeAlias = Literal["live", "expired", "revoked"]
Columns: TypeAlias = Mapping[str, Any] | RowMapping
RowT = TypeVar("RowT", bound=Struct)

_NAMES = msgspec.json.Decoder(tuple[str, ...])


class TenantRow(Struct, frozen=True, kw_only=True):
    """Who the work is for. `models` and `lanes` bound those of its keys; None allows all. Instants: Unix seconds."""

    name: str
    weight: float
    time_zone: str
    models: tuple[str, ...] | None
    lanes: tuple[str, ...] | None
    created_at: int
    ended_at: int | None


class ProjectRow(Struct, frozen=True, kw_only=True):
    """A part of a tenant. `models` and `lanes` bound those of its keys; None allows all that the tenant allows."""

    tenant: str
    name: str
    models: tuple[str, ...] | None
    lanes: tuple[str, ...] | None
    created_at: int
    ended_at: int | None


class KeyRow(Struct, frozen=True, kw_only=True):
    """A virtual key without what would let anyone use it.

    `replaces` is the key that it was rotated from, and `scope_id` the first of that line: limits of the scope "key" are
    set on that id and hold for the whole line, so that a rotation doubles no limit. What was used is told by `id`.
    """

    id: str
    hint: str
    tenant: str
    project: str
    name: str
    role: Role
    models: tuple[str, ...] | None
    lanes: tuple[str, ...] | None
    default_lane: str | None
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    replaces: str | None
    scope_id: str
    state: State


class LimitRow(Struct, frozen=True, kw_only=True):
    """A limit as it was set; `gateway.rules.Rule` says what its fields mean."""

    id: str
    scope_kind: ScopeKind
    scope_id: str
    model: str | None
    meter: Meter
    amount: int
    period: str | None
    mode: Mode
    created_at: int
    ended_at: int | None

    @property
    def scope(self) -> Scope:
        """Whose use is counted."""
        return Scope(self.scope_kind, self.scope_id)

    def rule(self, time_zone: str) -> Rule:
        """The limit as it is enforced, with the time zone of its scope's tenant."""
        return Rule(
            id=self.id,
            scope=self.scope,
            meter=self.meter,
            amount=self.amount,
            period=self.period,
            time_zone=time_zone,
            mode=self.mode,
            model=self.model,
        )


class AuditRow(Struct, frozen=True, kw_only=True):
    """One change: when (Unix seconds), by whom, what was done to what. `detail` holds no secret."""

    id: int
    created_at: int
    actor: str
    action: str
    target: str
    detail: dict[str, Any]


def read_row(kind: type[RowT], row: Columns, **more: object) -> RowT:
    """The struct with the values of the columns that it names, and `more`; lists of names are JSON in the tables."""
    values = {name: row[name] for name in kind.__struct_fields__ if name not in more}
    for name in ("models", "lanes"):
        if values.get(name) is not None:
            values[name] = _NAMES.decode(values[name])
    return kind(**values, **more)


def state_of(row: Columns, now: float) -> State:
    """Of a key. An expired key that was also revoked is revoked."""
    if row["revoked_at"] is not None:
        return "revoked"
    return "expired" if row["expires_at"] is not None and row["expires_at"] <= now else "live"
