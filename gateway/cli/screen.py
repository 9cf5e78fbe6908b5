"""What the commands print with: people's text on stdout, errors and progress on stderr."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text


class CommandFailed(Exception):
    """A command could not do its work; the message is for people and says what to do. Exit code 1."""


def stdout() -> Console:
    """For results."""
    return Console(highlight=False, soft_wrap=True)


def stderr() -> Console:
    """For errors, warnings and progress."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def show_error(message: str) -> None:
    """One clear red line (or one for each problem found), without a traceback."""
    stderr().print(Text.assemble(("error: ", "bold red"), (message, "red")))
