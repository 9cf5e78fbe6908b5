"""Progress of what takes long, for people: one line with a bar on a terminal, one line a stage elsewhere."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

WATCH_S = 0.2

Report: TypeAlias = Callable[[float, str], None]


@contextmanager
def stages(title: str, console: Console | None = None) -> Iterator[Report]:
    """A function to call with the fraction done and what is being done now. Nothing shows before its first call."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield lambda _, doing: console.print(f"{title}: {doing}", markup=False, highlight=False, soft_wrap=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[doing]}"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=1.0, visible=False, doing="")
        yield lambda fraction, doing: progress.update(task, completed=fraction, doing=doing, visible=True)


@contextmanager
def download(title: str, total: int, present: Callable[[], int], console: Console | None = None) -> Iterator[None]:
    """A bar that shows how `present()` (bytes on disk) grows by `total` while the body runs."""
    console = console or Console(stderr=True)
    before = present()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task(title, total=total)
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(WATCH_S):
                progress.update(task, completed=min(total, present() - before))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
            progress.update(task, completed=total)
        finally:
            ended.set()
            watcher.join()
