"""Probes and metrics: /health, /ready, /ping, /version, /metrics, /load, and the root that some clients knock at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
from litestar import HttpMethod, Response, route
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from backends.base import Backend
from gateway.api.exchange import PROBE
from gateway.lanes import Lanes
from gateway.metrics import CONTENT_TYPE, Metrics
from gateway.version import own_version

GET = [HttpMethod.GET, HttpMethod.HEAD]
JSON = "application/json"
GPU_DEVICES = ("nvidia[0-9]*", "kfd")  # NVIDIA's and AMD's device nodes


class Health(Struct, frozen=True, kw_only=True):
    """`/health`: the front lives. `gpu_available` means that this machine shows a GPU to this process."""

    status: str = "healthy"
    gpu_available: bool
    version: str


class BackendState(Struct, frozen=True, kw_only=True):
    """One backend, as `/ready` tells of it."""

    ready: bool
    running: int
    waiting: int
    detail: str


class Readiness(Struct, frozen=True, kw_only=True):
    """`/ready`: whether answers flow. `queue_depth` waits in the lanes, `active_requests` are being answered."""

    status: str
    queue_depth: int
    active_requests: int
    backends: dict[str, BackendState]


class Load(Struct, frozen=True, kw_only=True):
    """`/load`: requests that wait or are being answered."""

    server_load: int


class Greeting(Struct, frozen=True, kw_only=True):
    """`/`, and the probe of a client that looks for a living endpoint."""

    name: str = "laneway"
    version: str


def gpu_available(devices: Path = Path("/dev")) -> bool:
    """Whether there is a GPU's device node; asks no driver and loads no library."""
    return any(node for pattern in GPU_DEVICES for node in devices.glob(pattern))


def readiness(backends: Mapping[str, Backend], lanes: Lanes) -> Readiness:
    """The state now, from memory. Ready as soon as one backend is."""
    states = {name: backend.health() for name, backend in backends.items()}
    return Readiness(
        status="ready" if any(state.ready for state in states.values()) else "not_ready",
        queue_depth=sum(lanes.waiting().values()),
        active_requests=sum(lanes.running().values()),
        backends={
            name: BackendState(ready=state.ready, running=state.running, waiting=state.waiting, detail=state.detail)
            for name, state in states.items()
        },
    )


def open_routes(backends: Mapping[str, Backend], lanes: Lanes) -> list[HTTPRouteHandler]:
    """The handlers that never need a key."""
    alive = Health(gpu_available=gpu_available(), version=own_version())
    greeting = Greeting(version=alive.version)

    @route("/health", http_method=GET, sync_to_thread=False, opt=PROBE)
    def health() -> Response[bytes]:
        return _json(alive)

    @route("/ping", http_method=[*GET, HttpMethod.POST], status_code=200, sync_to_thread=False, opt=PROBE)
    def ping() -> Response[bytes]:
        return _json(alive)

    @route("/version", http_method=GET, sync_to_thread=False)
    def version() -> Response[bytes]:
        return _json({"version": alive.version})

    @route("/ready", http_method=GET, sync_to_thread=False, opt=PROBE)
    def ready() -> Response[bytes]:
        state = readiness(backends, lanes)
        return _json(state, 200 if state.status == "ready" else 503)

    @route(["/", "/api/hello"], http_method=GET, sync_to_thread=False)
    def hello() -> Response[bytes]:
        return _json(greeting)

    return [health, ping, version, ready, hello]


def metrics_route(metrics: Metrics) -> HTTPRouteHandler:
    """`GET /metrics`."""

    @route("/metrics", http_method=GET, sync_to_thread=False, opt=PROBE)
    def read_metrics() -> Response[bytes]:
        return Response(metrics.render(), headers={"content-type": CONTENT_TYPE}, media_type=CONTENT_TYPE)

    return read_metrics


def load_route(lanes: Lanes) -> HTTPRouteHandler:
    """`GET /load`: how many requests are here, waiting or being answered."""

    @route("/load", http_method=GET, sync_to_thread=False, opt=PROBE)
    def load() -> Response[bytes]:
        return _json(Load(server_load=sum(lanes.waiting().values()) + sum(lanes.running().values())))

    return load


def _json(value: Struct | dict[str, str], status: int = 200) -> Response[bytes]:
    return Response(msgspec.json.encode(value), status_code=status, media_type=JSON)
