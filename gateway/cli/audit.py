"""`laneway audit`: who changed what, newest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from gateway.cli import amounts
from gateway.cli.tables import Field, print_rows
from gateway.cli.target import Config, Json, open_accounts

if TYPE_CHECKING:
    from gateway.accounts.rows import AuditRow

LAST = 2**53  # that JSON can number in every language

FIELDS: tuple[Field[AuditRow], ...] = (
    Field("No.", lambda row: row.id, is_number=True),
    Field("At (UTC)", lambda row: amounts.shown_at(row.created_at)),
    Field("Who", lambda row: row.actor),
    Field("Action", lambda row: row.action),
    Field("What", lambda row: row.target),
    Field("Detail", lambda row: msgspec.json.encode(row.detail).decode() if row.detail else "", folds=True),
)


def audit(
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many.")] = 100,
    before: Annotated[int | None, typer.Option(min=1, max=LAST, help="Only what is older than this number.")] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List the changes that operators made, newest first."""
    with open_accounts(config) as accounts:
        rows = accounts.audit(limit=limit, before=before)
    print_rows(rows, FIELDS, as_json)
