"""A real front for tests: uvicorn on a loopback port, in a thread of its own, over a scripted backend."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from openai import OpenAI

from backends.registry import Registry
from backends.types import BackendHealth
from gateway.app import join
from gateway.config import Settings
from gateway.protocol import FrontProtocol

CHAT = "/v1/chat/completions"
FAILURES = (  # how a script may fail → the status and the code that the client sees
    ("bad_request", 400, None),
    ("overloaded", 503, "overloaded"),
    ("rate_limited", 429, "rate_limit_exceeded"),
    ("unavailable", 503, "backend_unavailable"),
    ("crash", 500, None),
    ("end", 500, None),
)
MESSAGES = [{"role": "user", "content": "x"}]

Serve = Callable[..., "Front"]


class Front:
    """A running server and what a test asks of it."""

    def __init__(self, registry: Registry, port: int, server: uvicorn.Server, thread: threading.Thread) -> None:
        self.server = server
        self.thread = thread
        self.registry = registry
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def stop(self) -> None:
        """As SIGTERM does. Returns when it has ended."""
        self.server.should_exit = True
        self.thread.join(20)
        assert not self.thread.is_alive()

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20, **options)

    def openai(self, api_key: str = "any", **options: Any) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key=api_key, max_retries=0, timeout=20, **options)

    def health(self, backend: str = "test") -> BackendHealth:
        return self.registry.backends[backend].health()

    def count(self, word: str) -> float:
        """One of the scripted backend's counters: started, cancelled, running."""
        return next(metric.value for metric in self.health().metrics if metric.name == f"scripted_{word}")

    def waiting(self) -> int:
        with self.client() as client:
            return int(client.get("/ready").json()["queue_depth"])


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that another thread does; how long it takes does not matter."""
    give_up_at = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < give_up_at, f"did not happen: {what}"
        time.sleep(0.01)


def connect(front: Front, *, stream: bool, lane: str = "standard", **script: object) -> socket.socket:
    """Send a request on a raw socket and read nothing."""
    body = json.dumps({"model": "scripted", "messages": MESSAGES, "stream": stream, "script": script}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nX-Laneway-Lane: {lane}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", front.port))
    connection.sendall(head + body)
    return connection


def read_until(connection: socket.socket, word: bytes) -> bytes:
    got = b""
    while word not in got:
        part = connection.recv(1024)
        assert part, got
        got += part
    return got


def leave(connection: socket.socket) -> None:
    """Close at once, with a reset, as a killed client does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


@contextmanager
def running(settings: Settings, run_dir: Path, *, shutdown_timeout: int = 5) -> Iterator[Front]:
    registry = Registry.build(settings.backends, run_dir)
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        join(settings, registry, run_dir),
        http=FrontProtocol,
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=shutdown_timeout,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive(), "start")
        yield Front(registry, listener.getsockname()[1], server, thread)
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()
        assert not thread.is_alive()
