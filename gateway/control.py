"""The control socket: what a command on the same machine may ask a running server, without a key.

It lies in the server's private folder, which only its own user can enter; the store's `servers` rows say where. One
question, one answer, each a line of JSON: `{"op": "state", "arguments": {…}}` → `{"result": …}` or `{"error": "…"}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from backends.errors import BackendError, ConfigError
from gateway.errors import GatewayError
from gateway.store import Store

log = logging.getLogger("laneway.front")

SOCKET = "control.sock"
MOST_QUESTION_BYTES = 1 << 16
PATIENCE_S = 30.0
FLUSH_PATIENCE_S = 2.0

T = TypeVar("T")

Operation: TypeAlias = Callable[..., Awaitable[object]]


class NotRunning(Exception):
    """No server on this machine runs on the store, or it does not answer."""


class Control:
    """The server's side: answers questions by name."""

    def __init__(self, path: Path, operations: Mapping[str, Operation]) -> None:
        self._path, self._operations = path, operations
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen; a socket left by a process before is replaced."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path, limit=MOST_QUESTION_BYTES)
        self._path.chmod(0o600)

    async def stop(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await self._answer(await reader.readline())
            writer.write(msgspec.json.encode(answer, enc_hook=str) + b"\n")
            await writer.drain()
        except (OSError, ValueError):  # left, or asked more than a line holds
            pass
        finally:
            writer.close()

    async def _answer(self, line: bytes) -> dict[str, object]:
        try:
            question = msgspec.json.decode(line, type=Question)
            operation = self._operations[question.op]
        except (msgspec.DecodeError, KeyError):
            return {"error": "the running server does not know this question; is it of another version?"}
        try:
            return {"result": await operation(**question.arguments)}
        except (GatewayError, BackendError, ConfigError) as error:
            return {"error": str(error)}
        except Exception:
            log.exception("the question %s failed", question.op)
            return {"error": "the server had an error; its log says more"}


class Question(msgspec.Struct, frozen=True):
    """What is asked."""

    op: str
    arguments: dict[str, Any] = {}


def ask(store: Store, op: str, into: type[T], **arguments: object) -> T:
    """Ask the server that runs on `store`; its answer as an `into`.

    Raises `NotRunning`, and `ConfigError` with what the server says is wrong.
    """
    for path in _sockets(store):
        with contextlib.suppress(OSError):
            return msgspec.convert(_ask(path, op, arguments), into)
    raise NotRunning(f"no server on this machine runs on {store.options.url.rsplit('@')[-1]}")


def flush(store: Store) -> None:
    """Have the server that runs on `store`, if one does, put there what it has answered. One that hangs is not waited
    for long: what the store has is what there is to see then.
    """
    for path in _sockets(store):
        with contextlib.suppress(OSError, ConfigError):
            _ask(path, "flush", {}, FLUSH_PATIENCE_S)


def _sockets(store: Store) -> list[str]:
    """The newest server first."""
    here = [server for server in store.living_servers() if server.is_here]
    return [server.control for server in sorted(here, key=lambda server: -server.started_at)]


def _ask(path: str, op: str, arguments: Mapping[str, object], patience_s: float = PATIENCE_S) -> Any:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(patience_s)
        connection.connect(path)
        connection.sendall(msgspec.json.encode({"op": op, "arguments": arguments}) + b"\n")
        with connection.makefile("rb") as answers:
            answer = msgspec.json.decode(answers.readline() or b'{"error": "the server closed without an answer"}')
    if "error" in answer:
        raise ConfigError(answer["error"])
    return answer["result"]
