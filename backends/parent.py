"""Ties a process to the parent that spawned it: no front and no engine outlives `laneway serve`, however that ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import sys
import threading

PR_SET_PDEATHSIG = 1
EXIT_ORPHANED = 1


def end_with_parent() -> None:
    """Have the kernel (Linux) kill this process together with the thread that spawned it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_input() -> None:
    """End this process when standard input does, where that is a pipe or a socket: the parent's, who keeps it open.

    For other systems than Linux, and for a parent that was gone before the kernel was asked. Whatever comes by standard
    input from now on is dropped.
    """
    with contextlib.suppress(OSError):
        mode = os.fstat(0).st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            threading.Thread(target=_await_end_of_input, name="laneway-parent", daemon=True).start()


def _await_end_of_input() -> None:
    """`os.read` alone: a thread that sits in a buffered reader breaks the interpreter's shutdown."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    os._exit(EXIT_ORPHANED)
