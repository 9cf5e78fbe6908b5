"""Callers on connections that stay open: whole answers, as many a second as asked or as fast as they come."""

from __future__ import annotations

import asyncio
import time
from typing import cast

import httptools

from gateway.cli.screen import CommandFailed


class Pool:
    """`size` connections to one port of this machine, each with one request at a time."""

    def __init__(self, port: int, request: bytes, size: int) -> None:
        self._port, self._request, self._size = port, request, size
        self._free: asyncio.Queue[_Connection] = asyncio.Queue()
        self._all: list[_Connection] = []

    async def open(self) -> None:
        """Connect."""
        loop = asyncio.get_running_loop()
        for _ in range(self._size):
            _, connection = await loop.create_connection(_Connection, "127.0.0.1", self._port)
            self._all.append(connection)
            self._free.put_nowait(connection)

    def close(self) -> None:
        """Disconnect."""
        for connection in self._all:
            connection.close()

    async def saturate(self, seconds: float) -> list[float]:
        """Every connection asks again as soon as it is answered; the seconds that each answer took."""
        ends_at = time.perf_counter() + seconds
        took: list[float] = []

        async def ask_on(connection: _Connection) -> None:
            while (began_at := time.perf_counter()) < ends_at:
                await connection.ask(self._request)
                took.append(time.perf_counter() - began_at)

        await asyncio.gather(*(ask_on(connection) for connection in self._all))
        return took

    async def pace(self, per_second: float, seconds: float) -> list[float]:
        """One request every `1 / per_second`, however long answers take; seconds from when each was due."""
        took: list[float] = []
        began_at = time.perf_counter()

        async def ask(due_at: float) -> None:
            connection = await self._free.get()
            await connection.ask(self._request)
            self._free.put_nowait(connection)
            took.append(time.perf_counter() - due_at)

        async with asyncio.TaskGroup() as group:
            for number in range(int(per_second * seconds)):
                due_at = began_at + number / per_second
                late_s = due_at - time.perf_counter()
                if late_s > 0:
                    await asyncio.sleep(late_s)
                group.create_task(ask(due_at))
        return took


class _Connection(asyncio.Protocol):
    """One keep-alive connection; every answer must be a 200."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[None] | None = None
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    async def ask(self, request: bytes) -> None:
        """Send and wait for the whole answer. Raises `CommandFailed` for any but a 200."""
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._answer

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._answer is not None and not self._answer.done():
            if status == 200:
                self._answer.set_result(None)
            else:
                self._answer.set_exception(CommandFailed(f"the server answered {status}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(CommandFailed("the server closed the connection"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
