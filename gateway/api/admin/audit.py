"""The audit log: who changed what."""

from __future__ import annotations

from gateway.accounts.rows import AuditRow
from gateway.api.admin.deps import AdminDeps
from gateway.api.admin.endpoint import Call, Endpoint
from gateway.api.admin.paging import Page
from gateway.api.admin.shapes import AuditQuery

LIST = Endpoint(
    method="GET",
    path="/audit",
    name="listAudit",
    summary="The changes that operators made, newest first.",
    query=AuditQuery,
    answer=Page[AuditRow],
)


class Audit:
    """The handler."""

    def __init__(self, deps: AdminDeps) -> None:
        self._deps = deps
        self.acts = ((LIST, self.list_audit),)

    def list_audit(self, call: Call[AuditQuery, None]) -> Page[AuditRow]:
        """The cursor is the id of the last row."""
        query = call.query
        rows = self._deps.accounts(call.caller).audit(limit=query.limit + 1, before=query.after)
        shown = rows[: query.limit]
        return Page(data=shown, next=str(shown[-1].id) if len(rows) > len(shown) else None)
