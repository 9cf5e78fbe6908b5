"""A bounded local file that keeps the ledger's records, in their order, while Postgres is away."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from backends.errors import ConfigError
from gateway import log
from gateway.connections import Durability
from gateway.events import Record

BUSY_TIMEOUT_S = 5.0
PAGE_BYTES = 4096
FULL_FROM = 0.9  # of the bound: the rest is for requests that are running when nothing new is let in any more
MAX_BATCH_BYTES = 8 << 20

_CREATE = """
CREATE TABLE IF NOT EXISTS groups (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    num_records INTEGER NOT NULL,
    is_readable INTEGER NOT NULL DEFAULT 1,
    records BLOB NOT NULL
)
"""

logger = logging.getLogger(f"{log.ROOT}.ledger")


class SpoolFailed(Exception):
    """The spool is full, or its file cannot be used. The message says which, and names the file."""


class Batch(Struct, frozen=True):
    """The oldest records of a spool: those of the groups up to number `last`."""

    last: int
    records: list[Record]


class Spool:
    """Groups of records in a SQLite file that only its owner may read.

    For one thread at a time; `num_records`, `is_empty` and `is_full` may be asked by any. Several processes may use one
    file: each ships what it finds there, and what is shipped twice changes nothing twice.
    """

    def __init__(self, path: Path, max_mb: int, durability: Durability = "normal") -> None:
        """Open or make the file. Raises `ConfigError` naming `store.spool`."""
        self._path = path
        self._max_pages = max_mb * (1 << 20) // PAGE_BYTES
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[Record])
        self.num_records = 0
        self.is_full = False
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            path.chmod(0o600)
            self._connection = sqlite3.connect(
                path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
            self._set_up(durability)
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"store.spool: {path} cannot be used ({error}); name another file") from None

    def _set_up(self, durability: Durability) -> None:
        for statement in (
            f"PRAGMA page_size = {PAGE_BYTES}",
            "PRAGMA journal_mode = WAL",
            f"PRAGMA synchronous = {durability}",
            f"PRAGMA max_page_count = {self._max_pages}",
            _CREATE,
        ):
            self._connection.execute(statement).close()
        self._count_records()
        self._measure()

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be shipped."""
        return self.num_records == 0

    def append(self, records: Sequence[Record]) -> None:
        """Keep a group after all others; it is durable when this returns. Raises `SpoolFailed`."""
        with self._failing():
            row = (len(records), self._encoder.encode(records))
            self._connection.execute("INSERT INTO groups (num_records, records) VALUES (?, ?)", row)
            self.num_records += len(records)
            self._measure()

    def oldest(self, num_records: int) -> Batch:
        """The oldest groups, at least one, until they have `num_records`; none when it is empty. Raises `SpoolFailed`.

        A group that cannot be read is put aside in the file, so that it holds up no other.
        """
        last, records, size = 0, list[Record](), 0
        query = "SELECT number, records FROM groups WHERE is_readable ORDER BY number"
        with self._failing(), contextlib.closing(self._connection.execute(query)) as groups:
            for number, group in groups:
                records += self._read(number, group)
                last, size = number, size + len(group)
                if len(records) >= num_records or size >= MAX_BATCH_BYTES:
                    break
        return Batch(last, records)

    def _read(self, number: int, group: bytes) -> list[Record]:
        try:
            return self._decoder.decode(group)
        except msgspec.MsgspecError as error:
            logger.error("group %d in %s cannot be read (%s) and is put aside there", number, self._path, error)
            self._connection.execute("UPDATE groups SET is_readable = 0 WHERE number = ?", (number,))
            self._count_records()
            return []

    def remove(self, batch: Batch) -> None:
        """Forget what was shipped; the disk is given back when that was all. Raises `SpoolFailed`."""
        shipped = "DELETE FROM groups WHERE is_readable AND number <= ? RETURNING num_records"
        with self._failing():
            self.num_records -= sum(num for (num,) in self._connection.execute(shipped, (batch.last,)).fetchall())
            if self.num_records <= 0 or not batch.records:
                self._count_records()  # others may have added or removed some
            if self.is_empty:
                self._connection.execute("VACUUM")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").close()
            self._measure()

    def close(self) -> None:
        """What is in the file stays there."""
        self._connection.close()

    def _count_records(self) -> None:
        count = "SELECT coalesce(sum(num_records), 0) FROM groups WHERE is_readable"
        [self.num_records] = self._connection.execute(count).fetchone()

    def _measure(self) -> None:
        """By the pages in use: those of removed groups are used again."""
        [in_file] = self._connection.execute("PRAGMA page_count").fetchone()
        [free] = self._connection.execute("PRAGMA freelist_count").fetchone()
        self.is_full = in_file - free >= self._max_pages * FULL_FROM

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise SpoolFailed(f"the spool {self._path} (store.spool) failed: {error}") from error
