"""The parent's watch over its processes: start, restart with back-off, stop. It knows nothing of HTTP, models or torch.

A child ends with its parent: it asks the kernel for that (pdeathsig), and its standard input, a pipe that the parent
never closes, reads end of file as soon as the parent is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

log = logging.getLogger("laneway.supervisor")

EXIT_CONFIG = 2  # a child that ends so at its first start has a setting that can never work
CHECKS = 10  # of a heartbeat within the time that counts as hung
KILL_AFTER_S = 5.0


class ChildSpec(Struct, frozen=True, kw_only=True):
    """One process to keep running.

    `first_input` is the first it reads from its standard input. Its `heartbeat` file, where there is one, is rewritten
    while it moves; when that stops for `hang_after_s` it is killed. It gets `stop_within_s` to end after SIGTERM.
    """

    name: str
    argv: tuple[str, ...]
    first_input: bytes = b""
    pass_fds: tuple[int, ...] = ()
    heartbeat: Path | None = None
    hang_after_s: float = 30.0
    stop_within_s: float = KILL_AFTER_S


class Backoff:
    """How long to wait before the next start: doubling from `first_s` to `longest_s`, anew after `stable_s` of life."""

    def __init__(self, first_s: float = 0.25, longest_s: float = 30.0, stable_s: float = 60.0) -> None:
        self._first_s, self._longest_s, self._stable_s = first_s, longest_s, stable_s
        self.failures = 0

    def next(self, lived_s: float) -> float:
        """Seconds to wait after a process that lived `lived_s`."""
        self.failures = 1 if lived_s >= self._stable_s else self.failures + 1
        doublings = min(self.failures - 1, 32)
        return min(self._longest_s, self._first_s * 2.0**doublings)


class Pulse:
    """Whether a process still moves, by the content of its heartbeat file.

    Time is counted in checks, not taken from a clock: while the parent itself is stopped (Ctrl-Z, a paused container)
    no child is found hung. No beat is expected before the file exists, so a long load is not a hang.
    """

    def __init__(self, file: Path | None, hang_after_s: float) -> None:
        self._file, self._hang_after_s = file, hang_after_s
        self._last: bytes | None = None
        self._still_s = 0.0

    def reset(self) -> None:
        """Forget the beats of the process before."""
        self._last, self._still_s = None, 0.0
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    @property
    def has_beaten(self) -> bool:
        """Whether the present process got as far as its main loop."""
        return self._last is not None

    def is_hung(self, since_last_check_s: float) -> bool:
        """Look at the file; True when it has not changed for too long."""
        if self._file is None:
            return False
        try:
            beat = self._file.read_bytes()
        except OSError:
            return False
        self._still_s = self._still_s + since_last_check_s if beat == self._last else 0.0
        self._last = beat
        return self._still_s >= self._hang_after_s


class End(enum.Enum):
    """Why a process is no more."""

    EXITED = "ended"
    HUNG = "did not move any more and was killed"


class Child:
    """One place among the parent's processes, and the process that fills it now."""

    def __init__(
        self, spec: ChildSpec, backoff: Backoff | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.spec = spec
        self.process: asyncio.subprocess.Process | None = None
        self.starts = 0
        self.was_up = False
        self._backoff = backoff or Backoff()
        self._pulse = Pulse(spec.heartbeat, spec.hang_after_s)
        self._clock = clock
        self._started_at = 0.0
        self._ending: signal.Signals | None = None

    async def start(self) -> None:
        """Spawn it, in a process group of its own so that Ctrl-C reaches the parent alone.

        Called on the main thread: pdeathsig follows the thread that spawned.
        """
        self._pulse.reset()
        self.starts += 1
        self._started_at = self._clock()
        self.process = await asyncio.create_subprocess_exec(
            *self.spec.argv, stdin=asyncio.subprocess.PIPE, pass_fds=self.spec.pass_fds, process_group=0
        )
        assert self.process.stdin is not None
        self.process.stdin.write(self.spec.first_input)
        if self._ending is not None:
            self._send(self._ending)
        log.info("%s started, pid %d", self.spec.name, self.process.pid)

    async def watch(self) -> End:
        """Wait until it ends, or kill it when it hangs."""
        assert self.process is not None
        exited = asyncio.ensure_future(self.process.wait())
        check_s = self.spec.hang_after_s / CHECKS
        try:
            while not (await asyncio.wait({exited}, timeout=check_s))[0]:
                if self._pulse.is_hung(check_s):
                    self._send(signal.SIGKILL)
                    await exited
                    return End.HUNG
        finally:
            self.was_up = self.was_up or self._pulse.has_beaten
            exited.cancel()
        return End.EXITED

    def tell(self, first_input: bytes, line: bytes) -> None:
        """From now on it starts with `first_input`; the process that runs is told `line`."""
        self.spec = msgspec.structs.replace(self.spec, first_input=first_input)
        if self.process is not None and self.process.returncode is None and self.process.stdin is not None:
            self.process.stdin.write(line)

    def next_delay(self) -> float:
        """Seconds to wait before starting it again."""
        return self._backoff.next(self._clock() - self._started_at)

    def end(self, number: signal.Signals) -> None:
        """Have it end by this signal; one that is being made gets it as soon as it is there."""
        if self._ending is not signal.SIGKILL:
            self._ending = number
        self._send(number)

    def _send(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.send_signal(number)

    @property
    def never_can_start(self) -> bool:
        """Whether its very first process refused its settings; later on that is a failure like others."""
        refused = self.process is not None and self.process.returncode == EXIT_CONFIG
        return refused and self.starts == 1 and not self.was_up


class Supervisor:
    """Keeps engines and fronts running until it is told to stop. `listener` is the parent's hold on their socket."""

    def __init__(
        self, engines: Sequence[Child], fronts: Sequence[Child], listener: socket.socket | None = None
    ) -> None:
        self._engines, self._fronts, self._listener = engines, fronts, listener
        self._stopping = asyncio.Event()
        self._exit_code = 0

    async def run(self) -> int:
        """Start everything, keep it running, end it. Returns the exit code: 2 when a child can never start."""
        keepers = {child: asyncio.create_task(self._keep(child)) for child in (*self._engines, *self._fronts)}
        told = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({told, *keepers.values()}, return_when=asyncio.FIRST_COMPLETED)
        self._stopping.set()
        if self._listener is not None:
            self._listener.close()  # or new connections would queue behind fronts that have stopped accepting
        for group in (self._fronts, self._engines):
            await _end({keepers[child]: child for child in group})
        for keeper in keepers.values():
            keeper.result()
        return self._exit_code

    async def _keep(self, child: Child) -> None:
        """The life of one place: start, watch, wait a little, again."""
        while not self._stopping.is_set():
            how = await self._live(child)
            if self._stopping.is_set():
                return
            if child.never_can_start:
                log.error("%s cannot start with these settings", child.spec.name)
                self._exit_code = EXIT_CONFIG
                return
            delay_s = child.next_delay()
            log.warning("%s; start %d follows in %g s", how, child.starts + 1, delay_s)
            await self._pause(delay_s)

    async def _live(self, child: Child) -> str:
        """One process, from its start to its end; how it ended."""
        try:
            await child.start()
        except OSError as error:  # such as no memory left for one more process: the others must not fall with it
            return f"{child.spec.name} could not be started ({error.strerror})"
        return _obituary(child, await child.watch())

    @property
    def is_stopping(self) -> bool:
        """Whether the end has begun."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """End everything in order: fronts finish their answers, then the engines go."""
        self._stopping.set()

    def kill(self) -> None:
        """End everything now."""
        self._exit_code = 128 + signal.SIGINT
        self._stopping.set()
        for child in (*self._fronts, *self._engines):
            child.end(signal.SIGKILL)

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when all is to end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()


async def _end(keepers: dict[asyncio.Task[None], Child]) -> None:
    """SIGTERM to all of a group, and SIGKILL to what is left after its time."""
    if not keepers:
        return
    for child in keepers.values():
        child.end(signal.SIGTERM)
    within_s = max(child.spec.stop_within_s for child in keepers.values())
    _, late = await asyncio.wait(keepers, timeout=within_s)
    for keeper in late:
        log.warning("%s did not end within %g s and is killed", keepers[keeper].spec.name, within_s)
        keepers[keeper].end(signal.SIGKILL)
    await asyncio.wait(keepers)


def _obituary(child: Child, end: End) -> str:
    assert child.process is not None
    code = child.process.returncode or 0
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
    return f"{child.spec.name} (pid {child.process.pid}) {end.value}" + (f" {how}" if end is End.EXITED else "")
