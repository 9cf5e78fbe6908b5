"""Every change that operators make, each in one transaction with its audit row, and every listing of theirs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from sqlalchemy import ColumnElement, RowMapping, Select, and_, func, select

from gateway.accounts import keys as key_changes
from gateway.accounts import limits as limit_changes
from gateway.accounts.change import Change, missing
from gateway.accounts.checks import check_amount, check_bounds, check_model, check_name, check_time_zone, check_weight
from gateway.accounts.keys import MadeKey, NewKey, key_row
from gateway.accounts.limits import Order
from gateway.accounts.lineage import first_ids
from gateway.accounts.rows import AuditRow, KeyRow, LimitRow, ProjectRow, TenantRow, read_row
from gateway.errors import Conflict
from gateway.rules import ANY_MODEL, Meter, Mode, Price, Scope
from gateway.store import Store
from gateway.tables import audit, keys, limits, prices, projects, tenants

__all__ = ("Accounts", "AuditRow", "KeyRow", "LimitRow", "MadeKey", "NewKey", "ProjectRow", "TenantRow")

DAY_S = 86_400.0


class Accounts:
    """The accounts in a store, in the hands of one operator: `actor` is a key's id or `cli:USER`.

    Changes raise `InvalidBody` naming the field in `param`, `NotFound`, `Conflict` for what is taken or has ended, and
    `StoreUnavailable`; then nothing has changed. Instants are Unix seconds. `count_cached` is `limits.count_cached`.
    """

    def __init__(
        self, store: Store, actor: str, clock: Callable[[], float] = time.time, *, count_cached: bool = False
    ) -> None:
        self._store = store
        self._actor = actor
        self._clock = clock
        self._count_cached = count_cached

    def create_tenant(
        self,
        name: str,
        *,
        weight: float = 1.0,
        time_zone: str = "UTC",
        models: Sequence[str] | None = None,
        lanes: Sequence[str] | None = None,
    ) -> TenantRow:
        """A new one. Names of tenants that have ended are not given again."""
        check_name(name, "name")
        values = _share(weight, time_zone) | check_bounds(models, lanes)
        with self._changing() as change:
            if change.first(tenants, tenants.c.name == name) is not None:
                raise _taken("tenant", name)
            _insert_tenant(change, name, values)
            return read_row(TenantRow, change.tenant(name))

    def change_tenant(
        self,
        name: str,
        *,
        weight: float | None = None,
        time_zone: str | None = None,
        models: Sequence[str] | UnsetType | None = UNSET,
        lanes: Sequence[str] | UnsetType | None = UNSET,
    ) -> TenantRow:
        """What is not given stays. None for models or lanes allows all."""
        values = _share(weight, time_zone) | check_bounds(models, lanes)
        with self._changing() as change:
            change.tenant(name)
            if values:
                change.update(tenants, tenants.c.name == name, **values)
                change.note("tenant.change", name, **values)
            return read_row(TenantRow, change.tenant(name))

    def end_tenant(self, name: str) -> TenantRow:
        """Its keys are refused from now on; its projects and limits end too. What it used stays in the ledger."""
        with self._changing() as change:
            row = change.first(tenants, tenants.c.name == name)
            if row is None:
                raise missing("tenant", name)
            if row["ended_at"] is not None:
                return read_row(TenantRow, row)
            limit_changes.end_limits(change, name)
            change.update(tenants, tenants.c.name == name, ended_at=change.now)
            change.update(projects, (projects.c.tenant == name) & projects.c.ended_at.is_(None), ended_at=change.now)
            change.update(keys, (keys.c.tenant == name) & keys.c.revoked_at.is_(None), revoked_at=change.now)
            change.note("tenant.end", name)
            return read_row(TenantRow, row, ended_at=change.now)

    def tenants(self) -> list[TenantRow]:
        """All, by name; those that have ended too."""
        return [read_row(TenantRow, row) for row in self._rows(select(tenants).order_by(tenants.c.name))]

    def create_project(
        self, tenant: str, name: str, *, models: Sequence[str] | None = None, lanes: Sequence[str] | None = None
    ) -> ProjectRow:
        """A new one, of a tenant that is there. Names of projects that have ended are not given again."""
        check_name(name, "name")
        values = check_bounds(models, lanes)
        with self._changing() as change:
            change.tenant(tenant)
            if change.first(projects, _is_project(tenant, name)) is not None:
                raise _taken("project", name)
            _insert_project(change, tenant, name, values)
            return read_row(ProjectRow, change.project(tenant, name))

    def end_project(self, tenant: str, name: str) -> ProjectRow:
        """Its keys are refused from now on; its limits end too. What it used stays in the ledger."""
        with self._changing() as change:
            row = change.first(projects, _is_project(tenant, name))
            if row is None:
                raise missing("project", f"{tenant}/{name}")
            if row["ended_at"] is not None:
                return read_row(ProjectRow, row)
            limit_changes.end_limits(change, tenant, name)
            change.update(projects, _is_project(tenant, name), ended_at=change.now)
            its_keys = (keys.c.tenant == tenant) & (keys.c.project == name)
            change.update(keys, its_keys & keys.c.revoked_at.is_(None), revoked_at=change.now)
            change.note("project.end", f"{tenant}/{name}")
            return read_row(ProjectRow, row, ended_at=change.now)

    def projects(self, tenant: str | None = None) -> list[ProjectRow]:
        """All, or those of one tenant, by name; those that have ended too."""
        query = select(projects).order_by(projects.c.tenant, projects.c.name)
        if tenant is not None:
            query = query.where(projects.c.tenant == tenant)
        return [read_row(ProjectRow, row) for row in self._rows(query)]

    def create_key(self, new: NewKey) -> MadeKey:
        """A key with its limits; its tenant and its project are made where they do not exist."""
        values = new.columns(self._clock())
        with self._changing() as change:
            _ensure_project(change, new.tenant, new.project)
            made = key_changes.issue(change, self._store.pepper(), values)
            change.note("key.create", made.row.id, hint=made.row.hint, **values)
            for order in new.limits(Scope("key", made.row.id)):
                limit_changes.set_limit(change, order, count_cached=self._count_cached)
            return made

    def rotate_key(self, key_id: str, overlap_s: float = DAY_S) -> MadeKey:
        """A key with the same properties, in the place of `key_id`, which ends after the overlap.

        Both count against the same limits. Raises `Conflict` for a key that has ended, or was rotated before.
        """
        with self._changing() as change:
            return key_changes.rotate(change, self._store.pepper(), key_id, overlap_s)

    def revoke_key(self, key_id: str) -> KeyRow:
        """It ends now; its next request is refused. One that is revoked stays as it is."""
        with self._changing() as change:
            if change.key(key_id)["revoked_at"] is None:
                change.update(keys, keys.c.id == key_id, revoked_at=change.now)
                change.note("key.revoke", key_id)
            return key_row(change.key(key_id), first_ids(change.connection), change.now)

    def key(self, key_id: str) -> KeyRow:
        """One key, in any state. Raises `NotFound`."""
        found = self._key_rows(select(keys).where(keys.c.id == key_id))
        if not found:
            raise missing("key", key_id)
        return found[0]

    def keys(self, tenant: str | None = None, project: str | None = None, *, ended: bool = False) -> list[KeyRow]:
        """Those that live, and with `ended` the revoked and expired ones too; the oldest first."""
        query = select(keys).order_by(keys.c.created_at, keys.c.id)
        if tenant is not None:
            query = query.where(keys.c.tenant == tenant)
        if project is not None:
            query = query.where(keys.c.project == project)
        return [row for row in self._key_rows(query) if ended or row.state == "live"]

    def set_limit(
        self,
        scope: Scope,
        meter: Meter,
        amount: int,
        *,
        period: str | None = None,
        mode: Mode = "enforce",
        model: str | None = None,
    ) -> LimitRow:
        """The limit that holds from now on. It replaces the one with the same scope, meter, period, mode and model, and
        then keeps its id and what was used of it; a new budget begins with what was used in its present window."""
        order = Order(scope=scope, meter=meter, amount=amount, period=period, mode=mode, model=model)
        with self._changing() as change:
            return limit_changes.set_limit(change, order, count_cached=self._count_cached)

    def end_limit(self, limit_id: str) -> LimitRow:
        """It holds no more."""
        with self._changing() as change:
            return limit_changes.end_limit(change, limit_id)

    def top_up(self, limit_id: str, amount: int) -> LimitRow:
        """A prepaid budget grows by `amount`."""
        with self._changing() as change:
            return limit_changes.top_up(change, limit_id, amount)

    def limits(self, scope: Scope | None = None) -> list[LimitRow]:
        """Those that hold, the oldest first; with a scope, only its own. A rotated key's are its whole line's."""
        query = select(limits).where(limits.c.ended_at.is_(None)).order_by(limits.c.created_at, limits.c.id)
        with self._store.reading() as connection:
            if scope is not None:
                scope_id = first_ids(connection).get(scope.id, scope.id) if scope.kind == "key" else scope.id
                query = query.where(limits.c.scope_kind == scope.kind, limits.c.scope_id == scope_id)
            return [read_row(LimitRow, row) for row in connection.execute(query).mappings()]

    def set_price(self, model: str, prompt_nano: int, completion_nano: int, cached_nano: int) -> Price:
        """A model's price from now on, in nano-dollars a million tokens; of the model `*`: of all that have none."""
        amounts = {"prompt_nano": prompt_nano, "completion_nano": completion_nano, "cached_nano": cached_nano}
        if model != ANY_MODEL:
            check_model(model)
        for name, amount in amounts.items():
            check_amount(amount, name, least=0)
        with self._changing() as change:
            change.insert(prices, model=model, **amounts)
            change.note("price.set", model, **amounts)
            row = change.first(prices, prices.c.revision == change.revision)
            assert row is not None, "just made"
            return read_row(Price, row)

    def prices(self) -> list[Price]:
        """The price that holds of each model, by name."""
        newest = select(func.max(prices.c.version)).group_by(prices.c.model)
        query = select(prices).where(prices.c.version.in_(newest)).order_by(prices.c.model)
        return [read_row(Price, row) for row in self._rows(query)]

    def audit(self, *, limit: int = 100, before: int | None = None) -> list[AuditRow]:
        """The newest changes first; with `before`, those older than that id."""
        query = select(audit).order_by(audit.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.id < before)
        return [read_row(AuditRow, row, detail=msgspec.json.decode(row["detail"])) for row in self._rows(query)]

    @contextmanager
    def _changing(self) -> Iterator[Change]:
        with self._store.changing() as connection:
            # First of all, since it locks out others: what is read after it stays so until the commit.
            revision = self._store.next_revision(connection)
            yield Change(connection, revision, self._actor, int(self._clock()))

    def _rows(self, query: Select[Any]) -> Sequence[RowMapping]:
        with self._store.reading() as connection:
            return connection.execute(query).mappings().all()

    def _key_rows(self, query: Select[Any]) -> list[KeyRow]:
        with self._store.reading() as connection:
            first = first_ids(connection)
            return [key_row(row, first, self._clock()) for row in connection.execute(query).mappings()]


def _insert_tenant(change: Change, name: str, values: Mapping[str, object]) -> None:
    change.insert(tenants, name=name, **values)
    change.note("tenant.create", name, **values)


def _insert_project(change: Change, tenant: str, name: str, values: Mapping[str, object]) -> None:
    change.insert(projects, tenant=tenant, name=name, **values)
    change.note("project.create", f"{tenant}/{name}", **values)


def _ensure_project(change: Change, tenant: str, name: str) -> None:
    """Made where they do not exist. Raises `Conflict` where they have ended."""
    if change.first(tenants, tenants.c.name == tenant) is None:
        _insert_tenant(change, tenant, _share(1.0, "UTC"))
    change.tenant(tenant)
    if change.first(projects, _is_project(tenant, name)) is None:
        _insert_project(change, tenant, name, {})
    change.project(tenant, name)


def _share(weight: float | None, time_zone: str | None) -> dict[str, object]:
    """The columns of a tenant that are given."""
    if weight is not None:
        check_weight(weight)
    if time_zone is not None:
        check_time_zone(time_zone)
    given = {"weight": weight, "time_zone": time_zone}
    return {name: value for name, value in given.items() if value is not None}


def _is_project(tenant: str, name: str) -> ColumnElement[bool]:
    return and_(projects.c.tenant == tenant, projects.c.name == name)


def _taken(noun: str, name: str) -> Conflict:
    return Conflict(f"There is or was a {noun} '{name}'. Names are given once; choose another.", param="name")
