"""The parent's private folder for sockets and heartbeats: made, locked while its parent lives, swept after that."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

PREFIX = "laneway-"
MARK = "locked-while-in-use"  # in a folder of ours, and only once its parent holds the lock
SOCKET_PATH_BYTES = 100  # the kernel takes 107


@contextlib.contextmanager
def run_dir(backends: Iterable[str]) -> Iterator[Path]:
    """A folder for these backends, short enough for a socket's path. It goes with the block.

    Those that parents left behind, because they were killed outright, go first.
    """
    parent = _parent(backends)
    sweep(parent)
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with _locked(folder):
            (folder / MARK).touch()
            yield folder


def sweep(parent: Path) -> None:
    """Remove this user's folders whose parent is gone. The lock of a process ends with it, whatever ended it."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if (folder / MARK).is_file():
                with _locked(folder):
                    shutil.rmtree(folder)


def _parent(backends: Iterable[str]) -> Path:
    longest = max((len(name) for name in backends), default=0) + len(f"/{PREFIX}12345678/.sock")
    parent = tempfile.gettempdir()
    return Path(parent if len(os.fsencode(parent)) + longest <= SOCKET_PATH_BYTES else "/tmp")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock. Raises `OSError` for one that is held, is a link, or belongs to another user."""
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(held).st_uid != os.geteuid():
            raise PermissionError(f"{folder} belongs to another user")
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(held)
