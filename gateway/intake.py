"""Two files beside a SQLite store, in which records are durable at once; the writer commits them a moment later.

One write into the page cache takes a tenth of what a commit takes. While the records of one file are committed, the
other takes what comes. What is found in them at a start was not committed, or perhaps was: written again it changes
nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from backends.errors import ConfigError
from gateway import log
from gateway.events import Record
from gateway.file_lock import lock

SIDES = (0, 1)
HEAD = struct.Struct("<QII")  # of each entry: its number, the length of its body and the body's CRC-32
MOST_BYTES = 1 << 18  # of one entry; what is larger is committed at once
LONGEST_S = 0.005  # a disk that makes a write wait for longer is left alone for a while
REST_S = 10.0

logger = logging.getLogger(f"{log.ROOT}.ledger")


class IntakeBusy(Exception):
    """Another process has the files, or this one has them open already."""


class Intake:
    """For one process at a time. The event loop appends; another thread may `clear` a side that was turned away from.

    `append` and `turn` must not run at once.
    """

    def __init__(self, store_file: str, wait_s: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        """Open or make the files. Raises `IntakeBusy` after `wait_s`, and `ConfigError` naming `store.url`."""
        self._clock = clock
        self._encoder = msgspec.msgpack.Encoder()
        self._rests_until = 0.0
        self._is_torn = False
        self._side = self._number = 0
        self._paths = [Path(f"{store_file}-intake-{side}") for side in SIDES]
        self._files: list[int] = []
        try:
            for path in self._paths:
                self._files.append(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
            if not lock(self._files[0], fcntl.LOCK_EX, wait_s):
                raise IntakeBusy(str(self._paths[0]))
            self._sizes = [os.fstat(file).st_size for file in self._files]
        except OSError as error:
            self.close()
            raise ConfigError(f"store.url: {self._paths[0]} cannot be used ({error.strerror})") from None
        except IntakeBusy:
            self.close()
            raise

    def append(self, records: Sequence[Record]) -> bool:
        """Whether the records are durable now. When not, nothing of them is in the file."""
        if self._is_torn or self._clock() < self._rests_until:
            return False
        body = self._encoder.encode(records)
        entry = HEAD.pack(self._number, len(body), zlib.crc32(body)) + body
        if len(entry) > MOST_BYTES or not self._write(entry):
            return False
        self._number += 1
        return True

    @property
    def has_spare(self) -> bool:
        """Whether the other file is empty."""
        return not self._sizes[1 - self._side]

    def turn(self) -> int:
        """Append to the other file from here on, which must be empty. Returns the side to `clear` when all that is in
        it is committed.
        """
        before, self._side, self._is_torn = self._side, 1 - self._side, False
        return before

    def clear(self, side: int) -> None:
        """Everything on this side is in the store."""
        try:
            os.ftruncate(self._files[side], 0)
        except OSError as error:
            logger.warning("%s cannot be emptied: %s", self._paths[side], error.strerror)
        else:
            self._sizes[side] = 0

    def take_in(self, num_records: int, keep: Callable[[list[Record]], None]) -> None:
        """Give `keep` what an earlier run left, about so many records at a time, and forget it. Nothing is forgotten
        when `keep` raises.
        """
        for batch in self.left_over(num_records):
            keep(batch)
        for side in SIDES:
            self.clear(side)

    def left_over(self, num_records: int) -> Iterator[list[Record]]:
        """What an earlier run left, in its order, about so many records at a time. Before anything is appended.

        Of what was being written when the process was killed nobody was told, and it is left out.
        """
        decoder = msgspec.msgpack.Decoder(list[Record])
        batch: list[Record] = []
        for _, body in sorted(entry for side in SIDES for entry in self._entries(side)):
            batch += decoder.decode(body)
            if len(batch) >= num_records:
                yield batch
                batch = []
        if batch:
            yield batch

    def close(self) -> None:
        """What is in the files stays there."""
        for file in self._files:
            os.close(file)
        self._files = []

    def _write(self, entry: bytes) -> bool:
        file, size = self._files[self._side], self._sizes[self._side]
        began_at = self._clock()
        try:
            num_written = os.write(file, entry)
        except OSError as error:
            num_written = 0
            logger.debug("%s takes nothing: %s", self._paths[self._side], error.strerror)
        if self._clock() - began_at > LONGEST_S:
            self._rests_until = self._clock() + REST_S
        if num_written == len(entry):
            self._sizes[self._side] = size + num_written
            return True
        self._rests_until = self._clock() + REST_S
        self._is_torn = True  # what came after a part of an entry would not be found
        with contextlib.suppress(OSError):
            os.ftruncate(file, size)
            self._is_torn = False
        return False

    def _entries(self, side: int) -> Iterator[tuple[int, bytes]]:
        content = self._paths[side].read_bytes()
        at = 0
        while at + HEAD.size <= len(content):
            number, length, checksum = HEAD.unpack_from(content, at)
            at += HEAD.size
            body = content[at : at + length]
            if len(body) != length or zlib.crc32(body) != checksum:
                break
            yield number, body
            at += length
        else:
            return
        logger.warning("%s ends with an entry that was not written whole, and is left out", self._paths[side])
