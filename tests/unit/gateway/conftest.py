"""Virtual time: an event loop whose clock jumps to the next timer as soon as nothing else can run."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

ResultT = TypeVar("ResultT")


class JumpingSelector(selectors.DefaultSelector):
    """Never sleeps; what it should have slept is added to the loop's clock."""

    slept_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("deadlock: nothing can run and no timer is set")
        if not ready and timeout:
            self.slept_s += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 1000 s and moves only when everything waits."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return 1000.0 + self._jumping.slept_s


@pytest.fixture
def run_virtually() -> Callable[[Coroutine[Any, Any, ResultT]], ResultT]:
    """Run a coroutine to its end in virtual time; use `now` as the clock of what is tested."""

    def run(main: Coroutine[Any, Any, ResultT]) -> ResultT:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main)

    return run


@pytest.fixture
def now() -> Callable[[], float]:
    """The clock of the running loop."""
    return lambda: asyncio.get_running_loop().time()
