"""How far a run is, on stderr: a bar for each phase on a terminal, a line for each elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from gateway.cli.screen import stderr


class Phases:
    """Phases with a known number of steps. Redrawn twice a second: the server needs the processor more."""

    def __init__(self) -> None:
        self._console = stderr()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=self._console, refresh_per_second=2)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._bars.stop()

    def begin(self, phase: str, steps: int) -> Callable[[], None]:
        """A new phase of `steps` steps; call what it returns after each."""
        if not self._console.is_terminal:
            self._console.print(f"bench: {phase}", markup=False)
            return lambda: None
        bar = self._bars.add_task(phase, total=steps)
        return lambda: self._bars.advance(bar)
