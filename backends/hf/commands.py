"""`laneway models`: fetch, list and remove models. Found by the entry point group `laneway.commands`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from backends.errors import ConfigError
from backends.hf import hub
from backends.hf.catalog import Catalog, default_home
from backends.hf.checkpoint import Checkpoint, check_servable
from backends.hf.inventory import LocalModel, inventory
from backends.hf.inventory import remove as remove_model
from backends.hf.progress import download, stages

models = typer.Typer(name="models", help="Fetch, list and remove models.", no_args_is_help=True, add_completion=False)

MODEL_HELP = "A Hugging Face repo id, a .gguf file or a built-in name."


@models.command()
def pull(
    model: Annotated[str, typer.Argument(help=MODEL_HELP, show_default=False)],
    revision: Annotated[
        str | None, typer.Option(help="Branch, tag or commit of the repo. \\[default: main]", show_default=False)
    ] = None,
) -> None:
    """Fetch MODEL so that it can be served: download a repo, or convert a GGUF file.

    HF_ENDPOINT names another hub, HF_TOKEN is for private and gated repos. A pull that broke off goes on file by file.
    """
    catalog = _catalog()
    match catalog.kind(model):
        case "repo":
            folder = _download(model, revision)
        case "folder":
            raise ConfigError(f"model: {model!r} is a folder; it can be served as it is, with nothing to pull.")
        case "builtin" | "gguf":
            with stages(f"Converting {model}") as report:
                folder = catalog.prepare(model, progress=report).folder
    console = _console()
    console.print(f"{model} is in {folder}")
    try:
        check_servable(Checkpoint.read(folder), trust_remote_code=True)
    except ConfigError as error:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"warning: it cannot be served yet. {error}")


@models.command("list")
def list_models(
    as_json: Annotated[bool, typer.Option("--json", help="For machines: one JSON array.")] = False,
) -> None:
    """List the models on this machine, with their size; --json says where they are."""
    found = inventory(_catalog())
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode([_row(model) for model in found])).decode())
        return
    if not found:
        _console().print("No models here yet. Fetch one: laneway models pull ORG/NAME")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("model", "source", "dtype", "revision"):
        table.add_column(column, overflow="fold")
    table.add_column("size", justify="right")
    for model in found:
        state = "not converted yet" if model.folder is None else "incomplete"
        table.add_row(model.name, model.source, model.dtype or state, (model.revision or "")[:12], decimal(model.size))
    _console().print(table)


@models.command()
def remove(
    model: Annotated[str, typer.Argument(help="A name from `laneway models list`, or a .gguf file.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete what MODEL takes on disk: its converted folder, or its repo in the cache. A .gguf file itself stays."""
    catalog = _catalog()
    found = _find(catalog, model)
    size = decimal(sum(each.size for each in found))
    if not yes:
        typer.confirm(f"Remove {model} ({size})?", abort=True)
    remove_model(catalog, found[0])
    _console().print(f"Removed {model} ({size}).")


def _download(repo_id: str, revision: str | None) -> Path:
    wanted = hub.look(repo_id, revision)
    with download(f"Fetching {repo_id}", wanted.missing_bytes, wanted.present_bytes):
        return hub.fetch(wanted)


def _find(catalog: Catalog, model: str) -> list[LocalModel]:
    """The revisions of one model; folders that were not made here are not ours to delete."""
    name = model
    if catalog.kind(model) == "gguf":
        name = catalog.resolve(model).folder.name
    found = [each for each in inventory(catalog) if each.name == name and each.folder is not None]
    if not found:
        raise ConfigError(f"model: there is no {model!r} to remove; `laneway models list` shows what is here.")
    return found


def _row(model: LocalModel) -> dict[str, object]:
    return {
        "name": model.name,
        "source": model.source,
        "revision": model.revision,
        "dtype": model.dtype,
        "size_bytes": model.size,
        "path": None if model.folder is None else str(model.folder),
    }


def _catalog() -> Catalog:
    return Catalog(default_home(os.environ))


def _console() -> Console:
    return Console(highlight=False, soft_wrap=True, markup=False)
