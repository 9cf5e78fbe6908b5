"""Fixtures that start a server with the admin routes; see admin_server.py."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.store import StoreOptions
from tests.integration.admin.admin_server import AdminServer, Serve, serving, settings_of


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a server over a fresh SQLite store; takes tables of the settings, and `reload`."""
    with ExitStack() as stack:

        def start(store: StoreOptions | None = None, *, reload: Any = None, **tables: Any) -> AdminServer:
            options = store or StoreOptions(url=f"sqlite:///{tmp_path}/laneway.db")
            more = {} if reload is None else {"reload": reload}
            server = AdminServer(settings_of(options, **tables), tmp_path, **more)
            return stack.enter_context(serving(server))

        yield start


@pytest.fixture(scope="module")
def shared_admin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """An admin of a server that many tests share, which change nothing."""
    folder = tmp_path_factory.mktemp("shared")
    settings = settings_of(StoreOptions(url=f"sqlite:///{folder}/laneway.db"))
    with serving(AdminServer(settings, folder)) as server, server.as_role("admin", "ops") as client:
        yield client


@pytest.fixture
def server(serve: Serve) -> AdminServer:
    """A server with nothing special about it, and without a key."""
    return serve()
