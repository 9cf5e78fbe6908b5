"""The thread that steps an engine: steps while there is work, sleeps until there is some, beats all the while."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol, TypeAlias

from backends.hf.messages import Outputs, Stats, Submit, Welcome

IDLE_S = 0.25  # the longest sleep, so the pulse goes on and statistics are sent when nothing runs

# Takes what a step has to say to one front (its `origin`), or to all of them (None); called in the engine's thread.
Deliver: TypeAlias = Callable[[object | None, Outputs | Stats], None]


class SteppedEngine(Protocol):
    """What the loop needs of an engine. Only `step` runs in the loop's thread; the others may be called from any."""

    def step(self) -> bool:
        """Do one step. False when there was nothing to do."""
        ...

    def submit(self, origin: object, submit: Submit) -> None:
        """Take a sequence of a front."""
        ...

    def abort(self, origin: object, sequence_id: int) -> None:
        """Drop a sequence; unknown ones are ignored."""
        ...

    def close(self, origin: object) -> None:
        """Drop all sequences of a front that is gone."""
        ...


# Loads a model and builds its engine, which answers through the given `Deliver`.
BuildEngine: TypeAlias = Callable[[Deliver], tuple[SteppedEngine, Welcome]]


class EngineLoop:
    """Runs an engine in the thread that calls `run`; the other methods may be called from any thread."""

    def __init__(self, engine: SteppedEngine, beat: Callable[[], None]) -> None:
        self._engine = engine
        self._beat = beat
        self._wake = threading.Event()
        self._stopping = False

    def run(self) -> None:
        """Step until `stop`. What a step raises ends the loop and comes out here."""
        while not self._stopping:
            self._beat()
            if not self._engine.step():
                self._wake.wait(IDLE_S)
                self._wake.clear()  # before the next step looks into the inbox, so nothing is missed

    def stop(self) -> None:
        """End after the present step. May be called by a signal handler."""
        self._stopping = True
        self._wake.set()

    def submit(self, origin: object, submit: Submit) -> None:
        """Hand a sequence to the engine and wake it."""
        self._engine.submit(origin, submit)
        self._wake.set()

    def abort(self, origin: object, sequence_id: int) -> None:
        """Drop a sequence of `origin`."""
        self._engine.abort(origin, sequence_id)
        self._wake.set()

    def close(self, origin: object) -> None:
        """Drop all sequences of `origin`."""
        self._engine.close(origin)
        self._wake.set()
