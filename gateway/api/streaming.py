"""Sends an answer: the first visible event fixes the status, and a client that leaves ends the work at once.

Litestar's own streams do not close a generator that is parked behind a slow reader, and do not notice a client that
leaves while the handler still waits. Here the pump runs in the request's own task, and a watcher on `receive` cancels
it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, suppress
from typing import TypeVar

from litestar.types import Message, Receive, Send

from backends.types import Chunk, Usage
from gateway.errors import LEFT
from gateway.openai.sse import COMMENT

ResultT = TypeVar("ResultT")

EVENT_STREAM = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


async def while_client_stays(receive: Receive, work: Coroutine[None, None, ResultT]) -> ResultT | None:
    """Run `work` here, the body having been read; cancel it when the client leaves. Its result, or None if it was."""
    task = asyncio.current_task()
    assert task is not None
    has_left = False

    async def watch() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel(LEFT)

    watcher = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if not has_left or task.cancelling() > 1:  # someone else ends this task too: the server is stopping
            raise
        return None
    finally:
        watcher.cancel()
        if has_left:
            task.uncancel()


class EventStream:
    """Server-sent events made from chunks. One chunk is pulled, encoded and sent before the next is asked for."""

    def __init__(
        self,
        send: Send,
        encode: Callable[[Chunk], bytes],
        finish: Callable[[], bytes],
        keep_alive_s: float = 0.0,
        keep_alive: bytes = COMMENT,
    ) -> None:
        self._send = send
        self._encode = encode
        self._finish = finish
        self._silence = Silence(send, keep_alive_s, keep_alive)
        self._last: bytes | None = None
        self.has_begun = False
        self.usage: Usage | None = None

    async def run(self, chunks: AsyncGenerator[Chunk, None]) -> None:
        """Pull and send until the end, and close `chunks`.

        The last event goes out after the source is closed, so a slow reader of it holds no slot. An exception before
        `has_begun` leaves nothing sent; after it the caller must end the response with an error event.
        """
        try:
            async with aclosing(chunks):
                async for chunk in chunks:
                    self.usage = chunk.usage
                    try:
                        events = self._encode(chunk)
                    except Exception as error:  # ours: the source must not take it for a client that left
                        await chunks.athrow(error)
                        raise
                    if events:
                        await self._write(events, more=True)
        finally:
            self._silence.stop()
        await self._write(self.last(), more=False)

    def last(self) -> bytes:
        """The events that end the stream; made once, after the last chunk."""
        if self._last is None:
            self._last = self._finish()
        return self._last

    async def _write(self, events: bytes, *, more: bool) -> None:
        if not self.has_begun:
            self.has_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": EVENT_STREAM})
            if more:
                self._silence.start()
        await self._silence.over()
        await self._send(_body(events, more=more))


class Silence:
    """Breaks long silences of a stream with a comment, so that proxies keep the connection. One timer, re-armed.

    An interval of 0 breaks none.
    """

    def __init__(self, send: Send, interval_s: float, comment: bytes) -> None:
        self._send = send
        self._interval_s = interval_s
        self._told = comment
        self._loop = asyncio.get_running_loop()
        self._spoke_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._comment: asyncio.Task[None] | None = None

    def start(self) -> None:
        """From now on."""
        if self._interval_s == 0:
            return
        self._spoke_at = self._loop.time()
        self._timer = self._loop.call_later(self._interval_s, self._check)

    def stop(self) -> None:
        """No more comments. One that still waits behind a slow reader is dropped, and nothing waits for it."""
        if self._timer is not None:
            self._timer.cancel()
        if self._comment is not None:
            self._comment.cancel()
            self._comment = None

    async def over(self) -> None:
        """The stream is about to speak; wait for a comment that is being sent, since events must not mix."""
        self._spoke_at = self._loop.time()
        if self._comment is not None:
            await asyncio.shield(self._comment)

    def _check(self) -> None:
        left = self._spoke_at + self._interval_s - self._loop.time()
        if left <= 0 and self._comment is None:
            self._comment = self._loop.create_task(self._speak())
            left = self._interval_s
        self._timer = self._loop.call_later(max(left, 0.001), self._check)

    async def _speak(self) -> None:
        with suppress(OSError):  # some servers raise it when the client has left, which the watcher sees too
            await self._send(_body(self._told, more=True))
        self._spoke_at = self._loop.time()
        self._comment = None


def _body(data: bytes, *, more: bool) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}
