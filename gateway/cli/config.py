"""`laneway config`: how a file differs from what the running server works with, and having it read anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from gateway.cli.screen import CommandFailed
from gateway.cli.tables import Field, print_json, print_note, print_rows, print_table
from gateway.cli.target import Config, Json, open_store

if TYPE_CHECKING:
    from gateway.reload import Change

FIELDS: tuple[Field[Change], ...] = (
    Field("Setting", lambda change: change.field),
    Field("Running", lambda change: change.before, folds=True),
    Field("File", lambda change: change.after, folds=True),
    Field("Takes effect", lambda change: "at reload" if change.is_live else "after a restart"),
)

config_commands = typer.Typer(name="config", help="Compare the configuration with the running server's, and reload it.")


@config_commands.command("diff")
def diff(config: Config = None, as_json: Json = False) -> None:
    """Show what differs between the file and the running server. Of secrets only that they differ."""
    from gateway.control import NotRunning, ask
    from gateway.reload import changes, flatten

    with open_store(config) as (settings, store):
        try:
            running = ask(store, "settings", dict[str, str])
        except NotRunning as error:
            raise CommandFailed(str(error)) from None
        found = changes(running, flatten(settings, store.pepper()))
    if found or as_json:
        print_rows(found, FIELDS, as_json)
    else:
        print_note("the running server works with this configuration")


@config_commands.command("reload")
def reload(config: Config = None, as_json: Json = False) -> None:
    """Have the running server read its configuration anew; running answers go on."""
    from gateway.control import NotRunning, ask
    from gateway.reload import Reloaded

    with open_store(config) as (_, store):
        try:
            done = ask(store, "reload", Reloaded)
        except NotRunning as error:
            raise CommandFailed(str(error)) from None
    if as_json:
        print_json(done)
        return
    if done.changed:
        print_table(done.changed, FIELDS)
    else:
        print_note("nothing that takes effect at reload has changed")
    if done.pending:
        print_note(f"after a restart: {', '.join(done.pending)}")
