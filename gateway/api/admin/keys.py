"""Virtual keys: made, listed, rotated, revoked. Their secret is in the reply that makes them, and nowhere else."""

from __future__ import annotations

import msgspec

from gateway.accounts import Accounts, MadeKey, NewKey
from gateway.accounts.checks import DEFAULT_PERIOD
from gateway.accounts.rows import KeyRow
from gateway.api.admin.access import bound_tenant, check_role, no_such, tenant_filter
from gateway.api.admin.deps import AdminDeps
from gateway.api.admin.endpoint import Call, Endpoint
from gateway.api.admin.grants import check_lifetime, granted
from gateway.api.admin.paging import Page, page, place_in_time
from gateway.api.admin.shapes import KeyOrder, KeysQuery, Rotation
from gateway.errors import NotFound, PermissionDenied
from gateway.openai import faults
from gateway.rules import check_period
from gateway.tenants import VirtualKey


class NewKeyRow(KeyRow, frozen=True, kw_only=True):
    """A key just made, with its secret in `key`: the only time that it is shown."""

    key: str


LIST = Endpoint(
    method="GET",
    path="/keys",
    name="listKeys",
    summary="The virtual keys, oldest first.",
    query=KeysQuery,
    answer=Page[KeyRow],
)
CREATE = Endpoint(
    method="POST",
    path="/keys",
    name="createKey",
    summary="Make a key. Its secret is in this reply alone.",
    body=KeyOrder,
    answer=NewKeyRow,
    status=201,
)
READ = Endpoint(method="GET", path="/keys/{id}", name="readKey", summary="One key.", answer=KeyRow)
REVOKE = Endpoint(
    method="DELETE",
    path="/keys/{id}",
    name="revokeKey",
    summary="End a key now: its next request is refused.",
    answer=KeyRow,
)
ROTATE = Endpoint(
    method="POST",
    path="/keys/{id}/rotate",
    name="rotateKey",
    summary="Make a key in the place of another, which goes on for the overlap.",
    body=Rotation,
    answer=NewKeyRow,
    status=201,
)


class Keys:
    """The handlers."""

    def __init__(self, deps: AdminDeps) -> None:
        self._deps = deps
        self.acts = (
            (LIST, self.list_keys),
            (CREATE, self.create_key),
            (READ, self.read_key),
            (REVOKE, self.revoke_key),
            (ROTATE, self.rotate_key),
        )

    def list_keys(self, call: Call[KeysQuery, None]) -> Page[KeyRow]:
        """Without secrets."""
        query = call.query
        tenant = tenant_filter(call.caller, query.tenant)
        rows = self._deps.accounts(call.caller).keys(tenant, query.project, ended=query.ended)
        return page(rows, lambda row: place_in_time(row.created_at, row.id), query)

    def create_key(self, call: Call[None, KeyOrder]) -> NewKeyRow:
        """Raises `PermissionDenied` for more than the caller has."""
        caller, order = call.caller, call.body
        tenant = self._tenant_of(order, caller)
        check_role(caller, order.role)
        check_lifetime(caller, order.role, order.expires_at)
        models, lanes = granted(caller, self._deps.directory.state, (tenant, order.project), order.models, order.lanes)
        made = self._deps.accounts(caller).create_key(
            NewKey(
                tenant=tenant,
                project=order.project,
                name=order.name,
                role=order.role,
                models=models,
                lanes=lanes,
                default_lane=order.default_lane,
                expires_at=order.expires_at,
                rpm=order.rpm,
                tpm=order.tpm,
                concurrency=order.concurrency,
                budget_nano=order.budget_nano,
                budget_period=_budget_period(order),
            )
        )
        return _told(made)

    def read_key(self, call: Call[None, None]) -> KeyRow:
        """Raises `NotFound`."""
        return self._find(call.caller, call.path["id"])

    def revoke_key(self, call: Call[None, None]) -> KeyRow:
        """Raises `NotFound`, and `PermissionDenied` for a role above the caller's."""
        row = self._find(call.caller, call.path["id"])
        check_role(call.caller, row.role)
        return self._deps.accounts(call.caller).revoke_key(row.id)

    def rotate_key(self, call: Call[None, Rotation]) -> NewKeyRow:
        """Raises `NotFound`, and `PermissionDenied` for a key that may more than the caller."""
        caller = call.caller
        row = self._find(caller, call.path["id"])
        check_role(caller, row.role)
        check_lifetime(caller, row.role, row.expires_at)
        had = (row.models, row.lanes)
        if granted(caller, self._deps.directory.state, (row.tenant, row.project), *had) != had:
            raise PermissionDenied(
                f"The key '{row.id}' may use models or lanes that yours may not, so you cannot have its successor.",
                code="grant_too_wide",
            )
        return _told(self._deps.accounts(caller).rotate_key(row.id, call.body.overlap_s))

    def _find(self, caller: VirtualKey, key_id: str) -> KeyRow:
        return visible_key(self._deps.accounts(caller), caller, key_id)

    def _tenant_of(self, order: KeyOrder, caller: VirtualKey) -> str:
        bound = bound_tenant(caller)
        tenant = order.tenant or bound
        if tenant is None:
            raise faults.missing("tenant")
        if bound not in (None, tenant):
            raise PermissionDenied("A manager makes keys of its own tenant only.", param="tenant", code="other_tenant")
        return tenant


def visible_key(accounts: Accounts, caller: VirtualKey, key_id: str) -> KeyRow:
    """The key with this id. Raises `NotFound`, for one of a tenant that the caller does not see too."""
    try:
        row = accounts.key(key_id)
    except NotFound:
        raise no_such("key", key_id) from None
    if bound_tenant(caller) not in (None, row.tenant):
        raise no_such("key", key_id)
    return row


def _budget_period(order: KeyOrder) -> str:
    period = order.budget_period
    if period is None:
        return DEFAULT_PERIOD
    if order.budget_nano is None:
        raise faults.combination("budget_period", "'budget_period' is that of a budget: give 'budget_nano' too.")
    right = check_period(period)
    if right is not None:
        raise faults.invalid_value("budget_period", f"expected {right}, but got '{faults.cut(period)}'.")
    return period


def _told(made: MadeKey) -> NewKeyRow:
    return NewKeyRow(**msgspec.structs.asdict(made.row), key=made.secret)
