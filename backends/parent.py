"""Ties a process to the parent that spawned it: no front and no engine outlives `laneway serve`, however that ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
EXIT_ORPHANED = 1


def end_with_parent() -> None:
    """Have the kernel (Linux) kill this process together with the thread that spawned it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_input(on_line: Callable[[bytes], None] | None = None) -> None:
    """End this process when standard input does, where that is a pipe or a socket: the parent's, who keeps it open.

    For other systems than Linux, and for a parent that was gone before the kernel was asked. Lines that come by
    standard input from now on are given to `on_line`, in a thread of their own, or dropped.
    """
    with contextlib.suppress(OSError):
        mode = os.fstat(0).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            watch = threading.Thread(target=_await_end_of_input, args=(on_line,), name="laneway-parent", daemon=True)
            watch.start()


def _await_end_of_input(on_line: Callable[[bytes], None] | None) -> None:
    """`os.read` alone: a thread that sits in a buffered reader breaks the interpreter's shutdown."""
    rest = b""
    with contextlib.suppress(OSError):
        while piece := os.read(0, 65536):
            *lines, rest = (rest + piece).split(b"\n")
            if on_line is not None:
                for line in lines:
                    on_line(line)
    os._exit(EXIT_ORPHANED)
