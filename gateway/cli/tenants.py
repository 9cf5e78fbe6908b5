"""`laneway tenants` and `laneway projects`: who the work is for, with what share, models and lanes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec import UNSET, UnsetType

from gateway.cli import amounts
from gateway.cli.tables import Field, print_row, print_rows
from gateway.cli.target import Config, Json, open_accounts

if TYPE_CHECKING:
    from gateway.accounts.rows import ProjectRow, TenantRow

TENANT_FIELDS: tuple[Field[TenantRow], ...] = (
    Field("Tenant", lambda row: row.name),
    Field("Weight", lambda row: f"{row.weight:g}", is_number=True),
    Field("Time zone", lambda row: row.time_zone),
    Field("Models", lambda row: _allowed(row.models), folds=True),
    Field("Lanes", lambda row: _allowed(row.lanes)),
    Field("Created", lambda row: amounts.shown_at(row.created_at)),
    Field("Ended", lambda row: amounts.shown_at(row.ended_at)),
)
PROJECT_FIELDS: tuple[Field[ProjectRow], ...] = (
    Field("Tenant", lambda row: row.tenant),
    Field("Project", lambda row: row.name),
    Field("Models", lambda row: _allowed(row.models), folds=True),
    Field("Lanes", lambda row: _allowed(row.lanes)),
    Field("Created", lambda row: amounts.shown_at(row.created_at)),
    Field("Ended", lambda row: amounts.shown_at(row.ended_at)),
)

Models = Annotated[
    amounts.Names | None, typer.Option(parser=amounts.Names, metavar="M,N", help="Models its keys may use.")
]
Lanes = Annotated[
    amounts.Names | None, typer.Option(parser=amounts.Names, metavar="A,B", help="Lanes its keys may ask for.")
]
Weight = Annotated[float, typer.Option(help="Its share beside other tenants.")]
TimeZone = Annotated[str, typer.Option(help="Where its budgets' days and months begin, such as Europe/Berlin.")]
Tenant = Annotated[str, typer.Option(help="Whose project it is.")]
Ended = Annotated[bool, typer.Option("--all", help="Those that have ended too.")]

tenants = typer.Typer(name="tenants", help="Make, change, list and end tenants.", no_args_is_help=True)
projects = typer.Typer(name="projects", help="Make, list and end the projects of tenants.", no_args_is_help=True)


@tenants.command()
def create(
    name: str,
    weight: Weight = 1.0,
    time_zone: TimeZone = "UTC",
    models: Models = None,
    lanes: Lanes = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Make a tenant. Without models or lanes its keys may use all of them."""
    with open_accounts(config) as accounts:
        row = accounts.create_tenant(name, weight=weight, time_zone=time_zone, models=models, lanes=lanes)
    print_row(row, TENANT_FIELDS, as_json)


@tenants.command("list")
def list_tenants(ended: Ended = False, config: Config = None, as_json: Json = False) -> None:
    """List the tenants."""
    with open_accounts(config) as accounts:
        rows = [row for row in accounts.tenants() if ended or row.ended_at is None]
    print_rows(rows, TENANT_FIELDS, as_json)


@tenants.command("set")
def change(
    name: str,
    weight: Annotated[float | None, typer.Option(help="Its share beside other tenants.")] = None,
    time_zone: Annotated[str | None, typer.Option(help="Where its budgets' days and months begin.")] = None,
    models: Models = None,
    any_model: Annotated[bool, typer.Option("--any-model", help="All models from now on.")] = False,
    lanes: Lanes = None,
    any_lane: Annotated[bool, typer.Option("--any-lane", help="All lanes from now on.")] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Change a tenant; what is not given stays as it is."""
    allowed_models = _choice("model", models, any_model)
    allowed_lanes = _choice("lane", lanes, any_lane)
    with open_accounts(config) as accounts:
        row = accounts.change_tenant(
            name, weight=weight, time_zone=time_zone, models=allowed_models, lanes=allowed_lanes
        )
    print_row(row, TENANT_FIELDS, as_json)


@tenants.command("end")
def end_tenant(name: str, config: Config = None, as_json: Json = False) -> None:
    """End a tenant: its keys are refused from now on. What it used stays in the ledger."""
    with open_accounts(config) as accounts:
        row = accounts.end_tenant(name)
    print_row(row, TENANT_FIELDS, as_json)


@projects.command("create")
def create_project(
    name: str,
    tenant: Tenant,
    models: Models = None,
    lanes: Lanes = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Make a project of a tenant. Models and lanes narrow what the tenant may use."""
    with open_accounts(config) as accounts:
        row = accounts.create_project(tenant, name, models=models, lanes=lanes)
    print_row(row, PROJECT_FIELDS, as_json)


@projects.command("list")
def list_projects(
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.")] = None,
    ended: Ended = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List the projects."""
    with open_accounts(config) as accounts:
        rows = [row for row in accounts.projects(tenant) if ended or row.ended_at is None]
    print_rows(rows, PROJECT_FIELDS, as_json)


@projects.command("end")
def end_project(name: str, tenant: Tenant, config: Config = None, as_json: Json = False) -> None:
    """End a project: its keys are refused from now on. What it used stays in the ledger."""
    with open_accounts(config) as accounts:
        row = accounts.end_project(tenant, name)
    print_row(row, PROJECT_FIELDS, as_json)


def _choice(what: str, chosen: amounts.Names | None, is_any: bool) -> amounts.Names | UnsetType | None:
    """None: all of them; UNSET: as before."""
    if chosen is not None and is_any:
        raise typer.BadParameter(f"--{what}s and --any-{what} contradict each other; give one of them")
    return None if is_any else UNSET if chosen is None else chosen


def _allowed(names: tuple[str, ...] | None) -> object:
    return "all" if names is None else names
