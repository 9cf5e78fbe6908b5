"""An engine in a thread of the caller, with the same client as one in a process: for tests and for use as a library."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence

from backends.errors import EngineDied, Unavailable
from backends.hf.client import ClientStatus, EngineStream, StreamTable
from backends.hf.loop import BuildEngine, EngineLoop
from backends.hf.messages import Abort, Outputs, Stats, Submit, Welcome

log = logging.getLogger("laneway.hf.local")


class EngineThread:
    """Builds an engine and steps it in a daemon thread.

    `build` runs in that thread too, since a loaded model belongs to the thread that steps it. `start` waits for it and
    raises what it raised.
    """

    def __init__(self, build: BuildEngine) -> None:
        self._build = build
        self._clients: set[LocalClient] = set()
        self._lock = threading.Lock()
        self._built = threading.Event()
        self._failure: Exception | None = None
        self._loop: EngineLoop | None = None
        self._welcome: Welcome | None = None
        self._thread = threading.Thread(target=self._run, name="laneway-engine", daemon=True)

    def start(self) -> None:
        """Load and begin to step. Blocks until the engine is warm."""
        self._thread.start()
        self._built.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End after the present step."""
        if self._loop is not None:
            self._loop.stop()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the engine steps."""
        return self._loop is not None and self._thread.is_alive()

    @property
    def welcome(self) -> Welcome | None:
        """What the engine has loaded."""
        return self._welcome if self.is_alive else None

    def join(self, client: LocalClient) -> EngineLoop:
        """Let `client` take part. Raises `Unavailable` when the engine does not run."""
        if self._loop is None or not self._thread.is_alive():
            raise Unavailable("The engine does not run.")
        with self._lock:
            self._clients.add(client)
        return self._loop

    def leave(self, client: LocalClient) -> None:
        """End a client's part and its sequences."""
        with self._lock:
            self._clients.discard(client)
        if self._loop is not None:
            self._loop.close(client)

    def _run(self) -> None:
        try:
            engine, self._welcome = self._build(self._deliver)
            self._loop = EngineLoop(engine, beat=lambda: None)
        except Exception as error:
            self._failure = error
            return
        finally:
            self._built.set()
        try:
            self._loop.run()
        except Exception:
            log.exception("the engine's thread ended")
        for client in self._everyone():
            client.engine_ended()

    def _deliver(self, origin: object | None, message: Outputs | Stats) -> None:
        if isinstance(origin, LocalClient):
            origin.deliver(message)
        else:
            for client in self._everyone():
                client.deliver(message)

    def _everyone(self) -> tuple[LocalClient, ...]:
        with self._lock:
            return tuple(self._clients)


class LocalClient:
    """A `Client` of an `EngineThread`; lives on the event loop that starts it."""

    def __init__(self, thread: EngineThread) -> None:
        self._thread = thread
        self._engine: EngineLoop | None = None
        self._asyncio: asyncio.AbstractEventLoop | None = None
        self._table = StreamTable(self._send)
        self.stats = Stats()

    @property
    def num_sequences(self) -> int:
        """Sequences that live, over all streams."""
        return len(self._table)

    @property
    def welcome(self) -> Welcome | None:
        """See `Client`."""
        return self._thread.welcome

    async def start(self) -> None:
        """See `Client`. The thread must have been started."""
        self._asyncio = asyncio.get_running_loop()
        self._engine = self._thread.join(self)

    async def stop(self) -> None:
        """See `Client`."""
        self._thread.leave(self)
        self._engine, self.stats = None, Stats()
        self._table.fail(lambda: Unavailable("The backend is shutting down."))

    def status(self) -> ClientStatus:
        """See `Client`."""
        ready = self._engine is not None and self._thread.is_alive
        return ClientStatus(ready, "" if ready else "the engine's thread does not run")

    def submit(self, submits: Sequence[Submit]) -> EngineStream:
        """See `Client`."""
        if self._engine is None or not self._thread.is_alive:
            raise Unavailable("The model is not ready: the engine's thread does not run.")
        stream = self._table.open(submits)
        for submit in submits:
            self._engine.submit(self, submit)
        return stream

    def deliver(self, message: Outputs | Stats) -> None:
        """From the engine's thread."""
        assert self._asyncio is not None
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody is left to tell
            self._asyncio.call_soon_threadsafe(self._receive, message)

    def engine_ended(self) -> None:
        """From the engine's thread, as its last word."""
        assert self._asyncio is not None
        with contextlib.suppress(RuntimeError):
            self._asyncio.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self.stats = Stats()
        self._table.fail(_died)

    def _receive(self, message: Outputs | Stats) -> None:
        if self._engine is None:
            return  # stopped while this was on its way
        if isinstance(message, Stats):
            self.stats = message
        else:
            self._table.deliver(message.outputs)

    def _send(self, message: Abort) -> None:
        if self._engine is not None:
            self._engine.abort(self, message.id)


def _died() -> EngineDied:
    return EngineDied("The engine ended while this request was in it.")
