"""The engine's process: `python -m backends.hf.server`. Fronts come and go on its socket; it ends with its parent.

The main thread loads the model and then only steps; a second thread does all socket work. The socket appears when the
model is warm. Nothing a front does, or fails to do, holds up a step.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec

from backends.base import LaneRule
from backends.errors import ConfigError
from backends.hf import threads
from backends.hf.heartbeat import HeartbeatWriter
from backends.hf.loop import BuildEngine, Deliver, EngineLoop, SteppedEngine
from backends.hf.machine import allowed_cores, physical_cores
from backends.hf.messages import (
    PROTOCOL_VERSION,
    Abort,
    FrameReader,
    FrameTooLarge,
    Hello,
    Outputs,
    Refused,
    Stats,
    Submit,
    ToEngine,
    ToFront,
    Welcome,
    encode_frame,
    to_engine_decoder,
)
from backends.hf.options import HFOptions
from backends.log import configure
from backends.parent import end_with_input, end_with_parent

log = logging.getLogger("laneway.hf.server")

EXIT_FAILED = 1
EXIT_CONFIG = 2
MAX_UNREAD_BYTES = 64 * 1024 * 1024  # a front that leaves this much unread is taken for dead


class EngineServer:
    """The socket side of an engine, in a thread of its own. `deliver` is called in the engine's thread."""

    def __init__(self, path: Path, max_unread_bytes: int = MAX_UNREAD_BYTES) -> None:
        self._path = path
        self._max_unread_bytes = max_unread_bytes
        self._cores = threads.cores()  # before OpenMP binds the thread that makes this
        self._fronts: set[Front] = set()
        self._outbox: deque[tuple[object | None, Outputs | Stats]] = deque()
        self._is_flush_due = False
        self._io: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._listening = threading.Event()
        self._failure: OSError | None = None
        self._thread: threading.Thread | None = None

    def start(self, engine: EngineLoop, welcome: Welcome) -> None:
        """Listen. Raises OSError when the socket cannot be made."""
        self._thread = threading.Thread(target=self._run, args=(engine, welcome), name="laneway-engine-io", daemon=True)
        self._thread.start()
        self._listening.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop listening and drop every front."""
        if self._thread is None or self._io is None or self._stopped is None:
            return
        with contextlib.suppress(RuntimeError):  # it ended by itself
            self._io.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def deliver(self, origin: object | None, message: Outputs | Stats) -> None:
        """See `Deliver`. The socket thread is woken once for all that a step says."""
        if self._io is None:
            return  # nobody can be connected yet
        self._outbox.append((origin, message))
        if not self._is_flush_due:
            self._is_flush_due = True
            with contextlib.suppress(RuntimeError):  # the socket thread has ended
                self._io.call_soon_threadsafe(self._flush)

    def _run(self, engine: EngineLoop, welcome: Welcome) -> None:
        threads.run_anywhere(self._cores)
        asyncio.run(self._serve(engine, welcome))

    async def _serve(self, engine: EngineLoop, welcome: Welcome) -> None:
        self._io = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        try:
            server = await self._io.create_unix_server(
                lambda: Front(engine, welcome, self._fronts, self._max_unread_bytes), str(self._path)
            )
            self._path.chmod(0o600)
        except OSError as error:
            self._failure = error
            return
        finally:
            self._listening.set()
        async with server:
            await self._stopped.wait()
            for front in tuple(self._fronts):
                front.drop()
            server.close()
        self._path.unlink(missing_ok=True)

    def _flush(self) -> None:
        """In the socket thread. The flag falls before the box is emptied, so what comes meanwhile is never left."""
        self._is_flush_due = False
        while self._outbox:
            origin, message = self._outbox.popleft()
            for front in tuple(self._fronts):
                if origin is None or origin is front:
                    front.send(message)


class Front(asyncio.Protocol):
    """One front's connection; it is the `origin` of its sequences."""

    def __init__(self, engine: EngineLoop, welcome: Welcome, fronts: set[Front], max_unread_bytes: int) -> None:
        self._engine = engine
        self._welcome = welcome
        self._fronts = fronts
        self._max_unread_bytes = max_unread_bytes
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._is_known = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """From asyncio."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """From asyncio."""
        try:
            for body in self._frames.feed(data):
                self._take(to_engine_decoder.decode(body))
        except (FrameTooLarge, msgspec.DecodeError) as error:
            self._refuse(f"the engine cannot read what this front sent: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        """From asyncio. The front is gone, and what it asked for with it."""
        if self in self._fronts:
            self._fronts.discard(self)
            self._engine.close(self)

    def send(self, message: ToFront) -> None:
        """Queue one message; never waits. A front that does not read is dropped."""
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(encode_frame(message))
        if self._transport.get_write_buffer_size() > self._max_unread_bytes:
            log.warning("a front does not read its answers and is dropped")
            self._transport.abort()

    def drop(self) -> None:
        """Close it now, whatever is queued."""
        if self._transport is not None:
            self._transport.abort()

    def _take(self, message: ToEngine) -> None:
        if isinstance(message, Hello):
            self._greet(message)
        elif not self._is_known:
            self._refuse("the first message must be Hello")
        elif isinstance(message, Submit):
            self._engine.submit(self, message)
        elif isinstance(message, Abort):
            self._engine.abort(self, message.id)

    def _greet(self, hello: Hello) -> None:
        if hello.version != PROTOCOL_VERSION:
            self._refuse(f"the engine speaks protocol {PROTOCOL_VERSION}, this front {hello.version}: restart both")
            return
        self._is_known = True
        self._fronts.add(self)
        self.send(self._welcome)

    def _refuse(self, reason: str) -> None:
        log.warning("a front was refused: %s", reason)
        self.send(Refused(reason))
        if self._transport is not None:
            self._transport.close()  # after what is queued


def serve(name: str, run_dir: Path, build: BuildEngine) -> None:
    """Build the engine and run it until SIGTERM. Called in the main thread; raises what building or a step raises."""
    heartbeat = HeartbeatWriter(run_dir / f"{name}.heartbeat")
    server = EngineServer(run_dir / f"{name}.sock")
    engine, welcome = build(server.deliver)
    loop = EngineLoop(engine, heartbeat.beat)
    signal.signal(signal.SIGTERM, lambda number, frame: loop.stop())
    gc.collect()
    gc.freeze()  # the model lives as long as the process: later collections need not walk it
    heartbeat.beat()
    try:
        server.start(loop, welcome)
        log.info("engine %s is ready: %s on %s, %s runner", name, welcome.dtype, welcome.device, welcome.runner)
        loop.run()
    finally:
        server.stop()
        heartbeat.close()


def follow_parent() -> None:
    """Make this process end within a second of its parent, however that ends, and leave Ctrl-C to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    end_with_input()


def main(argv: Sequence[str] | None = None) -> int:
    """The process. Exit code 2 for settings that can never work, 1 for any other failure, 0 after SIGTERM."""
    follow_parent()
    parser = argparse.ArgumentParser(prog="laneway-engine", description="The process of one built-in engine.")
    parser.add_argument("--name", required=True, help="the backend's name in the configuration")
    parser.add_argument("--run-dir", required=True, type=Path, help="private folder of socket and heartbeat")
    parser.add_argument("--options", required=True, help="the backend's options as JSON")
    parser.add_argument("--lanes", required=True, help="the lanes as JSON")
    args = parser.parse_args(argv)
    try:
        options = msgspec.json.decode(args.options, type=HFOptions)
        lanes = msgspec.json.decode(args.lanes, type=dict[str, LaneRule])
    except msgspec.ValidationError as error:
        return _fail(args.name, str(error), EXIT_CONFIG)
    return run(args.name, args.run_dir, lambda deliver: _build(options, lanes, deliver))


def run(name: str, run_dir: Path, build: BuildEngine) -> int:
    """`serve`, with what goes wrong as one line on stderr. Returns the exit code."""
    configure()
    try:
        serve(name, run_dir, build)
    except ConfigError as error:
        return _fail(name, str(error), EXIT_CONFIG)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        reason = str(error).strip().split("\n")[0][:300]
        return _fail(name, f"{type(error).__name__}: {reason} ({where.name}:{where.lineno})", EXIT_FAILED)
    return 0


def _build(options: HFOptions, lanes: Mapping[str, LaneRule], deliver: Deliver) -> tuple[SteppedEngine, Welcome]:
    """torch comes in here, after the process has tied itself to its parent."""
    # Counted now: once OpenMP has bound this thread, it sees one core.
    options = msgspec.structs.replace(options, threads=options.threads or physical_cores())
    threads.prepare(options.threads, allowed_cores(), os.environ)
    from backends.hf.assembly import build_engine

    return build_engine(options, lanes, deliver)


def _fail(name: str, reason: str, code: int) -> int:
    """One line for the operator."""
    sys.stderr.write(f"backends.{name}: {reason}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
