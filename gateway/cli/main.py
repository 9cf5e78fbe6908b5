"""`laneway`: our own commands, and those that backends add through the entry point group `laneway.commands`."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from backends.errors import ConfigError
from gateway.cli.audit import audit
from gateway.cli.batches import batches
from gateway.cli.bench.command import bench
from gateway.cli.config import config_commands
from gateway.cli.conformance import conformance
from gateway.cli.explain import explain
from gateway.cli.init import init
from gateway.cli.keys import keys
from gateway.cli.ledger import ledger
from gateway.cli.limits import limits
from gateway.cli.openapi import openapi
from gateway.cli.prices import prices
from gateway.cli.screen import CommandFailed, show_error
from gateway.cli.serve import serve
from gateway.cli.tenants import projects, tenants
from gateway.cli.top import top
from gateway.cli.usage import usage
from gateway.supervisor import EXIT_CONFIG
from gateway.version import own_version

GROUP = "laneway.commands"


class CommandGroup(TyperGroup):
    """Our commands first. A backend's is loaded when it is called for: `laneway serve` never pays for it."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names for `--help`."""
        own = super().list_commands(ctx)
        return own + sorted(point.name for point in entry_points(group=GROUP) if point.name not in own)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, or None."""
        own = super().get_command(ctx, cmd_name)
        points = [point for point in entry_points(group=GROUP) if point.name == cmd_name]
        return own if own is not None or not points else _load(points[0])


app = typer.Typer(
    name="laneway",
    cls=CommandGroup,
    help="OpenAI-compatible gateway with pluggable backends and an engine of its own.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command()(serve)
app.command()(init)
for group in (keys, tenants, projects, limits, prices, ledger, batches, config_commands):
    app.add_typer(group)
for command in (usage, explain, top, audit, bench, conformance, openapi):
    app.command()(command)


@app.command("version")
def print_version() -> None:
    """Print the version."""
    typer.echo(own_version())


def _version_flag(asked: bool) -> None:
    if asked:
        print_version()
        raise typer.Exit


@app.callback()
def options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version_flag, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """OpenAI-compatible gateway with pluggable backends and an engine of its own."""


def _load(point: EntryPoint) -> Any:
    """A backend's command: a Typer app (a group), or a function."""
    try:
        loaded = point.load()
    except ImportError as error:
        return _stand_in(point, error)
    if not isinstance(loaded, typer.Typer):
        loaded = _single(point.name, loaded)
    command = typer.main.get_command(loaded)
    command.name = point.name
    return command


def _single(name: str, function: Any, **settings: Any) -> typer.Typer:
    alone = typer.Typer(add_completion=False)
    alone.command(name, **settings)(function)
    return alone


def _stand_in(point: EntryPoint, error: ImportError) -> Any:
    """A command in the place of one that cannot be loaded; it says which extra is missing."""
    advice = _advice(point, error)

    def missing() -> None:
        raise ConfigError(advice)

    missing.__doc__ = "(cannot be loaded; run it to see why)"
    anything = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
    return typer.main.get_command(_single(point.name, missing, context_settings=anything))


def _advice(point: EntryPoint, error: ImportError) -> str:
    """A command in `backends.X` belongs to the extra X; when what is missing is our own, no extra helps."""
    if not error.name or error.name.startswith(("backends", "gateway")):
        return f"laneway {point.name} cannot be loaded: {error}"
    extra = point.module.removeprefix("backends.").split(".", 1)[0]
    distribution = point.dist.name if point.dist is not None else "laneway"
    return (
        f"laneway {point.name} needs the extra {extra} ({error.name} is not installed); "
        f"run: pip install '{distribution}[{extra}]'"
    )


def main() -> None:
    """The console script. Exit codes: 2 for settings that cannot work, 1 for a command that failed."""
    try:
        app()
    except ConfigError as error:
        show_error(str(error))
        sys.exit(EXIT_CONFIG)
    except CommandFailed as error:
        show_error(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main()
