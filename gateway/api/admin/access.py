"""Who may call what of the admin API: the table of roles, the guard, and what one key may do to another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from gateway.api.admin.endpoint import CALLER, OPT, Endpoint
from gateway.api.auth import Gate
from gateway.api.exchange import Exchange
from gateway.errors import NotFound, PermissionDenied
from gateway.openai import faults
from gateway.tenants import ANONYMOUS, Role, VirtualKey

AnyConnection: TypeAlias = ASGIConnection[Any, Any, Any, Any]

ADMIN: frozenset[Role] = frozenset(("admin",))
READERS: frozenset[Role] = frozenset(("viewer", "admin"))
TENANTS_OWN: frozenset[Role] = frozenset(("manager", "admin"))  # a manager: in its own tenant
EVERYONE: frozenset[Role] = frozenset(("viewer", "manager", "admin"))  # a manager: of its own tenant

# Method and path below /admin/v1 → the roles that may call it. What is not here refuses everybody.
ACCESS: Mapping[str, frozenset[Role]] = {
    "GET /tenants": EVERYONE,
    "POST /tenants": ADMIN,
    "GET /tenants/{name}": EVERYONE,
    "PATCH /tenants/{name}": ADMIN,
    "DELETE /tenants/{name}": ADMIN,
    "GET /tenants/{name}/projects": EVERYONE,
    "POST /tenants/{name}/projects": TENANTS_OWN,
    "DELETE /tenants/{name}/projects/{project}": TENANTS_OWN,
    "GET /keys": EVERYONE,
    "POST /keys": TENANTS_OWN,
    "GET /keys/{id}": EVERYONE,
    "DELETE /keys/{id}": TENANTS_OWN,
    "POST /keys/{id}/rotate": TENANTS_OWN,
    "GET /limits": EVERYONE,
    "PUT /limits": TENANTS_OWN,
    "DELETE /limits/{id}": TENANTS_OWN,
    "POST /limits/{id}/top-up": TENANTS_OWN,
    "POST /limits/check": TENANTS_OWN,
    "GET /limits/state": EVERYONE,
    "GET /prices": EVERYONE,
    "PUT /prices": ADMIN,
    "GET /usage": EVERYONE,
    "GET /requests": EVERYONE,
    "GET /requests/{request_id}": EVERYONE,
    "POST /ledger/verify": ADMIN,
    "GET /ledger/state": READERS,
    "GET /audit": READERS,
    "GET /state": EVERYONE,
    "GET /config": READERS,
    "POST /config/reload": ADMIN,
}

# What a role may give to a key it makes. A viewer reads every tenant, so a manager cannot make one.
GRANTS: Mapping[Role, tuple[Role, ...]] = {
    "user": (),
    "viewer": (),
    "manager": ("user", "manager"),
    "admin": ("user", "viewer", "manager", "admin"),
}

SERVER_IS_OPEN = (
    "This server never had a key, and without one its admin API answers nobody. Make the first key on the server's "
    "machine: laneway init, or laneway keys create."
)


def admin_guard(gate: Gate) -> Guard:
    """Litestar's guard of every admin route. Of the kind that `Gate.guard` is, for its reasons."""

    async def let_in(connection: AnyConnection, handler: BaseRouteHandler) -> None:
        """Let in who may; the handler finds the caller in the scope.

        Raises `NotAuthenticated`; `PermissionDenied` for a role that the table does not name, and for everybody while
        the server is open: from here, a caller on this machine and one whom a proxy forwards look alike.
        """
        key = gate.admit(Exchange.of(connection.scope))
        if key.id == ANONYMOUS.id:
            raise PermissionDenied(SERVER_IS_OPEN, code="server_is_open")
        endpoint = handler.opt.get(OPT)
        route = f"{endpoint.method} {endpoint.path}" if isinstance(endpoint, Endpoint) else ""
        _check_route(key, ACCESS.get(route, frozenset()))
        connection.scope["state"][CALLER] = key

    return let_in


def _check_route(key: VirtualKey, allowed: frozenset[Role]) -> None:
    if key.role not in allowed:
        needed = " or ".join(sorted(allowed)) or "of nobody"
        raise PermissionDenied(
            f"A key with the role '{key.role}' may not do this; it takes the role {needed}.", code="role_not_allowed"
        )


def bound_tenant(caller: VirtualKey) -> str | None:
    """The only tenant that this caller sees, None for those who see all."""
    return caller.tenant if caller.role == "manager" else None


def tenant_filter(caller: VirtualKey, asked: str | None) -> str | None:
    """The tenant that a list is restricted to. Raises `NotFound` for one that the caller does not see."""
    bound = bound_tenant(caller)
    if bound is None or asked is None or asked == bound:
        return bound or asked
    raise no_such("tenant", asked)


def no_such(noun: str, name: str) -> NotFound:
    """The one way to say so: what belongs to another tenant is told as what never was."""
    return NotFound(f"There is no {noun} '{faults.cut(name)}'.", code=f"{noun}_not_found")


def check_role(caller: VirtualKey, role: Role) -> None:
    """Raises `PermissionDenied` unless the caller may make, change and end keys of this role."""
    if role not in GRANTS[caller.role]:
        allowed = " or ".join(GRANTS[caller.role]) or "no role"
        raise PermissionDenied(
            f"A key with the role '{caller.role}' may not give, replace or end the role '{role}'; it may {allowed}.",
            param="role",
            code="role_not_allowed",
        )
