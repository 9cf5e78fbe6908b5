"""The lock of an open file: no child inherits it, and it goes however its process ends."""

from __future__ import annotations

import fcntl
import time

TRY_AGAIN_S = 0.02


def lock(file: int, kind: int, patience_s: float = 0.0) -> bool:
    """Take the lock of `kind` (`fcntl.LOCK_EX`, `fcntl.LOCK_SH`); False when another open file has it still after
    `patience_s`.
    """
    until = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(TRY_AGAIN_S)  # flock itself waits without end
        else:
            return True
