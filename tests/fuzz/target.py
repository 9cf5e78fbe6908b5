"""The front that is fuzzed: the scripted backend, a fresh store, and a key that may do everything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gateway.config import ServerOptions, Settings
from gateway.lanes import DEFAULT_LANES
from gateway.store import StoreOptions
from gateway.tenants import AuthOptions, StaticKey
from tests.integration.front.front_server import Front, running

KEY = "sk-may-do-everything"


@contextmanager
def target(folder: Path) -> Iterator[Front]:
    """A running front."""
    settings = Settings(
        server=ServerOptions(max_body_bytes=1 << 20),
        auth=AuthOptions(key=(StaticKey(key=KEY, role="admin"),)),
        store=StoreOptions(url=f"sqlite:///{folder}/laneway.db"),
        lanes=dict(DEFAULT_LANES),
        backends={"test": {"type": "scripted", "models": ["scripted"]}},
    )
    with running(settings, folder) as front:
        yield front
