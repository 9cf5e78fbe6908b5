"""`create_app`: the one place where the parts of the front are built and joined."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from litestar import Litestar, Router
from litestar.config.cors import CORSConfig
from litestar.handlers import ASGIRouteHandler, HTTPRouteHandler

from backends.registry import Registry
from backends.types import BackendHealth
from gateway.api.auth import Gate
from gateway.api.chat import CHAT
from gateway.api.completions import COMPLETIONS
from gateway.api.errors import answer_exception
from gateway.api.exchange import stamp
from gateway.api.generating import Generating
from gateway.api.health import metrics_route, open_routes
from gateway.api.models import model_routes
from gateway.api.tokens import token_routes
from gateway.config import Settings
from gateway.dispatch import Dispatcher
from gateway.lanes import Lanes
from gateway.metrics import BackendGauges, LaneGauges, Metrics
from gateway.routing import Routing
from gateway.tenants import KeyRing

EXPOSED = (
    "x-request-id",
    "retry-after",
    "openai-processing-ms",
    "openai-version",
    *(f"x-ratelimit-{what}-{of}" for what in ("limit", "remaining", "reset") for of in ("requests", "tokens")),
)


def create_app(settings: Settings, run_dir: Path) -> Litestar:
    """The front. `run_dir` is the private folder in which backends find their sockets. Raises `ConfigError`."""
    return join(settings, Registry.build(settings.backends, run_dir))


def join(settings: Settings, registry: Registry) -> Litestar:
    """The front over backends that are built already. They start and stop with the app."""
    lanes = Lanes(settings.lanes)
    for name, backend in registry.backends.items():
        lanes.open(name, backend.capacity)
    metrics = _metrics(registry, lanes)
    dispatcher = Dispatcher(Routing(registry), lanes, metrics)
    handlers = _handlers(settings, registry, lanes, metrics, dispatcher)

    @asynccontextmanager
    async def lifespan(_: Litestar) -> AsyncIterator[None]:
        await registry.start()
        try:
            yield
        finally:
            await registry.stop()

    return Litestar(
        [Router(prefix, route_handlers=handlers) for prefix in dict.fromkeys(("/", settings.server.root_path or "/"))],
        lifespan=[lifespan],
        before_send=[stamp],
        exception_handlers={Exception: answer_exception},
        cors_config=_cors(settings.server.cors_origins),
        openapi_config=None,
        logging_config=None,
    )


def _handlers(
    settings: Settings, registry: Registry, lanes: Lanes, metrics: Metrics, dispatcher: Dispatcher
) -> list[Router | ASGIRouteHandler | HTTPRouteHandler]:
    limit = settings.server.max_body_bytes
    gate = Gate(KeyRing(settings.auth, settings.lanes))
    generating = [Generating(dialect, gate, dispatcher, metrics, limit).handler() for dialect in (CHAT, COMPLETIONS)]
    guarded = [*model_routes(dispatcher.routing), *token_routes(dispatcher.routing, limit), metrics_route(metrics)]
    return [
        *generating,
        *open_routes(registry.backends, lanes),
        Router("/", route_handlers=guarded, guards=[gate.guard]),
    ]


def _metrics(registry: Registry, lanes: Lanes) -> Metrics:
    metrics = Metrics()

    def health() -> Mapping[str, BackendHealth]:
        return {name: backend.health() for name, backend in registry.backends.items()}

    metrics.registry.register(LaneGauges(lanes.running, lanes.waiting))
    metrics.registry.register(BackendGauges(health, metrics.registry))
    return metrics


def _cors(origins: tuple[str, ...]) -> CORSConfig | None:
    return CORSConfig(allow_origins=list(origins), expose_headers=list(EXPOSED)) if origins else None
