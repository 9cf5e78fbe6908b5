"""Tenants, projects, keys, limits and prices as the store had them at one revision. Never changed, only replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct
from sqlalchemy import Select, Table, bindparam, select
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.engine.interfaces import DBAPICursor

from gateway.accounts.rows import LimitRow, ProjectRow, TenantRow, read_row
from gateway.rules import ANY_MODEL, Price, Rule, Scope
from gateway.tables import keys, limits, prices, projects, revisions, tenants
from gateway.virtual_keys import Role, VirtualKey

MOST_APPLYING = 10_000
UTC = "UTC"

_PARAMSTYLES: Mapping[str, Literal["named", "pyformat"]] = {"sqlite": "named", "postgresql": "pyformat"}


class KeyEntry(Struct, frozen=True, kw_only=True):
    """A key as the store has it, revoked and expired ones too. Limits of its scope are under `scope_id`."""

    id: str
    digest: bytes
    scope_id: str
    tenant: str
    project: str
    name: str
    role: Role
    models: tuple[str, ...] | None
    lanes: tuple[str, ...] | None
    default_lane: str | None
    expires_at: int | None
    revoked_at: int | None


class Changes(Struct, frozen=True, kw_only=True):
    """The rows that changed up to `revision`, by column."""

    revision: int
    tenants: Sequence[Mapping[str, Any]]
    projects: Sequence[Mapping[str, Any]]
    keys: Sequence[Mapping[str, Any]]
    limits: Sequence[Mapping[str, Any]]
    prices: Sequence[Mapping[str, Any]]


class Reading:
    """The statements that read what changed, in the words of one dialect, for a cursor of its driver."""

    TABLES = (tenants, projects, keys, limits, prices)

    def __init__(self, dialect: str) -> None:
        plain = DefaultDialect(paramstyle=_PARAMSTYLES[dialect])
        self.revision = str(select(revisions.c.value).compile(dialect=plain))
        self._changed = [(table, str(_changed_since(table).compile(dialect=plain))) for table in self.TABLES]

    def changes(self, cursor: DBAPICursor, since: int) -> Changes:
        """What changed after revision `since`; the cursor is in a transaction that sees one state of the store."""
        cursor.execute(self.revision)
        revision = int(cursor.fetchall()[0][0])
        rows = {}
        for table, statement in self._changed:
            cursor.execute(statement, {"since": since})
            columns = table.columns.keys()
            rows[table.name] = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
        return Changes(revision=revision, **rows)


class Snapshot(Struct, frozen=True, kw_only=True):
    """One state. Projects are known as `tenant/project`; ended limits are left out, all else that ended is kept."""

    revision: int = -1
    tenants: dict[str, TenantRow] = {}
    projects: dict[str, ProjectRow] = {}
    keys: dict[str, KeyEntry] = {}
    digests: dict[bytes, KeyEntry] = {}
    limits: dict[Scope, tuple[LimitRow, ...]] = {}
    prices: dict[str, Price] = {}
    applying: dict[tuple[str, str, str, str], tuple[Rule, ...]] = {}  # what `rules` was asked for

    def changed(self, changes: Changes) -> Snapshot:
        """The next state. Only what changed is copied."""
        fresh = {row["id"]: row for row in changes.keys}
        keys = {key_id: self._key(row, fresh) for key_id, row in fresh.items()}
        return Snapshot(
            revision=changes.revision,
            tenants=_merged(self.tenants, {row["name"]: read_row(TenantRow, row) for row in changes.tenants}),
            projects=_merged(
                self.projects,
                {f"{row['tenant']}/{row['name']}": read_row(ProjectRow, row) for row in changes.projects},
            ),
            keys=_merged(self.keys, keys),
            digests=_merged(self.digests, {key.digest: key for key in keys.values()}),
            limits=self._limits(changes.limits),
            prices=_merged(
                self.prices,
                {row["model"]: read_row(Price, row) for row in sorted(changes.prices, key=lambda row: row["version"])},
            ),
        )

    def rules(self, key: VirtualKey, model: str) -> tuple[Rule, ...]:
        """Every limit that a request of this key for this model comes under: tenant, project, key, model."""
        asked = (key.id, key.tenant, key.project, model)  # a config that is read again may move a key
        rules = self.applying.get(asked)
        if rules is None:
            if len(self.applying) >= MOST_APPLYING:
                self.applying.clear()
            rules = self.applying[asked] = tuple(self._rules(key, model))
        return rules

    def all_rules(self) -> Iterator[Rule]:
        """Every limit."""
        for scope, rows in self.limits.items():
            zone = self._time_zone(scope)
            yield from (row.rule(zone) for row in rows)

    def price(self, model: str) -> Price | None:
        """Of this model, else of any."""
        return self.prices.get(model) or self.prices.get(ANY_MODEL)

    def _rules(self, key: VirtualKey, model: str) -> Iterator[Rule]:
        entry = self.keys.get(key.id)
        for scope in (
            Scope("tenant", key.tenant),
            Scope("project", f"{key.tenant}/{key.project}"),
            Scope("key", key.id if entry is None else entry.scope_id),
            Scope("model", model),
        ):
            zone = self._time_zone(scope)
            yield from (row.rule(zone) for row in self.limits.get(scope, ()) if row.model in (None, model))

    def _time_zone(self, scope: Scope) -> str:
        if scope.kind == "model":
            return UTC
        if scope.kind == "key":
            key = self.keys.get(scope.id)
            name = "" if key is None else key.tenant
        else:
            name = scope.id.partition("/")[0]
        tenant = self.tenants.get(name)
        return UTC if tenant is None else tenant.time_zone

    def _key(self, row: Mapping[str, Any], fresh: Mapping[str, Mapping[str, Any]]) -> KeyEntry:
        first = row["id"]
        while first in fresh and fresh[first]["replaces"] is not None:
            first = fresh[first]["replaces"]
        known = self.keys.get(first)
        return read_row(KeyEntry, row, scope_id=first if known is None else known.scope_id)

    def _limits(self, rows: Sequence[Mapping[str, Any]]) -> dict[Scope, tuple[LimitRow, ...]]:
        changed: dict[Scope, dict[str, LimitRow]] = {}
        for limit in (read_row(LimitRow, row) for row in rows):
            here = changed.setdefault(limit.scope, {row.id: row for row in self.limits.get(limit.scope, ())})
            here.pop(limit.id, None)
            if limit.ended_at is None:
                here[limit.id] = limit
        in_order = {scope: tuple(here[name] for name in sorted(here)) for scope, here in changed.items()}
        return _merged(self.limits, in_order)


def _changed_since(table: Table) -> Select[Any]:
    return select(table).where(table.c.revision > bindparam("since"))


def _merged(some: dict[Any, Any], changed: dict[Any, Any]) -> dict[Any, Any]:
    return some | changed if changed else some
