"""The fixture that serves."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.integration.served import SCRIPTED, Serve, Served


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """A factory of servers."""
    started: list[Served] = []

    def start(toml: str = SCRIPTED, *, ready: bool = True, **environ: str) -> Served:
        started.append(Served(toml, tmp_path_factory.mktemp("serve"), environ))
        if ready:
            started[-1].wait_until_ready()
        return started[-1]

    yield start
    for served in started:
        if served.process.poll() is None:
            served.end(signal.SIGTERM)
