"""The engine's pulse: one monotonic instant in a mapped file, written by the step loop and read without I/O."""

from __future__ import annotations

import mmap
import struct
import time
from pathlib import Path

BEAT = struct.Struct("<d")


class HeartbeatWriter:
    """Writes the pulse. The file appears with the first beat, whole, so a reader never sees it without one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._map: mmap.mmap | None = None
        path.unlink(missing_ok=True)

    def beat(self) -> None:
        """The loop is alive now."""
        if self._map is None:
            self._map = self._create()
        # One store of eight bytes. `pack_into` would clear them first, and a reader could meet the zeros.
        self._map[:] = BEAT.pack(time.monotonic())

    def close(self) -> None:
        """Remove the file: this process ends, it does not hang."""
        if self._map is not None:
            self._map.close()
            self._map = None
        self._path.unlink(missing_ok=True)

    def _create(self) -> mmap.mmap:
        new = self._path.with_suffix(".new")
        new.write_bytes(BEAT.pack(time.monotonic()))
        with new.open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), BEAT.size)
        new.rename(self._path)
        return mapped


class HeartbeatReader:
    """Reads the pulse of the process that wrote the file when it was opened."""

    def __init__(self, path: Path) -> None:
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), BEAT.size, access=mmap.ACCESS_READ)

    def age_s(self) -> float:
        """Seconds since the last beat."""
        (beat,) = BEAT.unpack_from(self._map, 0)
        return max(0.0, time.monotonic() - float(beat))

    def close(self) -> None:
        """Let the mapping go."""
        self._map.close()
