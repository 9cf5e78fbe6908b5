"""Single requests: those in flight, and every step of one."""

from __future__ import annotations

from gateway.api.admin.access import bound_tenant, no_such, tenant_filter
from gateway.api.admin.deps import AdminDeps
from gateway.api.admin.endpoint import Call, Endpoint
from gateway.api.admin.paging import Page, page
from gateway.api.admin.shapes import RequestsQuery
from gateway.explain import Explanation, explain
from gateway.ledger import OpenEntry

LIST = Endpoint(
    method="GET",
    path="/requests",
    name="listRequests",
    summary="The requests in flight on this server, oldest first.",
    query=RequestsQuery,
    answer=Page[OpenEntry],
)
EXPLAIN = Endpoint(
    method="GET",
    path="/requests/{request_id}",
    name="explainRequest",
    summary="Every step of one request: limits, wait, attempts, tokens, cost. Any id that a client was shown will do.",
    answer=Explanation,
)


class Requests:
    """The handlers."""

    def __init__(self, deps: AdminDeps) -> None:
        self._deps = deps
        self.acts = ((LIST, self.list_requests), (EXPLAIN, self.explain_request))

    async def list_requests(self, call: Call[RequestsQuery, None]) -> Page[OpenEntry]:
        """From memory."""
        tenant = tenant_filter(call.caller, call.query.tenant)
        entries = [entry for entry in self._deps.ledger.entries() if tenant in (None, entry.tenant)]
        return page(entries, lambda entry: entry.request_id, call.query)

    def explain_request(self, call: Call[None, None]) -> Explanation:
        """Raises `NotFound`."""
        request_id = call.path["request_id"]
        found = explain(self._deps.store, request_id, tenant=bound_tenant(call.caller), clock=self._deps.clock)
        if found is None:
            raise no_such("request", request_id)
        return found
