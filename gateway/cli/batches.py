"""`laneway batches`: list, show and cancel the batches of all tenants, also while a server runs them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import amounts
from gateway.cli.tables import Field, print_row, print_rows
from gateway.cli.target import Config, Json, open_store

if TYPE_CHECKING:
    from gateway.batches import Batch, Batches

FIELDS: tuple[Field[Batch], ...] = (
    Field("ID", lambda batch: batch.id),
    Field("Tenant", lambda batch: batch.tenant),
    Field("Endpoint", lambda batch: batch.endpoint),
    Field("Status", lambda batch: batch.status),
    Field("Lines", lambda batch: batch.total, is_number=True),
    Field("Done", lambda batch: _share(batch), is_number=True),
    Field("Completed", lambda batch: batch.completed, is_number=True),
    Field("Failed", lambda batch: batch.failed, is_number=True),
    Field("Created", lambda batch: amounts.shown_at(batch.created_at)),
)
MORE: tuple[Field[Batch], ...] = (
    Field("Expires", lambda batch: None if batch.is_over else amounts.shown_at(batch.expires_at)),
    Field("Key", lambda batch: batch.key_id),
    Field("Input file", lambda batch: batch.input_file_id),
    Field("Output file", lambda batch: batch.output_file_id),
    Field("Error file", lambda batch: batch.error_file_id),
    Field("Prompt tokens", lambda batch: batch.usage and batch.usage.prompt),
    Field("Completion tokens", lambda batch: batch.usage and batch.usage.completion),
    Field("Faults", lambda batch: [f"line {fault.line}: {fault.message}" for fault in batch.errors]),
)

Id = Annotated[str, typer.Argument(metavar="ID", help="The batch's id.")]

batches = typer.Typer(name="batches", help="List, show and cancel batches.", no_args_is_help=True)


@batches.command("list")
def list_batches(
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many.")] = 50,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List batches and how far they are, newest first."""
    from gateway.files import Page

    with _open(config) as found:
        rows, _ = found.page(tenant, Page(limit=limit))
    print_rows(rows, FIELDS, as_json)


@batches.command("show")
def show_batch(batch_id: Id, config: Config = None, as_json: Json = False) -> None:
    """Show all of one batch."""
    with _open(config) as found:
        batch = found.find(None, batch_id)
    print_row(batch, (*FIELDS, *MORE), as_json)


@batches.command("cancel")
def cancel_batch(batch_id: Id, config: Config = None, as_json: Json = False) -> None:
    """Begin no further line of a batch. What is done is kept; the server ends the batch when it runs."""
    with _open(config) as found:
        batch = found.cancel(None, batch_id)
    print_row(batch, FIELDS, as_json)


@contextmanager
def _open(config: Path | None) -> Iterator[Batches]:
    from gateway.batches import Batches
    from gateway.files import Files

    with open_store(config) as (settings, store):
        yield Batches(store, Files(store, settings.files))


def _share(batch: Batch) -> str | None:
    return f"{100 * (batch.completed + batch.failed) // batch.total} %" if batch.total else None
