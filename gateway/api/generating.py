"""What the generating routes share: key → body → request → answer, streamed or whole, and one record of how it ended.

These are `@asgi` handlers, so other methods than POST are their own job too.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol

from litestar import asgi
from litestar.handlers import ASGIRouteHandler
from litestar.types import Receive, Scope, Send
from msgspec import Struct

from backends.errors import Unavailable
from backends.types import GenerateRequest, Route
from gateway.api.auth import Gate
from gateway.api.body import ClientLeft, off_loop_if_long, read_body
from gateway.api.errors import JSON, Reply, method_refused, reply_to
from gateway.api.exchange import Exchange
from gateway.api.streaming import EventStream, while_client_stays
from gateway.dispatch import LANE_HEADER, Ask, Dispatcher
from gateway.errors import InvalidBody
from gateway.metrics import Metrics
from gateway.openai.caller import Caller
from gateway.openai.sse import Folder, StreamEncoder, error_event

ALLOW = "OPTIONS, POST"
TIMEOUT_HEADER = "X-Request-Timeout"
LONGEST_TIMEOUT_S = 7 * 24 * 3600.0
CLIENT_LEFT = 499
STOPPING = Unavailable("The server is stopping. Try again on another one, or later.", code="server_stopping")


class WireRequest(Protocol):
    """A decoded body, as `gateway.openai` makes it."""

    @property
    def lane_wish(self) -> str | None: ...

    def to_generate(self, caller: Caller) -> GenerateRequest: ...

    def encoder(self, request_id: str, created: int) -> StreamEncoder: ...

    def folder(self, request_id: str, created: int) -> Folder: ...


class Dialect(Struct, frozen=True):
    """What differs between generating routes. `prompt_field` is at fault when a prompt is too long."""

    route: Route
    path: str
    decode: Callable[[bytes], WireRequest]
    prompt_field: str


class Generating:
    """Answers requests of one dialect."""

    def __init__(
        self, dialect: Dialect, gate: Gate, dispatcher: Dispatcher, metrics: Metrics, max_body_bytes: int
    ) -> None:
        self._dialect = dialect
        self._gate = gate
        self._dispatcher = dispatcher
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes

    def handler(self) -> ASGIRouteHandler:
        """The Litestar route."""

        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            await self.serve(scope, receive, send)

        return asgi(self._dialect.path, copy_scope=False, name=self._dialect.route)(handle)

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        exchange = Exchange.of(scope)
        if exchange.method != "POST":
            await answer_other_method(exchange, send, ALLOW)
            return
        exchange.is_generating = True
        status = CLIENT_LEFT
        try:
            wire, request = await self._read(exchange, receive)
            respond = self._stream if request.stream else self._whole
            status = await while_client_stays(receive, respond(wire, request, exchange, send)) or CLIENT_LEFT
        except ClientLeft:
            pass
        except asyncio.CancelledError:  # the server stops and waits no longer; this is the task's last act
            status = await self._fail(STOPPING, exchange, send)
        except Exception as error:
            status = await self._fail(error, exchange, send)
        finally:
            self._record(exchange, status)

    async def _read(self, exchange: Exchange, receive: Receive) -> tuple[WireRequest, GenerateRequest]:
        key = self._gate.admit(exchange)
        timeout_s = timeout_in(exchange)
        body = await read_body(exchange, receive, self._max_body_bytes)
        wire = await off_loop_if_long(self._dialect.decode, body)
        ask = Ask(
            request_id=exchange.request_id,
            lane=exchange.text_header(LANE_HEADER.lower().encode()),
            lane_wish=wire.lane_wish,
            timeout_s=timeout_s,
        )
        request = wire.to_generate(self._dispatcher.caller(key, ask))
        exchange.model, exchange.lane = request.model[:200], request.lane
        return wire, request

    async def _stream(self, wire: WireRequest, request: GenerateRequest, exchange: Exchange, send: Send) -> int:
        """Answer event by event; the status of how it ended, which the client sees only if nothing was sent before."""
        exchange.is_stream = True
        encoder = wire.encoder(exchange.request_id, int(time.time()))
        events = EventStream(send, encoder.encode, encoder.finish)
        try:
            await events.run(self._dispatcher.stream(request))
        except Exception as error:
            return await self._fail(error, exchange, send)
        finally:
            exchange.usage = events.usage
        return 200

    async def _whole(self, wire: WireRequest, request: GenerateRequest, exchange: Exchange, send: Send) -> int:
        """The same stream folded into one body."""
        folder = wire.folder(exchange.request_id, int(time.time()))
        try:
            async with aclosing(self._dispatcher.stream(request)) as chunks:
                async for chunk in chunks:
                    exchange.usage = chunk.usage
                    folder.add(chunk)
            body = folder.body()
        except Exception as error:
            return await self._fail(error, exchange, send)
        await send_reply(send, Reply(200, body, (JSON,)))
        return 200

    async def _fail(self, error: Exception, exchange: Exchange, send: Send) -> int:
        """Tell `error`: as a reply, or as the last event of a stream whose head is out. Returns its status."""
        reply = reply_to(error, exchange, self._dialect.prompt_field)
        if exchange.status is None:  # `stamp` notes it when a head goes out
            await send_reply(send, reply)
        elif exchange.is_stream:
            await send({"type": "http.response.body", "body": error_event(reply.body), "more_body": False})
        return reply.status

    def _record(self, exchange: Exchange, status: int) -> None:
        exchange.status = status
        model = exchange.model if exchange.model and self._dispatcher.routing.knows(exchange.model) else "unknown"
        self._metrics.finish(model, self._dialect.route, status, exchange.elapsed_s)
        exchange.log()


def timeout_in(exchange: Exchange) -> float | None:
    """Seconds in `X-Request-Timeout`, if it is there. Raises `InvalidBody` unless it is a positive number."""
    text = exchange.text_header(TIMEOUT_HEADER.lower().encode())
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= LONGEST_TIMEOUT_S:  # also refuses nan
        raise InvalidBody(
            f"Invalid {TIMEOUT_HEADER}: expected seconds, more than 0 and at most {LONGEST_TIMEOUT_S:.0f}, "
            f"but got '{text[:40]}'.",
            param=TIMEOUT_HEADER,
            code="invalid_value",
        )
    return seconds


async def send_reply(send: Send, reply: Reply) -> None:
    """A whole response with a body."""
    headers = [*reply.headers, (b"content-length", b"%d" % len(reply.body))]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})


async def answer_other_method(exchange: Exchange, send: Send, allow: str) -> None:
    """OPTIONS without an origin gets what is allowed; everything else is refused."""
    if exchange.method == "OPTIONS":
        await send({"type": "http.response.start", "status": 204, "headers": [(b"allow", allow.encode())]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    else:
        await send_reply(send, method_refused(exchange, allow))
