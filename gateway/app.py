"""`create_app`: the one place where the parts of the front are built and joined."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from litestar import Litestar, Router
from litestar.config.cors import CORSConfig
from litestar.handlers import ASGIRouteHandler, HTTPRouteHandler

from backends.log import configure
from backends.registry import Registry
from backends.types import BackendHealth
from gateway.api.admin import AdminDeps, admin_routes
from gateway.api.auth import Gate
from gateway.api.bare_paths import BarePaths
from gateway.api.batches import batch_routes
from gateway.api.chat import chat_dialect
from gateway.api.completions import completion_dialect
from gateway.api.docs import docs_routes
from gateway.api.embeddings import embeddings_dialect
from gateway.api.errors import answer_exception, fault_of
from gateway.api.exchange import stamp
from gateway.api.files import file_routes
from gateway.api.generating import Dialect, Generating
from gateway.api.health import load_route, metrics_route, open_routes
from gateway.api.messages import count_tokens_route, messages_dialect
from gateway.api.models import model_routes
from gateway.api.responses import responses_dialect, stored_response_route
from gateway.api.tokens import token_routes
from gateway.batch_line import LineRunner
from gateway.batch_output import BatchOutput
from gateway.batch_runner import BatchRunner
from gateway.batches import Batches
from gateway.books import Books
from gateway.config import Settings, tiktoken_cache_dir
from gateway.control import SOCKET, Control
from gateway.counting import Counter
from gateway.dispatch import Dispatcher
from gateway.files import Files
from gateway.idempotency import Idempotency
from gateway.lanes import Lanes
from gateway.metrics import BackendGauges, LaneGauges, Metrics
from gateway.openai.wire import WireOptions
from gateway.operations import operations
from gateway.reload import Change, Reloads, changes, flatten
from gateway.routing import Routing
from gateway.state import State
from gateway.store import Store
from gateway.tenants import KeyRing

EXPOSED = (
    "x-request-id",
    "request-id",
    "retry-after",
    "retry-after-ms",
    "x-should-retry",
    "x-laneway-lane",
    "x-laneway-queue-position",
    "x-laneway-queue-wait-ms",
    "idempotent-replayed",
    "openai-processing-ms",
    "openai-version",
    *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
)


def create_app(settings: Settings, run_dir: Path, reloads: Reloads | None = None) -> Litestar:
    """The front. `run_dir` is the private folder for the sockets of backends and its own. Raises `ConfigError`."""
    return join(settings, Registry.build(settings.backends, run_dir), run_dir, reloads)


def join(settings: Settings, registry: Registry, run_dir: Path, reloads: Reloads | None = None) -> Litestar:
    """The front over backends that are built already. They start and stop with the app, and so do its books."""
    return served(Front(settings, registry, run_dir, reloads or Reloads()))


def served(front: Front) -> Litestar:
    """The app of a front whose parts are joined."""
    server = front.settings.server

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        async with front.run():
            yield

    app = Litestar(
        [Router(prefix, route_handlers=front.handlers()) for prefix in dict.fromkeys(("/", server.root_path or "/"))],
        lifespan=[lifespan],
        before_send=[stamp],
        exception_handlers={Exception: answer_exception},
        cors_config=_cors(server.cors_origins),
        openapi_config=None,
        logging_config=None,
    )
    if server.bare_paths:
        app.asgi_handler = BarePaths(app.asgi_handler, server.root_path, (route.path for route in app.routes))
    return app


class Front:
    """All parts of one front, joined."""

    def __init__(self, settings: Settings, registry: Registry, run_dir: Path, reloads: Reloads) -> None:
        self.settings = settings
        self.registry = registry
        self.reloads = reloads
        self.lanes = Lanes(settings.lanes)
        for name, backend in registry.backends.items():
            self.lanes.open(name, backend.capacity)
        self.routing = Routing(registry)
        self.metrics = _metrics(registry, self.lanes)
        counter = Counter(tiktoken_cache_dir())
        self.books = Books(Store.open(settings.store), settings.limits, counter, run_dir)
        self.keys = KeyRing(settings.auth, settings.lanes, self.books.directory)
        self.replays = Idempotency(self.books)
        self.files = Files(self.books.store, settings.files)
        self.books.do_often(self.files.sweep)
        self.dispatcher = Dispatcher(self.routing, self.lanes, self.books.billing, self.metrics)
        self.batches = Batches(self.books.store, self.files)
        self.runner = self._batch_runner()
        books = self.books
        self.state = State(
            self.lanes,
            registry.backends,
            books.ledger,
            books.limits,
            books.directory,
            books.writer,
            self.metrics,
        )
        self.control = Control(
            run_dir / SOCKET,
            operations(books, self.keys, self.state, reloads, lambda: self.settings, self.routing.knows),
        )

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Everything that lives while requests are served."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.books.open())
            await asyncio.to_thread(self.files.tidy)
            stack.push_async_callback(self.registry.stop)
            await self.registry.start()
            stack.push_async_callback(self.replays.stop)
            await self.runner.start()
            stack.push_async_callback(self.runner.stop)
            await self.control.start()
            stack.push_async_callback(self.control.stop)
            self.reloads.start(self._take_over)
            lag = asyncio.create_task(self.metrics.loop_lag.run())
            stack.callback(lag.cancel)
            yield

    def handlers(self) -> list[Router | ASGIRouteHandler | HTTPRouteHandler]:
        """Every route."""
        limit = self.settings.server.max_body_bytes
        gate = Gate(self.keys)
        generating = [
            Generating(dialect, gate, self.dispatcher, self.replays, limit).handler()
            for dialect in _dialects(self.settings.wire)
        ]
        guarded = [
            *model_routes(self.routing),
            *token_routes(self.routing, limit),
            count_tokens_route(self.routing, limit),
            stored_response_route(),
            metrics_route(self.metrics),
            load_route(self.lanes),
            *file_routes(self.files),
            *batch_routes(self.batches, self.runner),
        ]
        return [
            *generating,
            *open_routes(self.registry.backends, self.lanes),
            *(docs_routes() if self.settings.server.docs else ()),
            Router("/", route_handlers=guarded, guards=[gate.guard()]),
            *admin_routes(gate, self._admin_deps()),
        ]

    def _batch_runner(self) -> BatchRunner:
        settings, books = self.settings, self.books
        dialects = {dialect.path: dialect for dialect in _dialects(settings.wire)}
        return BatchRunner(
            settings.batches,
            self.batches,
            self.files,
            LineRunner(self.dispatcher, self.keys, dialects, fault_of),
            BatchOutput(books.store, self.batches, self.files),
            books.caught_up,
            self.metrics,
            settings.server.max_body_bytes,
        )

    def _admin_deps(self) -> AdminDeps:
        books = self.books

        async def reload() -> dict[str, Any]:
            told: dict[str, Any] = msgspec.to_builtins(await self.reloads.request())
            return told

        return AdminDeps(
            store=books.store,
            directory=books.directory,
            limits=books.limits,
            ledger=books.ledger,
            writer=books.writer,
            lanes=self.lanes,
            routing=self.routing,
            settings=lambda: self.settings,
            reload=reload,
        )

    def _take_over(self, settings: Settings) -> list[Change]:
        """What can change while serving does, and all that differs is told."""
        pepper = self.books.store.pepper()
        differences = changes(flatten(self.settings, pepper), flatten(settings, pepper))
        self.keys.rebuild(settings.auth)
        self.books.follow(settings.limits)
        self.lanes.change(settings.lanes)
        configure(settings.server.log_level)
        self.settings = settings
        return differences


def _dialects(options: WireOptions) -> list[Dialect]:
    """Of every route that uses a model."""
    makers = (chat_dialect, completion_dialect, responses_dialect, messages_dialect, embeddings_dialect)
    return [make(options) for make in makers]


def _metrics(registry: Registry, lanes: Lanes) -> Metrics:
    metrics = Metrics()

    def health() -> Mapping[str, BackendHealth]:
        return {name: backend.health() for name, backend in registry.backends.items()}

    metrics.registry.register(LaneGauges(lanes.running, lanes.waiting))
    metrics.registry.register(BackendGauges(health, metrics.registry))
    return metrics


def _cors(origins: tuple[str, ...]) -> CORSConfig | None:
    return CORSConfig(allow_origins=list(origins), expose_headers=list(EXPOSED)) if origins else None
