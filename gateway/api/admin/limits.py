"""Limits: set, listed, ended, topped up, checked against, and what is used of them now."""

from __future__ import annotations

import msgspec

from gateway.accounts import Accounts
from gateway.accounts.rows import LimitRow
from gateway.api.admin.access import bound_tenant, check_role, no_such
from gateway.api.admin.deps import AdminDeps
from gateway.api.admin.endpoint import Call, Endpoint, Workers
from gateway.api.admin.keys import visible_key
from gateway.api.admin.paging import Page, page, place_in_time
from gateway.api.admin.shapes import CheckOrder, LimitOrder, LimitsQuery, TopUp
from gateway.counters import RuleState
from gateway.errors import PermissionDenied
from gateway.limits import Demand, Verdict
from gateway.rules import Rule, Scope
from gateway.tenants import VirtualKey

LIST = Endpoint(
    method="GET",
    path="/limits",
    name="listLimits",
    summary="The limits that hold, oldest first.",
    query=LimitsQuery,
    answer=Page[LimitRow],
)
SET = Endpoint(
    method="PUT",
    path="/limits",
    name="setLimit",
    summary="Set a limit, in the place of the same one before.",
    body=LimitOrder,
    answer=LimitRow,
)
END = Endpoint(
    method="DELETE",
    path="/limits/{id}",
    name="endLimit",
    summary="End a limit: it counts and refuses nothing from now on.",
    answer=LimitRow,
)
TOP_UP = Endpoint(
    method="POST",
    path="/limits/{id}/top-up",
    name="topUpLimit",
    summary="Add credit to a prepaid budget.",
    body=TopUp,
    answer=LimitRow,
)
CHECK = Endpoint(
    method="POST",
    path="/limits/check",
    name="checkLimits",
    summary="What the limits would say to a request now. Nothing is consumed.",
    body=CheckOrder,
    answer=Verdict,
)
STATE = Endpoint(
    method="GET",
    path="/limits/state",
    name="readLimitsState",
    summary="What is used, reserved and left of each limit now.",
    query=LimitsQuery,
    answer=Page[RuleState],
)


class LimitRoutes:
    """The handlers."""

    def __init__(self, deps: AdminDeps, workers: Workers) -> None:
        self._deps = deps
        self._workers = workers
        self.acts = (
            (LIST, self.list_limits),
            (SET, self.set_limit),
            (END, self.end_limit),
            (TOP_UP, self.top_up),
            (CHECK, self.check),
            (STATE, self.read_state),
        )

    def list_limits(self, call: Call[LimitsQuery, None]) -> Page[LimitRow]:
        """A manager's: those of its tenant, and of the projects and keys of it."""
        rows = [row for row in self._deps.accounts(call.caller).limits() if self._is_asked_for(row.scope, call)]
        return page(rows, lambda row: place_in_time(row.created_at, row.id), call.query)

    def set_limit(self, call: Call[None, LimitOrder]) -> LimitRow:
        """Raises `NotFound` for a scope that is not there, `PermissionDenied` for one that the caller may not limit."""
        order, accounts = call.body, self._deps.accounts(call.caller)
        scope = Scope(order.scope_kind, order.scope_id)
        self._check_scope(scope, call.caller, accounts)
        return accounts.set_limit(
            scope, order.meter, order.amount, period=order.period, mode=order.mode, model=order.model
        )

    def end_limit(self, call: Call[None, None]) -> LimitRow:
        """Raises `NotFound`, `PermissionDenied`."""
        accounts = self._deps.accounts(call.caller)
        self._check_limit(call.path["id"], call.caller, accounts)
        return accounts.end_limit(call.path["id"])

    def top_up(self, call: Call[None, TopUp]) -> LimitRow:
        """Raises `NotFound`, `PermissionDenied`, and `Conflict` for a budget that is not prepaid."""
        accounts = self._deps.accounts(call.caller)
        self._check_limit(call.path["id"], call.caller, accounts)
        return accounts.top_up(call.path["id"], call.body.amount)

    async def check(self, call: Call[None, CheckOrder]) -> Verdict:
        """Without the states of limits that the caller does not see. Raises `NotFound` for such a key."""
        order = call.body
        accounts = self._deps.accounts(call.caller)
        row = await self._workers.run(lambda: visible_key(accounts, call.caller, order.key_id))
        key = VirtualKey(id=row.id, tenant=row.tenant, project=row.project)
        price = self._deps.directory.price(order.model)
        demand = Demand(
            request_id="",
            model=order.model,
            prompt_tokens=order.prompt_tokens,
            output_tokens=order.max_tokens,
            cost_nano=None if price is None else price.cost(order.prompt_tokens, order.max_tokens),
        )
        verdict = self._deps.limits.check(self._deps.directory.rules(key, order.model), demand)
        seen = tuple(state for state in verdict.states if self._sees(call.caller, state.rule.scope))
        return msgspec.structs.replace(verdict, states=seen)

    async def read_state(self, call: Call[LimitsQuery, None]) -> Page[RuleState]:
        """The limits belong to the loop; which of them are asked for is found elsewhere."""
        shown = await self._workers.run(lambda: self._page_of_rules(call))
        return Page(data=self._deps.limits.states(shown.data), next=shown.next)

    def _page_of_rules(self, call: Call[LimitsQuery, None]) -> Page[Rule]:
        rules = [rule for rule in self._deps.directory.all_rules() if self._is_asked_for(rule.scope, call)]
        return page(rules, lambda rule: rule.id, call.query)

    def _is_asked_for(self, scope: Scope, call: Call[LimitsQuery, None]) -> bool:
        query = call.query
        if query.scope_kind not in (None, scope.kind) or not self._sees(call.caller, scope):
            return False
        return query.scope_id in (None, scope.id) or (scope.kind == "key" and self._line(query.scope_id) == scope.id)

    def _line(self, key_id: str | None) -> str | None:
        """The id that the limits of this key are kept under."""
        key = self._deps.directory.state.keys.get(key_id or "")
        return key_id if key is None else key.scope_id

    def _sees(self, caller: VirtualKey, scope: Scope) -> bool:
        bound = bound_tenant(caller)
        if scope.kind == "key" and bound is not None:
            key = self._deps.directory.state.keys.get(scope.id)
            return key is not None and key.tenant == bound
        return bound in (None, _tenant_of(scope))

    def _check_limit(self, limit_id: str, caller: VirtualKey, accounts: Accounts) -> None:
        """Raises `NotFound` for a limit that the caller does not see, `PermissionDenied` for one not its to change."""
        if bound_tenant(caller) is None:
            return
        found = next((row.scope for row in accounts.limits() if row.id == limit_id), None)
        if found is None or not self._sees(caller, found):
            raise no_such("limit", limit_id)
        self._check_scope(found, caller, accounts)

    def _check_scope(self, scope: Scope, caller: VirtualKey, accounts: Accounts) -> None:
        """Raises unless the caller may limit it: a manager projects of its tenant, and others' keys it may make."""
        bound = bound_tenant(caller)
        if bound is None:
            return
        if scope.kind == "key":
            key = visible_key(accounts, caller, scope.id)
            check_role(caller, key.role)
            if key.scope_id == self._line(caller.id):
                raise PermissionDenied(
                    "The limits of your own key are for others to change.", param="scope_id", code="own_limit"
                )
        elif scope.kind != "model" and _tenant_of(scope) != bound:
            raise no_such(scope.kind, scope.id)
        elif scope.kind != "project":
            raise PermissionDenied(
                "A manager limits keys and projects of its own tenant; the tenant's own limits are an admin's.",
                param="scope_kind",
                code="role_not_allowed",
            )


def _tenant_of(scope: Scope) -> str | None:
    return scope.id.partition("/")[0] if scope.kind in ("project", "tenant") else None
