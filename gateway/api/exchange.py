"""One HTTP exchange: its headers, its id, and what the access line says of it."""

from __future__ import annotations

import logging
import time
import uuid
from functools import cached_property

from litestar.types import Message, Scope

from backends.types import Usage
from gateway import log

STATE = "laneway_exchange"
MAX_ID_CHARS = 128
MAX_PATH_CHARS = 500
PROBE = {"laneway_probe": True}  # `opt` of handlers that machines call all the time
OPENAI_VERSION = b"2020-10-01"


class Exchange:
    """Belongs to one request of one client. `request_id` is unique; `shown_id` may be the client's own."""

    def __init__(self, scope: Scope) -> None:
        self.method = str(scope.get("method", ""))
        self.path = str(scope["path"])
        self.headers = dict(scope["headers"])
        self.request_id = uuid.uuid4().hex
        self.started_at = time.monotonic()
        self.status: int | None = None
        self.is_generating = self.is_stream = False
        self.key_id: str | None = None
        self.model: str | None = None
        self.lane: str | None = None
        self.error: str | None = None
        self.usage: Usage | None = None

    @classmethod
    def of(cls, scope: Scope) -> Exchange:
        """The exchange of `scope`, made at the first call."""
        state: dict[str, object] = scope["state"]
        exchange = state.get(STATE)
        if not isinstance(exchange, cls):
            exchange = state[STATE] = cls(scope)
        return exchange

    @cached_property
    def shown_id(self) -> str:
        """`X-Request-Id` of the reply: the client's if it is sane, else ours."""
        given = self.headers.get(b"x-request-id", b"").strip()
        if 0 < len(given) <= MAX_ID_CHARS and all(0x20 <= byte < 0x7F for byte in given):
            return given.decode("ascii")
        return f"req_{self.request_id}"

    @property
    def elapsed_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self.started_at

    def text_header(self, name: bytes) -> str | None:
        """A request header as text, trimmed; None when it is absent or empty."""
        value = self.headers.get(name, b"").strip()
        return value.decode("latin-1") if value else None

    def log(self, level: int = logging.INFO) -> None:
        """Write the access line."""
        if not log.access.isEnabledFor(level):
            return
        path = self.path[:MAX_PATH_CHARS]
        log.access.log(
            level,
            "%s %s %s",
            self.method,
            path,
            self.status,
            extra=log.fields(
                request_id=self.shown_id,
                id=self.request_id if self.is_generating else None,
                method=self.method,
                path=path,
                status=self.status,
                seconds=round(self.elapsed_s, 6),
                key=self.key_id,
                model=self.model,
                lane=self.lane,
                error=self.error,
                usage=self.usage,
            ),
        )


async def stamp(message: Message, scope: Scope) -> None:
    """Litestar's `before_send` hook: the headers that every reply has, and the access line of the quick ones."""
    if message["type"] != "http.response.start":
        return
    exchange = Exchange.of(scope)
    exchange.status = message["status"]
    message["headers"] = [
        *message.get("headers", ()),
        (b"x-request-id", exchange.shown_id.encode()),
        (b"openai-processing-ms", b"%d" % (exchange.elapsed_s * 1000)),
        (b"openai-version", OPENAI_VERSION),
    ]
    if not exchange.is_generating:
        exchange.log(_level(exchange, scope))


def _level(exchange: Exchange, scope: Scope) -> int:
    """Probes come every few seconds and say nothing new, unless they are refused."""
    handler = scope.get("route_handler")
    is_probe = handler is not None and PROBE.items() <= handler.opt.items()
    return logging.DEBUG if is_probe and exchange.error is None else logging.INFO
