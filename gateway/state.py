"""What a server is doing now, from memory: for live views, and for whoever asks its control socket."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from msgspec import Struct

from backends.base import Backend
from gateway.counters import RuleState
from gateway.directory import Directory
from gateway.lanes import Lanes
from gateway.ledger import Ledger, OpenEntry
from gateway.limits import Limits
from gateway.metrics import Metrics
from gateway.version import own_version
from gateway.writer import Writer, WriterState


class LaneState(Struct, frozen=True, kw_only=True):
    """One lane: how many are answered, how many wait, and how long the first of them has, in seconds."""

    running: int
    waiting: int
    oldest_wait_s: float


class BackendNow(Struct, frozen=True, kw_only=True):
    """One backend, as it says itself."""

    ready: bool
    running: int
    waiting: int
    detail: str


class Totals(Struct, frozen=True, kw_only=True):
    """Since the start, answers that are still being made included."""

    requests: int
    prompt_tokens: int
    completion_tokens: int


class ServerState(Struct, frozen=True, kw_only=True):
    """All of it. `loop_lag_s` is how late the event loop was of late, at worst."""

    version: str
    uptime_s: float
    loop_lag_s: float
    totals: Totals
    lanes: dict[str, LaneState]
    backends: dict[str, BackendNow]
    requests: list[OpenEntry]
    limits: list[RuleState]
    writer: WriterState


class State:
    """Looks at the parts of a front."""

    def __init__(
        self,
        lanes: Lanes,
        backends: Mapping[str, Backend],
        ledger: Ledger,
        limits: Limits,
        directory: Directory,
        writer: Writer,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lanes, self._backends = lanes, backends
        self._ledger, self._limits, self._directory = ledger, limits, directory
        self._writer, self._metrics = writer, metrics
        self._clock = clock
        self._began_at = clock()

    def now(self) -> ServerState:
        """As it is at this moment."""
        entries = self._ledger.entries()
        running, waiting = self._lanes.running(), self._lanes.waiting()
        oldest = self._lanes.oldest_wait_s()
        health = {name: backend.health() for name, backend in self._backends.items()}
        return ServerState(
            version=own_version(),
            uptime_s=self._clock() - self._began_at,
            loop_lag_s=self._metrics.loop_lag.worst_s,
            totals=self._totals(entries),
            lanes={
                lane: LaneState(running=running[lane], waiting=waiting[lane], oldest_wait_s=oldest[lane])
                for lane in running
            },
            backends={
                name: BackendNow(ready=one.ready, running=one.running, waiting=one.waiting, detail=one.detail)
                for name, one in health.items()
            },
            requests=entries,
            limits=[state for state in self._limits.states() if self._directory.holds(state.rule)],
            writer=self._writer.state,
        )

    def _totals(self, entries: list[OpenEntry]) -> Totals:
        done = self._metrics.tokens_done
        return Totals(
            requests=self._metrics.requests_done + len(entries),
            prompt_tokens=done["prompt"] + sum(entry.usage.prompt_tokens for entry in entries),
            completion_tokens=done["completion"] + sum(entry.usage.completion_tokens for entry in entries),
        )
