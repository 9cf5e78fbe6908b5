"""What a command works on: the options `--config` and `--json`, and the store that the config names."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli.screen import CommandFailed
from gateway.errors import GatewayError

if TYPE_CHECKING:  # SQLAlchemy is loaded by the commands that open a store, never by `laneway --help`
    from gateway.accounts import Accounts
    from gateway.config import Settings
    from gateway.store import Store

SHOWN = 60

Config = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file; LANEWAY_CONFIG names one too.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@contextmanager
def open_store(config: Path | None) -> Iterator[tuple[Settings, Store]]:
    """The settings, and their store, created or migrated when it needs to be; closed afterwards. What a server that
    runs on it has answered is in it.

    Raises `ConfigError` for settings and `CommandFailed` for whatever the store refuses meanwhile.
    """
    from gateway.config import load_settings
    from gateway.control import flush
    from gateway.store import Store

    settings = load_settings(config)
    with refusals_shown():
        store = Store.open(settings.store)
        try:
            flush(store)
            yield settings, store
        finally:
            store.close()


@contextmanager
def open_accounts(config: Path | None) -> Iterator[Accounts]:
    """The accounts in the store of the settings; every change is audited under the name of who is logged in."""
    from gateway.accounts import Accounts

    with open_store(config) as (settings, store):
        yield Accounts(store, actor(), count_cached=settings.limits.count_cached)


@contextmanager
def refusals_shown() -> Iterator[None]:
    """What the gateway refuses becomes the command's failure: one clear line. So does what is no text."""
    try:
        yield
    except UnicodeEncodeError as error:  # of an argument: what Python cannot decode it keeps as lone surrogates
        raise CommandFailed(f"{error.object[:SHOWN]!a} is not text in UTF-8") from None
    except GatewayError as error:
        raise CommandFailed(error.message) from None


def actor() -> str:
    """`cli:` and the login name of this process, which no variable of the environment can change."""
    try:
        return f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
    except KeyError:
        return f"cli:{os.getuid()}"
