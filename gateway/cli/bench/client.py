"""A lean streaming client: one connection a request, httptools for HTTP, a typed decoder for the events.

It shares the machine with the server it measures, so it does per chunk only what the numbers need.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from typing import TypeAlias, cast
from urllib.parse import urlsplit

import httptools
import msgspec
from msgspec import Struct, field

from gateway.cli.screen import CommandFailed

Message: TypeAlias = Mapping[str, str]
ERROR_CHARS = 300
MAX_BODY_BYTES = 64 * 1024 * 1024


class Reply(Struct, kw_only=True):
    """One streamed request. Instants are `perf_counter` seconds; `stamps` has one for each event with text."""

    started_at: float
    tokens_asked: int
    stamps: list[float] = field(default_factory=list)
    ended_at: float = 0.0
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None

    @property
    def is_good(self) -> bool:
        """Whether it came through."""
        return self.error is None

    @property
    def output_tokens(self) -> int:
        """As the server counted them, else the events."""
        return self.completion_tokens if self.completion_tokens is not None else len(self.stamps)

    @property
    def ttft(self) -> float:
        """Seconds from sending to the first text; of good replies only."""
        return self.stamps[0] - self.started_at

    @property
    def e2e(self) -> float:
        """Seconds from sending to the end."""
        return self.ended_at - self.started_at

    @property
    def gaps(self) -> list[float]:
        """Seconds between events with text."""
        return [later - earlier for earlier, later in zip(self.stamps, self.stamps[1:], strict=False)]

    @property
    def tpot(self) -> float | None:
        """Mean seconds an output token after the first."""
        later_tokens = self.output_tokens - 1
        return (self.stamps[-1] - self.stamps[0]) / later_tokens if later_tokens > 0 else None


class _Delta(Struct):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(Struct):
    delta: _Delta | None = None


class _PromptDetails(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Event(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: msgspec.Raw = msgspec.Raw()  # a union with None would take null alone


class _ModelId(Struct):
    id: str


class _ModelList(Struct):
    data: list[_ModelId]


class _Count(Struct):
    count: int


class Client:
    """Talks to one server. `base_url` may end in `/v1` or not; `timeout_s` bounds every request."""

    def __init__(self, base_url: str, api_key: str, timeout_s: float, send_extras: bool) -> None:
        url = urlsplit(base_url if "://" in base_url else f"http://{base_url}")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise CommandFailed(f"{base_url} is no http address; give one like http://127.0.0.1:8000")
        self.model = ""
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._host, self._port = url.hostname, url.port or (443 if self._tls else 80)
        self._root = url.path.rstrip("/").removesuffix("/v1")
        key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._headers = f"Host: {url.netloc.rpartition('@')[2]}\r\n{key}Connection: close\r\n"
        self._timeout_s = timeout_s
        self._send_extras = send_extras

    async def pick_model(self, model: str) -> None:
        """Use `model`, or the first that the server lists. Raises `CommandFailed` when there is no server or model."""
        if model:
            self.model = model
            return
        try:
            status, body = await self._fetch("GET", "/v1/models")
            listed = msgspec.json.decode(body, type=_ModelList).data if status == 200 else []
        except (OSError, TimeoutError, msgspec.DecodeError, httptools.HttpParserError) as error:
            raise CommandFailed(f"no OpenAI-compatible server answers at {self._host}:{self._port}: {error}") from None
        if not listed:
            raise CommandFailed(f"/v1/models answered {status} and named no model; give one with --model, or --api-key")
        self.model = listed[0].id

    async def count_tokens(self, text: str) -> int | None:
        """Tokens of `text` by the server's `/tokenize`; None when it has none."""
        body = msgspec.json.encode({"model": self.model, "prompt": text, "add_special_tokens": False})
        try:
            status, answer = await self._fetch("POST", "/tokenize", body)
            return msgspec.json.decode(answer, type=_Count).count if status == 200 else None
        except (OSError, TimeoutError, msgspec.DecodeError, httptools.HttpParserError):
            return None

    async def chat(
        self, messages: list[Message], max_tokens: int, on_text: Callable[[Reply], None] | None = None
    ) -> Reply:
        """Stream one chat. Never raises for what the server does: the reply holds the error."""
        payload = self._payload(messages, max_tokens)
        reply = Reply(started_at=time.perf_counter(), tokens_asked=max_tokens)
        events = _Events(reply, on_text)
        try:
            status, rest = await self._fetch("POST", "/v1/chat/completions", payload, events.feed)
            if status != 200:
                reply.error = f"HTTP {status}: {rest[:ERROR_CHARS].decode(errors='replace')}"
        except TimeoutError:
            reply.error = f"no end within {self._timeout_s:g} s"
        except (OSError, msgspec.DecodeError, httptools.HttpParserError) as error:
            reply.error = f"{type(error).__name__}: {error}"[:ERROR_CHARS]
        reply.ended_at = time.perf_counter()
        if reply.error is None and not (reply.stamps and events.is_done):
            reply.error = "the stream ended early" if reply.stamps else "no text was streamed"
        return reply

    def _payload(self, messages: list[Message], max_tokens: int) -> bytes:
        body: dict[str, object] = {
            "model": self.model,
            "messages": messages,
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self._send_extras:
            body |= {"ignore_eos": True, "min_tokens": max_tokens}
        return msgspec.json.encode(body)

    async def _fetch(
        self, method: str, path: str, body: bytes = b"", on_body: Callable[[bytes], None] | None = None
    ) -> tuple[int, bytes]:
        """One request on its own connection: the status and the body; `on_body` takes the body of a 200 instead."""
        head = f"{method} {self._root}{path} HTTP/1.1\r\n{self._headers}"
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        loop = asyncio.get_running_loop()
        exchange = _Exchange(head.encode() + b"\r\n" + body, loop.create_future(), on_body)
        async with asyncio.timeout(self._timeout_s):
            transport, _ = await loop.create_connection(lambda: exchange, self._host, self._port, ssl=self._tls)
            try:
                return await exchange.answer
            finally:
                transport.abort()


class _Exchange(asyncio.Protocol):
    """One HTTP request and its response; `answer` resolves to the status and the body."""

    def __init__(
        self, request: bytes, answer: asyncio.Future[tuple[int, bytes]], on_body: Callable[[bytes], None] | None
    ) -> None:
        self.answer = answer
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self._take = on_body
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send at once."""
        cast(asyncio.WriteTransport, transport).write(self._request)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        """Parse; the callbacks below follow from it."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, msgspec.DecodeError) as error:
            # httptools wraps what a callback raises.
            self._fail(error.__context__ if isinstance(error.__context__, msgspec.DecodeError) else error)

    def on_headers_complete(self) -> None:
        """The body of an error is wanted as a whole."""
        if self._parser.get_status_code() != 200:
            self._take = None

    def on_body(self, body: bytes) -> None:
        """Hand the piece on, or keep it."""
        if self._take is not None:
            self._take(body)
        elif len(self._body) < MAX_BODY_BYTES:
            self._body += body

    def on_message_complete(self) -> None:
        """The response is whole."""
        if not self.answer.done():
            self.answer.set_result((self._parser.get_status_code(), bytes(self._body)))

    def connection_lost(self, exc: Exception | None) -> None:
        """The server went away; nothing to say when the answer was complete."""
        self._fail(exc or ConnectionError("the connection was closed before the answer was complete"))

    def _fail(self, error: BaseException) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)


class _Events:
    """Books the events of a stream into a reply."""

    def __init__(self, reply: Reply, on_text: Callable[[Reply], None] | None) -> None:
        self.is_done = False
        self._reply = reply
        self._on_text = on_text
        self._rest = b""
        self._decode = _event_decoder.decode

    def feed(self, data: bytes) -> None:
        """Take a piece of the body: any number of lines, the last perhaps cut."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                self._book(line[5:].strip())

    def _book(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.is_done = True
            return
        event = self._decode(data)
        if (error := bytes(event.error)) not in (b"", b"null"):
            self._reply.error = error[:ERROR_CHARS].decode(errors="replace")
        if event.usage is not None:
            self._book_usage(event.usage)
        for choice in event.choices or ():
            delta = choice.delta
            if delta is not None and (delta.content or delta.reasoning_content or delta.reasoning):
                self._reply.stamps.append(time.perf_counter())
                if self._on_text is not None:
                    self._on_text(self._reply)

    def _book_usage(self, usage: _Usage) -> None:
        self._reply.prompt_tokens = usage.prompt_tokens
        self._reply.completion_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self._reply.cached_tokens = usage.prompt_tokens_details.cached_tokens


_event_decoder = msgspec.json.Decoder(_Event)
