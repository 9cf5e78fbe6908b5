"""One HTTP exchange: its headers, its id, and what the access line says of it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TypeAlias

from litestar.types import Message, Scope

from backends.types import Usage
from gateway import log
from gateway.api.families import family_of
from gateway.request_id import new_id
from gateway.tenants import VirtualKey

Headers: TypeAlias = list[tuple[bytes, bytes]]

STATE = "laneway_exchange"
MAX_ID_CHARS = 128
MAX_PATH_CHARS = 500
PROBE = {"laneway_probe": True}  # `opt` of handlers that machines call all the time
OPENAI_VERSION = b"2020-10-01"


class Exchange:
    """Belongs to one request of one client. `request_id` is unique; `shown_id` may be the client's own.

    Of a header that came more than once, `headers` has the last; `repeated` has its name.
    """

    def __init__(self, scope: Scope) -> None:
        self.method = str(scope.get("method", ""))
        self.path = str(scope["path"])
        self.family = family_of(self.path)
        headers = list(scope["headers"])
        self.headers = dict(headers)
        self.repeated = _repeated(headers) if len(self.headers) != len(headers) else frozenset()
        self.request_id = new_id(time.time())
        self.started_at = time.monotonic()
        self.status: int | None = None
        self.is_generating = False
        self.fail_stream: Callable[[bytes], bytes] | None = None  # a stream's last events, from an error envelope
        self.key: VirtualKey | None = None
        self.more_headers: Callable[[], Headers] | None = None  # of the reply, asked for when its head goes out
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
    def chosen_id(self) -> str | None:
        """The id that the client chose for its request, if it did and it is sane."""
        given = self.headers.get(b"x-request-id", b"").strip()
        is_sane = 0 < len(given) <= MAX_ID_CHARS and all(0x20 <= byte < 0x7F for byte in given)
        return given.decode("ascii") if is_sane else None

    @property
    def shown_id(self) -> str:
        """`X-Request-Id` of the reply: the client's own, else ours."""
        return self.chosen_id or f"req_{self.request_id}"

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
                key=None if self.key is None else self.key.id,
                tenant=None if self.key is None else self.key.tenant,
                model=self.model,
                lane=self.lane,
                error=self.error,
                usage=self.usage,
            ),
        )


def _repeated(headers: Iterable[tuple[bytes, bytes]]) -> frozenset[bytes]:
    return frozenset(name for name, times in Counter(name for name, _ in headers).items() if times > 1)


async def stamp(message: Message, scope: Scope) -> None:
    """Litestar's `before_send` hook: the headers that every reply has, and the access line of the quick ones."""
    if message["type"] != "http.response.start":
        return
    exchange = Exchange.of(scope)
    exchange.status = message["status"]
    message["headers"] = [
        *message.get("headers", ()),
        *((name, exchange.shown_id.encode()) for name in exchange.family.id_headers),
        (b"openai-processing-ms", b"%d" % (exchange.elapsed_s * 1000)),
        (b"openai-version", OPENAI_VERSION),
        *(exchange.more_headers() if exchange.more_headers is not None else ()),
    ]
    if not exchange.is_generating:
        exchange.log(_level(exchange, scope))


def _level(exchange: Exchange, scope: Scope) -> int:
    """Probes come every few seconds and say nothing new, unless they are refused."""
    handler = scope.get("route_handler")
    is_probe = handler is not None and PROBE.items() <= handler.opt.items()
    return logging.DEBUG if is_probe and exchange.error is None else logging.INFO
