"""`laneway init`: a folder to serve from: config, pepper, store and the first admin key."""

from __future__ import annotations

import secrets
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.screen import CommandFailed
from gateway.cli.tables import print_facts, print_json, print_note
from gateway.cli.target import Json, actor, open_store

if TYPE_CHECKING:
    from gateway.accounts import MadeKey

CONFIG, PEPPER, STORE = "laneway.toml", "pepper", "laneway.db"
PEPPER_BYTES = 32
ADMIN = "admin"

TEMPLATE = f"""\
# Laneway. Paths are from the folder of this file; an option that is left out has the default shown.

[server]
host = "127.0.0.1"
port = 8000

# Tenants, keys, limits and the ledger. For Postgres: url = "postgresql://user@host/database"
[store]
url = "sqlite:///{STORE}"
# Keys are digested with the secret in this file. Back it up with the store: without it no key works.
pepper_file = "{PEPPER}"
# "full": what was answered survives a power loss too.
# durability = "normal"
# Days that single requests are kept; their sums stay. 0: for ever.
# retention_days = 0

[limits]
# What a money budget does with a model that has no price: "refuse" or "free".
# unpriced = "refuse"

# Requests wait in three lanes: interactive, standard and batch.
# [lanes.batch]
# floor = 0.05
# max_queue = 1000
# max_wait = 60.0

# Without a backend the small built-in chat model is served, as here.
# [backends.local]
# type = "hf"
# model = "smollm2-135m-instruct"
"""


def init(
    directory: Annotated[
        Path, typer.Option("--dir", help="Folder for it, made when it is not there.", file_okay=False)
    ] = Path(),
    as_json: Json = False,
) -> None:
    """Write a config, make its store and the first admin key, and print the key, this once.

    Nothing that is there already is overwritten.
    """
    config = directory / CONFIG
    with ExitStack() as undo:
        _write_files(directory, undo)
        store, made = _make_store(config)
        undo.pop_all()
    if as_json:
        print_json({"config": str(config), "store": store, "id": made.row.id, "key": made.secret})
        return
    print_facts((("Config", config), ("Store", store), ("Admin key", made.secret), ("ID", made.row.id)))
    print_note(f"Keep the key now: it is never shown again. Next: laneway serve --config {shlex.quote(str(config))}")


def _write_files(directory: Path, undo: ExitStack) -> None:
    """Pepper and config, both new. What is made here is removed again when a later step fails."""
    for name in (CONFIG, PEPPER, STORE):
        if (directory / name).exists():
            raise CommandFailed(f"{directory / name} is there already; choose another --dir, or move it away")
        undo.callback((directory / name).unlink, missing_ok=True)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_new(directory / PEPPER, f"{secrets.token_hex(PEPPER_BYTES)}\n", 0o600)
        _write_new(directory / CONFIG, TEMPLATE, 0o644)
    except OSError as error:
        raise CommandFailed(f"--dir: cannot write in {directory}: {error.strerror}") from None


def _write_new(path: Path, text: str, mode: int) -> None:
    path.touch(mode, exist_ok=False)
    path.write_text(text, encoding="utf-8")


def _make_store(config: Path) -> tuple[str, MadeKey]:
    """The store's URL, without a password, and its first key."""
    from gateway.accounts import Accounts, NewKey
    from gateway.connections import read_url, show

    with open_store(config) as (settings, store):
        made = Accounts(store, actor()).create_key(NewKey(tenant="default", name=ADMIN, role="admin"))
    return show(read_url(settings.store.url)), made
