"""The front's side of an engine: streams of token ids by request, over the engine's socket. No text, no torch.

Sequence ids are counters made here, never anything a caller chose. A stream is registered and sent in one step that
cannot be cancelled halfway, and `close` undoes it without waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, cast

import msgspec
from msgspec import Struct

from backends.errors import BackendError, EngineDied, Overloaded, Unavailable
from backends.hf.heartbeat import HeartbeatReader
from backends.hf.messages import (
    PROTOCOL_VERSION,
    Abort,
    FrameReader,
    FrameTooLarge,
    Hello,
    Output,
    Outputs,
    Refused,
    Stats,
    Submit,
    ToEngine,
    ToFront,
    Welcome,
    encode_frame,
    to_front_decoder,
)

log = logging.getLogger("laneway.hf.client")

FIRST_RETRY_S = 0.05
LONGEST_RETRY_S = 1.0
REFUSED_RETRY_S = 5.0
HANDSHAKE_S = 10.0
MAX_UNSENT_BYTES = 64 * 1024 * 1024  # an engine that does not read what it is sent takes no more
STALE_S = 5.0
STALE_STEPS = 10  # times the longest recent step


class ClientStatus(Struct, frozen=True):
    """Whether sequences can be submitted now, and if not why, in words for operators."""

    ready: bool
    detail: str = ""


class Client(Protocol):
    """What the backend needs of an engine, wherever that runs."""

    @property
    def welcome(self) -> Welcome | None:
        """What the engine has loaded; None while there is no engine."""
        ...

    @property
    def stats(self) -> Stats:
        """The engine's latest figures."""
        ...

    def status(self) -> ClientStatus:
        """State now, from memory."""
        ...

    async def start(self) -> None:
        """Begin connecting; does not wait for it."""
        ...

    async def stop(self) -> None:
        """Disconnect. Open streams fail with `Unavailable`."""
        ...

    def submit(self, submits: Sequence[Submit]) -> EngineStream:
        """Send sequences that belong together; their ids are set here. Raises `Unavailable` or `Overloaded`."""
        ...


class EngineStream:
    """What the engine says about the sequences of one request, in order. Bounded by their `max_tokens`."""

    def __init__(self, table: StreamTable, ids: Sequence[int]) -> None:
        self.ids = tuple(ids)
        self.live = set(ids)
        self._table = table
        self._events: asyncio.Queue[Output | BackendError] = asyncio.Queue()

    async def next(self) -> Output:
        """The next output of any of the sequences. Raises `EngineDied` or `Unavailable` when the engine is gone."""
        event = await self._events.get()
        if isinstance(event, BackendError):
            raise event
        return event

    def put(self, event: Output | BackendError) -> None:
        """For the table: something happened."""
        self._events.put_nowait(event)

    def abort(self, sequence_id: int) -> None:
        """Stop one sequence; outputs that were under way are still delivered. Does not wait."""
        self._table.abort(self, sequence_id)

    def close(self) -> None:
        """Stop whatever still runs. Does not wait; may be called again."""
        for sequence_id in tuple(self.live):
            self._table.abort(self, sequence_id)


class StreamTable:
    """Open streams by sequence id. `send` takes an abort towards the engine, or drops it when there is none."""

    def __init__(self, send: Callable[[Abort], None]) -> None:
        self._send = send
        self._ids = itertools.count(1)
        self._streams: dict[int, EngineStream] = {}

    def __len__(self) -> int:
        """Sequences that live."""
        return len(self._streams)

    def open(self, submits: Sequence[Submit]) -> EngineStream:
        """Number the sequences and register their stream."""
        for submit in submits:
            submit.id = next(self._ids)
        stream = EngineStream(self, [submit.id for submit in submits])
        self._streams.update(dict.fromkeys(stream.ids, stream))
        return stream

    def abort(self, stream: EngineStream, sequence_id: int) -> None:
        """Unregister and tell the engine, unless the sequence is over already."""
        if sequence_id in stream.live:
            self._forget(stream, sequence_id)
            self._send(Abort(sequence_id))

    def deliver(self, outputs: Iterable[Output]) -> None:
        """Hand outputs to their streams; those of aborted sequences are dropped."""
        for output in outputs:
            stream = self._streams.get(output.id)
            if stream is None:
                continue
            if output.finish_reason is not None or output.error is not None:
                self._forget(stream, output.id)
            stream.put(output)

    def fail(self, error: Callable[[], BackendError]) -> None:
        """The engine is gone: every open stream ends with an error of its own."""
        streams = {id(stream): stream for stream in self._streams.values()}
        self._streams.clear()
        for stream in streams.values():
            stream.live.clear()
            stream.put(error())

    def _forget(self, stream: EngineStream, sequence_id: int) -> None:
        stream.live.discard(sequence_id)
        self._streams.pop(sequence_id, None)


class EngineClient:
    """A connection to an engine's process that comes back by itself.

    Ready means: connected, the same protocol version, and a heartbeat younger than max(`stale_s`, 10 times the longest
    recent step).
    """

    def __init__(self, socket: Path, heartbeat: Path, stale_s: float = STALE_S) -> None:
        self._socket = socket
        self._heartbeat = heartbeat
        self._stale_s = stale_s
        self._table = StreamTable(self._send)
        self._connection: Connection | None = None
        self._reader: HeartbeatReader | None = None
        self._task: asyncio.Task[None] | None = None
        self._detail = "waiting for the engine"
        self.welcome: Welcome | None = None
        self.stats = Stats()

    @property
    def num_sequences(self) -> int:
        """Sequences that live, over all streams."""
        return len(self._table)

    async def start(self) -> None:
        """See `Client`."""
        self._task = asyncio.create_task(self._keep_connected())

    async def stop(self) -> None:
        """See `Client`."""
        self._table.fail(lambda: Unavailable("The backend is shutting down."))
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        self._detail = "stopped"

    def status(self) -> ClientStatus:
        """See `Client`."""
        if self.welcome is None or self._reader is None:
            return ClientStatus(False, self._detail)
        age_s = self._reader.age_s()
        if age_s > max(self._stale_s, STALE_STEPS * self.stats.longest_step_s):
            return ClientStatus(False, f"the engine has not moved for {age_s:.0f} s")
        return ClientStatus(True)

    def submit(self, submits: Sequence[Submit]) -> EngineStream:
        """See `Client`. Registering and sending are one step: nothing in here awaits."""
        status = self.status()
        if not status.ready or self._connection is None:
            raise Unavailable(f"The model is not ready: {status.detail}.", retry_after_s=1.0)
        if self._connection.num_unsent > MAX_UNSENT_BYTES:
            raise Overloaded("The engine takes no more requests at the moment.", retry_after_s=1.0)
        stream = self._table.open(submits)
        for submit in submits:
            self._connection.send(submit)
        return stream

    def _send(self, message: Abort) -> None:
        if self._connection is not None:
            self._connection.send(message)

    async def _keep_connected(self) -> None:
        delay_s = FIRST_RETRY_S
        while True:
            try:
                await self._session()
                delay_s = FIRST_RETRY_S
            except VersionRefused as error:
                self._detail = str(error)
                log.error("%s", error)
                delay_s = REFUSED_RETRY_S
            except (OSError, TimeoutError):  # not there yet, or not listening any more
                delay_s = min(2 * delay_s, LONGEST_RETRY_S)
            await asyncio.sleep(delay_s)

    async def _session(self) -> None:
        """One connection from its first byte to its last. Raises OSError, TimeoutError or `VersionRefused`."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_unix_connection(lambda: Connection(self._receive), str(self._socket))
        try:
            connection.send(Hello(PROTOCOL_VERSION))
            async with asyncio.timeout(HANDSHAKE_S):
                welcome = await connection.welcome
            self._reader = HeartbeatReader(self._heartbeat)
            self._connection, self.welcome = connection, welcome
            log.info("connected to the engine")
            await connection.lost
            log.warning("lost the engine; %d sequences fail", len(self._table))
        finally:
            self._disconnect(connection)

    def _disconnect(self, connection: Connection) -> None:
        connection.close()
        if self._reader is None:
            return
        self._reader.close()
        self._reader, self._connection, self.welcome = None, None, None
        self.stats = Stats()  # an engine that is gone computes nothing
        self._detail = "the engine went away; waiting for it to come back"
        self._table.fail(lambda: EngineDied("The engine ended while this request was in it.", retry_after_s=1.0))

    def _receive(self, message: Outputs | Stats) -> None:
        if isinstance(message, Stats):
            self.stats = message
        else:
            self._table.deliver(message.outputs)


class VersionRefused(Exception):
    """The engine speaks another version of the protocol."""


class Connection(asyncio.Protocol):
    """One socket: frames in, frames out. `welcome` and `lost` are its two futures."""

    def __init__(self, receive: Callable[[Outputs | Stats], None]) -> None:
        loop = asyncio.get_running_loop()
        self.welcome: asyncio.Future[Welcome] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()
        self._receive = receive
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None

    @property
    def num_unsent(self) -> int:
        """Bytes that wait because the engine does not read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, message: ToEngine) -> None:
        """Queue one message; never waits."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    def close(self) -> None:
        """Drop the connection, with whatever was unsent."""
        if self._transport is not None:
            self._transport.abort()
        self._end_handshake(ConnectionResetError("closed before it said welcome"))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """From asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        """From asyncio."""
        try:
            for body in self._frames.feed(data):
                self._take(to_front_decoder.decode(body))
        except (FrameTooLarge, msgspec.DecodeError) as error:
            log.error("the engine sent what this front cannot read: %s", error)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """From asyncio."""
        if not self.lost.done():
            self.lost.set_result(None)
        self._end_handshake(ConnectionResetError("closed before it said welcome"))

    def _take(self, message: ToFront) -> None:
        if isinstance(message, (Outputs, Stats)):
            self._receive(message)
        elif isinstance(message, Refused):
            self._end_handshake(VersionRefused(message.message))
        elif message.version != PROTOCOL_VERSION:
            self._end_handshake(VersionRefused(f"the engine speaks protocol {message.version}"))
        elif not self.welcome.done():
            self.welcome.set_result(message)

    def _end_handshake(self, error: Exception) -> None:
        """It failed, unless it is over. The error is marked as seen, since the session may be gone by now."""
        if not self.welcome.done():
            self.welcome.set_exception(error)
            self.welcome.exception()
