"""`laneway keys`: make, list, rotate and revoke virtual keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from gateway.cli import amounts
from gateway.cli.tables import Field, print_facts, print_json, print_note, print_row, print_rows
from gateway.cli.target import Config, Json, open_accounts
from gateway.virtual_keys import Role

if TYPE_CHECKING:
    from gateway.accounts import Accounts, MadeKey
    from gateway.accounts.rows import KeyRow

FIELDS: tuple[Field[KeyRow], ...] = (
    Field("ID", lambda row: row.id),
    Field("Key", lambda row: row.hint),
    Field("Tenant", lambda row: row.tenant),
    Field("Project", lambda row: row.project),
    Field("Name", lambda row: row.name),
    Field("Role", lambda row: row.role),
    Field("State", lambda row: row.state),
    Field("Created", lambda row: amounts.shown_at(row.created_at)),
    Field("Expires", lambda row: amounts.shown_at(row.expires_at)),
)
DETAILS: tuple[Field[KeyRow], ...] = (
    Field("Models", lambda row: row.models),
    Field("Lanes", lambda row: row.lanes),
    Field("Default lane", lambda row: row.default_lane),
    Field("Replaces", lambda row: row.replaces),
)
OVERLAP_S = 86_400

keys = typer.Typer(name="keys", help="Make, list, rotate and revoke virtual keys.", no_args_is_help=True)


@keys.command()
def create(
    tenant: Annotated[str, typer.Option(help="Who uses it; made when there is none of that name.")],
    name: Annotated[str, typer.Option(help="What people call the key.")],
    project: Annotated[str, typer.Option(help="Of the tenant; made when there is none of that name.")] = "default",
    role: Annotated[Role, typer.Option(help="What it may do in the admin API.")] = "user",
    rpm: Annotated[int | None, typer.Option(min=1, help="Requests a minute.")] = None,
    tpm: Annotated[int | None, typer.Option(min=1, help="Tokens a minute.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests at once.")] = None,
    budget: Annotated[
        int | None, typer.Option(parser=amounts.budget_nano, metavar="USD", help="Money for each period.")
    ] = None,
    budget_period: Annotated[
        str | None,
        typer.Option(help="hour, day, week, month, rolling:24h, rolling:30d or prepaid. \\[default: month]"),
    ] = None,
    lanes: Annotated[
        amounts.Names | None, typer.Option(parser=amounts.Names, metavar="A,B", help="Lanes it may ask for.")
    ] = None,
    default_lane: Annotated[str | None, typer.Option(help="Lane of a request that asks for none.")] = None,
    models: Annotated[
        amounts.Names | None, typer.Option(parser=amounts.Names, metavar="M,N", help="Models it may use.")
    ] = None,
    expires: Annotated[
        float | None, typer.Option(parser=amounts.future_at, metavar="90d|DATE", help="When it ends by itself.")
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Make a key and print it, this once: the store keeps only a digest of it."""
    from gateway.accounts import NewKey
    from gateway.accounts.checks import DEFAULT_PERIOD

    if budget_period is not None and budget is None:
        raise typer.BadParameter("--budget-period is of a budget; give --budget too")
    new = NewKey(
        tenant=tenant,
        project=project,
        name=name,
        role=role,
        models=models,
        lanes=lanes,
        default_lane=default_lane,
        expires_at=expires,
        rpm=rpm,
        tpm=tpm,
        concurrency=concurrency,
        budget_nano=budget,
        budget_period=DEFAULT_PERIOD if budget_period is None else budget_period,
    )
    with open_accounts(config) as accounts:
        made = accounts.create_key(new)
    print_made(made, as_json)


@keys.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.")] = None,
    project: Annotated[str | None, typer.Option(help="Only of this project of the tenant.")] = None,
    ended: Annotated[bool, typer.Option("--all", help="Revoked and expired keys too.")] = False,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List the keys, without what would let anyone use them."""
    with open_accounts(config) as accounts:
        rows = accounts.keys(tenant, project, ended=ended)
    print_rows(rows, FIELDS, as_json)


@keys.command()
def rotate(
    key_id: Annotated[str, typer.Argument(metavar="ID")],
    overlap: Annotated[
        int | None,
        typer.Option(parser=amounts.duration_s, metavar="24h", help="How long the old key goes on. \\[default: 24h]"),
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Make a key in the place of another, which ends after the overlap, and print the new one, this once."""
    with open_accounts(config) as accounts:
        made = accounts.rotate_key(key_id, OVERLAP_S if overlap is None else overlap)
    print_made(made, as_json)


@keys.command()
def revoke(key_id: Annotated[str, typer.Argument(metavar="ID")], config: Config = None, as_json: Json = False) -> None:
    """End a key now: its next request is refused."""
    with open_accounts(config) as accounts:
        row = accounts.revoke_key(key_id)
        successors = _living_successors(accounts, row)
    print_row(row, FIELDS, as_json)
    if successors and not as_json:
        print_note(f"It was rotated: its successor {', '.join(successors)} lives on, until that is revoked too.")


def _living_successors(accounts: Accounts, revoked: KeyRow) -> list[str]:
    """The keys that it was rotated into, one after the other, as far as they live."""
    rows = accounts.keys(revoked.tenant, ended=True)
    successors = {row.replaces: row for row in rows if row.replaces is not None}
    living, last = [], revoked
    while last.id in successors:
        last = successors[last.id]
        if last.state == "live":
            living.append(last.id)
    return living


def print_made(made: MadeKey, as_json: bool) -> None:
    """The one time a key is seen."""
    row = made.row
    if as_json:
        print_json({"id": row.id, "key": made.secret} | msgspec.to_builtins(row))
        return
    shown = (*(field for field in FIELDS if field.title != "Key"), *DETAILS)
    print_facts((("Key", made.secret), *((field.title, field.of(row)) for field in shown)))
    print_note("Keep the key now: it is never shown again.")
