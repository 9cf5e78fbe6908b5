"""What the routes that use a model share: key → body → job → answer, streamed or whole, and one record of how it ended.

These are `@asgi` handlers, so other methods than POST are their own job too.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import math
import time
from collections.abc import Callable, Collection
from contextlib import aclosing
from typing import Protocol

from litestar import asgi
from litestar.handlers import ASGIRouteHandler
from litestar.types import Message, Receive, Scope, Send
from msgspec import Struct
from msgspec.structs import replace

from backends.errors import DeadlineExceeded, InvalidRequest, Unavailable
from backends.types import GenerateRequest, Route
from gateway import idempotency, log
from gateway.api.auth import Gate
from gateway.api.body import ClientLeft, off_loop_if_long, read_body
from gateway.api.errors import JSON, Reply, method_refused, reply_to
from gateway.api.exchange import Exchange, Headers
from gateway.api.streaming import EventStream, while_client_stays
from gateway.billing import Order
from gateway.dispatch import LANE_HEADER, Ask, Dispatcher, Job
from gateway.errors import InvalidBody
from gateway.idempotency import Idempotency, Kept, Name, Recording
from gateway.openai import rate_limits
from gateway.openai.caller import Caller
from gateway.openai.sse import Folder, StreamEncoder
from gateway.openai.wire import WireOptions

logger = logging.getLogger(f"{log.ROOT}.front")

ALLOW = "OPTIONS, POST"
TIMEOUT_HEADER = "X-Request-Timeout"
SILENCE_HEADER = "x-stainless-read-timeout"  # OpenAI's SDKs tell how long they wait for the next byte
WHOLE_SILENCE_HEADER = "x-stainless-timeout"  # those for Node tell it cut to whole seconds
REPLAYED = (b"idempotent-replayed", b"true")
LONGEST_TIMEOUT_S = 7 * 24 * 3600.0
CLIENT_LEFT = 499
DEADLINE = 504
MOST_KINDS, MAX_KIND_CHARS = 16, 40  # of what a request asks for in vain, in the log
SHOWN_NAMES, SHOWN_NAME_CHARS = 5, 40  # of unknown fields, in a log line
SLOW_READER_S = 1.0  # after its deadline a client that does not read is left


class WireRequest(Protocol):
    """A decoded body, as `gateway.openai` makes it."""

    @property
    def stream(self) -> bool: ...

    @property
    def lane_wish(self) -> str | None: ...

    @property
    def left_out(self) -> tuple[str, ...]: ...

    def to_generate(self, caller: Caller) -> GenerateRequest: ...

    def encoder(self, request_id: str, created: int) -> StreamEncoder | None: ...  # None: it is never streamed

    def folder(self, request_id: str, created: int) -> Folder: ...


def as_it_is(error: InvalidRequest) -> InvalidRequest:
    """For routes whose fields have the names that backends use."""
    return error


class Dialect(Struct, frozen=True):
    """What differs between generating routes. `prompt_field` is at fault when a prompt is too long.

    `decode` is as strict as `options` say. `retell` puts what a backend says of a field into the words of this route.
    """

    route: Route
    path: str
    decode: Callable[[bytes], WireRequest]
    prompt_field: str
    options: WireOptions
    retell: Callable[[InvalidRequest], InvalidRequest] = as_it_is


class Task(Struct, frozen=True):
    """A request that was read and found in order. `name` is its Idempotency-Key's, if it has one."""

    exchange: Exchange
    wire: WireRequest
    order: Order
    name: Name | None


class Generating:
    """Answers requests of one dialect."""

    def __init__(
        self, dialect: Dialect, gate: Gate, dispatcher: Dispatcher, replays: Idempotency, max_body_bytes: int
    ) -> None:
        self._dialect = dialect
        self._gate = gate
        self._dispatcher = dispatcher
        self._idempotency = replays
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
            task = await self._read(exchange, receive)
            respond = self._respond(task, send) if task.name is None else self._respond_once(task, task.name, send)
            status = await while_client_stays(receive, respond) or CLIENT_LEFT
        except ClientLeft:
            pass
        except asyncio.CancelledError:  # the server stops and waits no longer; this is the task's last act
            status = await self._fail(stopping(), exchange, send)
        except Exception as error:
            status = await self._fail(error, exchange, send)
        finally:
            self._record(exchange, status)

    async def _read(self, exchange: Exchange, receive: Receive) -> Task:
        key = self._gate.admit(exchange)
        timeout_s, silence_s = timeout_in(exchange, TIMEOUT_HEADER), silence_in(exchange)
        body = await read_body(exchange, receive, self._max_body_bytes)
        wire = await off_loop_if_long(self._dialect.decode, body)
        ask = Ask(
            request_id=exchange.request_id,
            lane=exchange.text_header(LANE_HEADER.lower().encode()),
            lane_wish=wire.lane_wish,
            timeout_s=timeout_s,
            silence_s=silence_s,
            stream=wire.stream,
        )
        request = wire.to_generate(self._dispatcher.caller(key, ask))
        exchange.model, exchange.lane = request.model[:200], request.lane
        if wire.left_out:
            kinds = ", ".join(kind[:MAX_KIND_CHARS] for kind in wire.left_out[:MOST_KINDS])
            logger.info(
                "left out of a request, being unknown here: %s", kinds, extra=log.fields(id=exchange.request_id)
            )
        self._note_unknown(exchange, request.extra)
        named = exchange.text_header(idempotency.HEADER.lower().encode())
        name = None if named is None else Name.of(key.id, named, self._dialect.route, body)
        return Task(exchange, wire, Order(key=key, request=request, shown_id=exchange.chosen_id), name)

    def _note_unknown(self, exchange: Exchange, fields: Collection[str]) -> None:
        """Count the fields that nothing here knows; their names, a few and cut short, are only logged."""
        if not fields:
            return
        self._dispatcher.metrics.unknown_fields.inc(len(fields))
        if self._dialect.options.unknown_fields == "warn":
            names = ", ".join(repr(name[:SHOWN_NAME_CHARS]) for name in itertools.islice(fields, SHOWN_NAMES))
            told = log.fields(id=exchange.request_id, request_id=exchange.shown_id)
            logger.warning("%d unknown fields in a request: %s", len(fields), names, extra=told)

    async def _respond(self, task: Task, send: Send, recording: Recording | None = None) -> int:
        """Do the work and send the answer; the status of how it ended."""
        wants_stream = task.order.request.stream
        encoder = task.wire.encoder(task.exchange.request_id, int(time.time())) if wants_stream else None
        if encoder is None:
            return await self._whole(task, send, recording)
        return await self._stream(task, encoder, send, recording)

    async def _respond_once(self, task: Task, name: Name, send: Send) -> int:
        """As `_respond`, under an Idempotency-Key: begin the work, join it, or send what came of it before."""
        found = await self._idempotency.find(name)
        if isinstance(found, Kept):
            headers = ((b"content-type", found.content_type.encode()), REPLAYED)
            await send_reply(send, Reply(200, found.body, headers))
            return 200
        is_first = found is None

        async def work(recording: Recording) -> bool:
            recording.result = await self._respond(task, recorder(recording), recording)
            return recording.result == 200

        recording = self._idempotency.record(name, task.exchange.request_id, work) if found is None else found
        return await self._follow(recording, send, () if is_first else (REPLAYED,))

    async def _follow(self, recording: Recording, send: Send, more: tuple[tuple[bytes, bytes], ...]) -> int:
        """Send an answer that is being made in a task of its own."""
        self._idempotency.enter(recording)
        has_begun = False
        try:
            async for piece in recording.follow():
                if not has_begun:
                    has_begun = True
                    status, headers = recording.status or 200, [*recording.headers, *more]
                    await send({"type": "http.response.start", "status": status, "headers": headers})
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if not has_begun:
                raise stopping()
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._idempotency.leave(recording)
        return recording.result or recording.status or CLIENT_LEFT

    async def _stream(self, task: Task, encoder: StreamEncoder, send: Send, recording: Recording | None) -> int:
        """Answer event by event; the status of how it ended, which the client sees only if nothing was sent before."""
        exchange = task.exchange
        exchange.fail_stream = encoder.fail
        keep_alive_s, keep_alive = self._dialect.options.keep_alive_s, exchange.family.keep_alive
        events = EventStream(send, encoder.encode, encoder.finish, keep_alive_s, keep_alive)
        limit = asyncio.timeout(self._patience_s(task.order.request))
        try:
            job = self._job(task, recording, events.last, "text/event-stream; charset=utf-8")
            async with limit:
                await events.run(job.chunks())
        except Exception as error:
            if limit.expired():  # the client reads nothing, so nothing can be said
                exchange.error = DeadlineExceeded.__name__
                return DEADLINE
            return await self._fail(error, exchange, send, recording)
        finally:
            exchange.usage = events.usage
        return 200

    async def _whole(self, task: Task, send: Send, recording: Recording | None) -> int:
        """The same stream folded into one body."""
        exchange = task.exchange
        folder = task.wire.folder(exchange.request_id, int(time.time()))
        body = functools.cache(folder.body)
        try:
            job = self._job(task, recording, body, "application/json")
            async with aclosing(job.chunks()) as chunks:
                async for chunk in chunks:
                    exchange.usage = chunk.usage
                    folder.add(chunk)
            reply = Reply(200, body(), (JSON,))
        except Exception as error:
            return await self._fail(error, exchange, send, recording)
        await send_reply(send, reply)
        return 200

    def _job(self, task: Task, recording: Recording | None, last: Callable[[], bytes], content_type: str) -> Job:
        """The job of a task, and its headers on the reply. `last` is what ends the answer's body."""
        order = task.order
        if recording is not None:
            order = replace(order, answer=lambda: recording.answer(last(), content_type, int(time.time() * 1000)))
        job = self._dispatcher.job(order)
        task.exchange.more_headers = lambda: job_headers(job)
        return job

    def _patience_s(self, request: GenerateRequest) -> float | None:
        """How long a stream may take with all its sending: what its source takes is bounded already."""
        if request.deadline_at is None:
            return None
        return max(0.0, request.deadline_at - self._dispatcher.clock()) + SLOW_READER_S

    async def _fail(self, error: Exception, exchange: Exchange, send: Send, recording: Recording | None = None) -> int:
        """Tell `error`: as a reply, or as the last event of a stream whose head is out. Returns its status."""
        if isinstance(error, InvalidRequest):
            error = self._dialect.retell(error)
        reply = reply_to(error, exchange, self._dialect.prompt_field)
        head = exchange.status if recording is None else recording.status  # `stamp` notes it when a head goes out
        if head is None:
            await send_reply(send, reply)
        elif exchange.fail_stream is not None:
            await send({"type": "http.response.body", "body": exchange.fail_stream(reply.body), "more_body": False})
        return reply.status

    def _record(self, exchange: Exchange, status: int) -> None:
        exchange.status = status
        model = exchange.model if exchange.model and self._dispatcher.routing.knows(exchange.model) else "unknown"
        self._dispatcher.metrics.finish(model, self._dialect.route, status, exchange.elapsed_s)
        exchange.log()


def silence_in(exchange: Exchange) -> float | None:
    """Seconds after which a client that hears nothing gives up, never less, if its SDK says so."""
    exact_s, whole_s = (timeout_in(exchange, header) for header in (SILENCE_HEADER, WHOLE_SILENCE_HEADER))
    return whole_s + 1 if exact_s is None and whole_s is not None else exact_s


def timeout_in(exchange: Exchange, header: str) -> float | None:
    """Seconds in a header, if it is there. Raises `InvalidBody` unless it is a positive number.

    What an SDK sends of itself is no reason to refuse: a number that makes no sense there says nothing.
    """
    text = exchange.text_header(header.lower().encode())
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if 0 < seconds <= LONGEST_TIMEOUT_S:  # also refuses nan
        return seconds
    if header != TIMEOUT_HEADER:
        return None
    raise InvalidBody(
        f"Invalid {header}: expected seconds, more than 0 and at most {LONGEST_TIMEOUT_S:.0f}, but got '{text[:40]}'.",
        param=header,
        code="invalid_value",
    )


def job_headers(job: Job) -> Headers:
    """What the reply says of limits and of the lane; what is not known is left out."""
    rates = job.rates
    headers: Headers = [] if rates is None else rate_limits.headers(rates)
    headers.append((b"x-laneway-lane", job.order.request.lane.encode()))
    if job.place is not None:
        headers.append((b"x-laneway-queue-position", b"%d" % job.place.position))
        if job.place.wait_s is not None:
            headers.append((b"x-laneway-queue-wait-ms", b"%d" % round(job.place.wait_s * 1000)))
    return headers


def stopping() -> Unavailable:
    """What those are told whose answer the server's end cuts off."""
    return Unavailable("The server is stopping. Try again on another one, or later.", code="server_stopping")


def recorder(recording: Recording) -> Send:
    """A `send` that keeps what it is given for whoever follows."""

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            recording.begin(message["status"], [*message["headers"]])
        elif message["type"] == "http.response.body" and message["body"]:
            recording.add(message["body"])

    return send


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
