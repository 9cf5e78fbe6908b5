"""Every route of the admin API, joined."""

from __future__ import annotations

from types import ModuleType

from litestar import Router
from litestar.handlers import HTTPRouteHandler

from gateway.api.admin import audit, config, keys, ledger, limits, prices, requests, state, tenants, usage
from gateway.api.admin.access import admin_guard
from gateway.api.admin.deps import AdminDeps
from gateway.api.admin.endpoint import Endpoint, Workers, handler
from gateway.api.auth import Gate

NOUNS: tuple[ModuleType, ...] = (tenants, keys, limits, prices, usage, requests, ledger, audit, state, config)
ENDPOINTS = tuple(value for noun in NOUNS for value in vars(noun).values() if isinstance(value, Endpoint))


def admin_routes(gate: Gate, deps: AdminDeps) -> list[HTTPRouteHandler | Router]:
    """The handlers, behind the guard that knows who may call which."""
    workers = Workers(deps.writer)
    nouns = (
        tenants.Tenants(deps),
        keys.Keys(deps),
        limits.LimitRoutes(deps, workers),
        prices.Prices(deps),
        usage.Usage(deps),
        requests.Requests(deps),
        ledger.LedgerRoutes(deps, workers),
        audit.Audit(deps),
        state.StateRoutes(deps),
        config.Config(deps, workers),
    )
    handlers = [handler(endpoint, act, workers) for noun in nouns for endpoint, act in noun.acts]
    return [Router("/", route_handlers=handlers, guards=[admin_guard(gate)])]
