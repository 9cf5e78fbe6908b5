"""The admin routes for tests: real parts over a real store, behind uvicorn on a loopback port, in a thread."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvicorn
from litestar import Litestar

from backends.registry import Registry
from gateway.accounts import Accounts, NewKey
from gateway.api.admin import AdminDeps, admin_routes
from gateway.api.auth import Gate
from gateway.api.errors import answer_exception
from gateway.api.exchange import stamp
from gateway.config import Settings
from gateway.directory import Directory
from gateway.lanes import DEFAULT_LANES, Lanes
from gateway.ledger import Ledger
from gateway.limits import Limits
from gateway.routing import Routing
from gateway.store import Store, StoreOptions
from gateway.tenants import AuthOptions, KeyRing
from gateway.writer import Writer

ResultT = TypeVar("ResultT")
Serve = Callable[..., "AdminServer"]

RUN = "0" * 32


async def nothing_changed() -> dict[str, Any]:
    return {"changed": [], "pending": []}


class AdminServer:
    """A running server and its parts."""

    def __init__(
        self, settings: Settings, run_dir: Path, reload: Callable[[], Awaitable[dict[str, Any]]] = nothing_changed
    ) -> None:
        self.store = Store.open(settings.store)
        self.directory = Directory(self.store)
        self.limits = Limits(settings.limits)
        self.writer = Writer(self.store)
        self.ledger = Ledger(self.writer, RUN)
        self.registry = Registry.build(settings.backends, run_dir)
        self.lanes = Lanes(settings.lanes)
        for name, backend in self.registry.backends.items():
            self.lanes.open(name, backend.capacity)
        self.gate = Gate(KeyRing(settings.auth, settings.lanes, self.directory))
        self.deps = AdminDeps(
            store=self.store,
            directory=self.directory,
            limits=self.limits,
            ledger=self.ledger,
            writer=self.writer,
            lanes=self.lanes,
            routing=Routing(self.registry),
            settings=lambda: settings,
            reload=reload,
        )
        self.app = Litestar(
            admin_routes(self.gate, self.deps),
            lifespan=[self._live],
            before_send=[stamp],
            exception_handlers={Exception: answer_exception},
            openapi_config=None,
            logging_config=None,
        )
        self.accounts = Accounts(self.store, "cli:test")
        self.loop: asyncio.AbstractEventLoop | None = None
        self.url = ""

    @asynccontextmanager
    async def _live(self, _: Litestar) -> AsyncIterator[None]:
        self.loop = asyncio.get_running_loop()
        self.directory.start()
        self.writer.start()
        self.ledger.start()
        try:
            yield
        finally:
            await self.ledger.stop()
            self.writer.stop()
            self.directory.stop()

    def key(self, role: str = "user", tenant: str = "acme", **more: Any) -> str:
        """A new key's secret, made as the command makes it."""
        return self.accounts.create_key(NewKey(tenant=tenant, role=role, **more)).secret  # type: ignore[arg-type]

    def client(self, secret: str | None = None, **headers: str) -> httpx.Client:
        bearer = {} if secret is None else {"authorization": f"Bearer {secret}"}
        return httpx.Client(base_url=f"{self.url}/admin/v1", headers=bearer | headers, timeout=20)

    def as_role(self, role: str, tenant: str = "acme", **more: Any) -> httpx.Client:
        return self.client(self.key(role, tenant, **more))

    def in_loop(self, work: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Do something where the ledger and the limits live."""

        async def run() -> ResultT:
            return await work()

        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(20)


def settings_of(store: StoreOptions, auth: AuthOptions | None = None, **tables: Any) -> Settings:
    return Settings(
        store=store,
        auth=auth or AuthOptions(),
        lanes=dict(DEFAULT_LANES),
        backends={"test": {"type": "scripted", "models": ["scripted"]}},
        **tables,
    )


@contextmanager
def serving(server: AdminServer) -> Iterator[AdminServer]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(server.app, log_config=None, access_log=False, lifespan="on")
    uvicorn_server = uvicorn.Server(config)
    thread = threading.Thread(target=uvicorn_server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        give_up_at = time.monotonic() + 20
        while not uvicorn_server.started:
            assert thread.is_alive() and time.monotonic() < give_up_at, "did not start"
            time.sleep(0.01)
        server.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield server
    finally:
        uvicorn_server.should_exit = True
        thread.join(20)
        listener.close()
        server.store.close()
        assert not thread.is_alive()
