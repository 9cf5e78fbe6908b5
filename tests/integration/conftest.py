"""The fixtures that serve."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.integration.served import SCRIPTED, Serve, Served


def _factory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
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


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """A factory of servers that end with the test."""
    yield from _factory(tmp_path_factory)


@pytest.fixture(scope="module")
def serve_long(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """A factory of servers that end with the tests of the file, which share them."""
    yield from _factory(tmp_path_factory)
