"""Fixtures that start a front; see front_server.py."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from gateway.batches import BatchOptions
from gateway.config import ServerOptions, Settings
from gateway.files import FileOptions
from gateway.lanes import DEFAULT_LANES, LaneOptions
from gateway.limits import LimitOptions
from gateway.openai.wire import WireOptions
from gateway.store import StoreOptions
from gateway.tenants import AuthOptions
from tests.integration.front.front_server import Front, Serve, running


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Start a front: options of the scripted backend called `test`, and tables of the settings."""
    with ExitStack() as stack:

        def start(
            *,
            backends: Mapping[str, dict[str, object]] | None = None,
            lanes: Mapping[str, LaneOptions] | None = None,
            auth: AuthOptions | None = None,
            server: ServerOptions | None = None,
            limits: LimitOptions | None = None,
            store: StoreOptions | None = None,
            wire: WireOptions | None = None,
            files: FileOptions | None = None,
            batches: BatchOptions | None = None,
            **options: object,
        ) -> Front:
            tables = backends or {"test": {"type": "scripted", "models": ["scripted"], **options}}
            folder = Path(tempfile.mkdtemp(dir=tmp_path))
            settings = Settings(
                server=server or ServerOptions(),
                auth=auth or AuthOptions(),
                store=store or StoreOptions(url=f"sqlite:///{folder / 'laneway.db'}"),
                limits=limits or LimitOptions(),
                wire=wire or WireOptions(),
                files=files or FileOptions(),
                batches=batches or BatchOptions(),
                lanes={**DEFAULT_LANES, **(lanes or {})},
                backends=dict(tables),
            )
            return stack.enter_context(running(settings, folder))

        yield start


@pytest.fixture
def front(serve: Serve) -> Front:
    """A front with nothing special about it."""
    return serve()
