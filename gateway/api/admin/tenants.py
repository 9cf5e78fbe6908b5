"""Tenants and their projects."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from gateway.accounts.rows import ProjectRow, TenantRow
from gateway.api.admin.access import bound_tenant, check_role, no_such
from gateway.api.admin.deps import AdminDeps
from gateway.api.admin.endpoint import Call, Endpoint
from gateway.api.admin.paging import Page, page
from gateway.api.admin.shapes import NewProject, NewTenant, TenantChange, TenantsQuery

LIST = Endpoint(
    method="GET",
    path="/tenants",
    name="listTenants",
    summary="The tenants; a manager's own.",
    query=TenantsQuery,
    answer=Page[TenantRow],
)
CREATE = Endpoint(
    method="POST",
    path="/tenants",
    name="createTenant",
    summary="Make a tenant.",
    body=NewTenant,
    answer=TenantRow,
    status=201,
)
READ = Endpoint(method="GET", path="/tenants/{name}", name="readTenant", summary="One tenant.", answer=TenantRow)
CHANGE = Endpoint(
    method="PATCH",
    path="/tenants/{name}",
    name="changeTenant",
    summary="Change a tenant; what is absent stays.",
    body=TenantChange,
    answer=TenantRow,
)
END = Endpoint(
    method="DELETE",
    path="/tenants/{name}",
    name="endTenant",
    summary="End a tenant: its keys are refused from now on. What it used stays in the ledger.",
    answer=TenantRow,
)
LIST_PROJECTS = Endpoint(
    method="GET",
    path="/tenants/{name}/projects",
    name="listProjects",
    summary="The projects of a tenant.",
    query=TenantsQuery,
    answer=Page[ProjectRow],
)
CREATE_PROJECT = Endpoint(
    method="POST",
    path="/tenants/{name}/projects",
    name="createProject",
    summary="Make a project of a tenant.",
    body=NewProject,
    answer=ProjectRow,
    status=201,
)
END_PROJECT = Endpoint(
    method="DELETE",
    path="/tenants/{name}/projects/{project}",
    name="endProject",
    summary="End a project: its keys are refused from now on.",
    answer=ProjectRow,
)


class Tenants:
    """The handlers."""

    def __init__(self, deps: AdminDeps) -> None:
        self._deps = deps
        self.acts = (
            (LIST, self.list_tenants),
            (CREATE, self.create_tenant),
            (READ, self.read_tenant),
            (CHANGE, self.change_tenant),
            (END, self.end_tenant),
            (LIST_PROJECTS, self.list_projects),
            (CREATE_PROJECT, self.create_project),
            (END_PROJECT, self.end_project),
        )

    def list_tenants(self, call: Call[TenantsQuery, None]) -> Page[TenantRow]:
        """Of a manager there is one."""
        bound, ended = bound_tenant(call.caller), call.query.ended
        rows = self._deps.accounts(call.caller).tenants()
        seen = [row for row in rows if bound in (None, row.name) and (ended or row.ended_at is None)]
        return page(seen, lambda row: row.name, call.query)

    def create_tenant(self, call: Call[None, NewTenant]) -> TenantRow:
        """Raises `Conflict` for a name that is taken."""
        new = call.body
        return self._deps.accounts(call.caller).create_tenant(
            new.name, weight=new.weight, time_zone=new.time_zone, models=new.models, lanes=new.lanes
        )

    def read_tenant(self, call: Call[Any, Any]) -> TenantRow:
        """Raises `NotFound`."""
        name = self._name(call)
        found = next((row for row in self._deps.accounts(call.caller).tenants() if row.name == name), None)
        if found is None:
            raise no_such("tenant", name)
        return found

    def change_tenant(self, call: Call[None, TenantChange]) -> TenantRow:
        """Raises `NotFound`."""
        change = call.body
        return self._deps.accounts(call.caller).change_tenant(
            self._name(call),
            weight=None if change.weight is UNSET else change.weight,
            time_zone=None if change.time_zone is UNSET else change.time_zone,
            models=change.models,
            lanes=change.lanes,
        )

    def end_tenant(self, call: Call[None, None]) -> TenantRow:
        """Raises `NotFound`."""
        return self._deps.accounts(call.caller).end_tenant(self._name(call))

    def list_projects(self, call: Call[TenantsQuery, None]) -> Page[ProjectRow]:
        """Raises `NotFound` where there is no such tenant."""
        name = self.read_tenant(call).name
        rows = self._deps.accounts(call.caller).projects(name)
        seen = [row for row in rows if call.query.ended or row.ended_at is None]
        return page(seen, lambda row: row.name, call.query)

    def create_project(self, call: Call[None, NewProject]) -> ProjectRow:
        """Raises `Conflict` for a name that is taken."""
        new = call.body
        return self._deps.accounts(call.caller).create_project(
            self._name(call), new.name, models=new.models, lanes=new.lanes
        )

    def end_project(self, call: Call[None, None]) -> ProjectRow:
        """Raises `NotFound`, and `PermissionDenied` where that would end a key that the caller may not end."""
        tenant, project = self._name(call), call.path["project"]
        accounts = self._deps.accounts(call.caller)
        for row in accounts.keys(tenant, project):
            check_role(call.caller, row.role)
        return accounts.end_project(tenant, project)

    def _name(self, call: Call[Any, Any]) -> str:
        """The tenant in the path. Raises `NotFound` for one that the caller does not see."""
        name = call.path["name"]
        if bound_tenant(call.caller) not in (None, name):
            raise no_such("tenant", name)
        return name
