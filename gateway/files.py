"""Files that clients keep here: their bytes in a folder, what they are in the store.

A file is there when its row is. Its bytes are written beside their place, synced and renamed before the row is made,
and removed after the row is gone; what a crash leaves without a row is removed at the next start.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct
from sqlalchemy import Connection, Select, Table, delete, or_, select

from backends.errors import ConfigError
from gateway import log
from gateway.errors import BodyTooLarge, Conflict, NoSuchObject, StoreUnavailable
from gateway.request_id import new_id
from gateway.store import Store
from gateway.tables import batches, files

PREFIX = "file-"
MARK = "store"  # a file in the folder: whose it is
OURS = re.compile(r"file-[0-9a-f]{32}(\.part)?")  # names that may be removed from the folder
PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")  # that a client may give
OUTPUT = "batch_output"
OPEN_BATCHES = ("validating", "in_progress", "finalizing", "cancelling")  # they still read their input
MIB = 1 << 20
SWEPT_AT_ONCE = 100

logger = logging.getLogger(f"{log.ROOT}.front")

RowT = TypeVar("RowT", bound=tuple[Any, ...])


class FileOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[files]`: the bytes of what clients upload, and of what batches write.

    `folder` is where they are; without it, `FILE-files` beside the SQLite file, or beside the spool with Postgres. One
    file has at most `max_mb` MiB.
    """

    folder: Annotated[str, Meta(min_length=1)] | None = None
    max_mb: Annotated[int, Meta(ge=1, le=16384)] = 200


class StoredFile(Struct, frozen=True, kw_only=True):
    """A row of `files`. `created_at` and `expires_at` are in Unix seconds; None: it stays until it is deleted."""

    id: str
    tenant: str
    filename: str
    purpose: str
    bytes: int
    created_at: int
    expires_at: int | None


class Page(Struct, frozen=True, kw_only=True):
    """What a listing asks for: at most `limit` objects behind the id `after`, the newest first or the oldest."""

    limit: int
    after: str | None = None
    is_ascending: bool = False

    def of(self, query: Select[RowT], table: Table) -> Select[RowT]:
        """`query` of one object more than the page has, which says that there is more. Ids grow with time."""
        if self.after is not None:
            query = query.where(table.c.id > self.after if self.is_ascending else table.c.id < self.after)
        return query.order_by(table.c.id if self.is_ascending else table.c.id.desc()).limit(self.limit + 1)


class Draft:
    """Bytes on their way into the folder, which nobody sees yet. To be closed, which any thread may do."""

    def __init__(self, folder: Path, max_bytes: float) -> None:
        """Raises `StoreUnavailable` when the folder takes nothing; so do `write` and `finish`."""
        self.id = f"{PREFIX}{new_id()}"
        self.size = 0
        self._max_bytes = max_bytes
        self._path = folder / self.id
        self._part = folder / f"{self.id}.part"
        with _disk_is_store():
            self._file = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        self._using = threading.Lock()  # a write may go on in its thread when whoever asked for it is gone
        self._is_closed = False

    def write(self, piece: bytes) -> None:
        """Append. Raises `BodyTooLarge` when that makes it larger than a file may be."""
        self.size += len(piece)
        if self.size > self._max_bytes:
            raise BodyTooLarge(
                f"The file is larger than {self._max_bytes} bytes, the most that this server keeps.", param="file"
            )
        with self._using, _disk_is_store():
            rest = memoryview(piece)
            while rest and not self._is_closed:
                rest = rest[os.write(self._file, rest) :]

    def finish(self) -> None:
        """Durable under its own name; without a row it is still no file."""
        with self._using, _disk_is_store():
            if self._is_closed:
                raise StoreUnavailable("The upload was given up.")
            os.fsync(self._file)
            self._part.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)

    def close(self) -> None:
        """Let go of it; what is not finished is gone."""
        with self._using:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._file)
                self._part.unlink(missing_ok=True)


class Files:
    """The files of all tenants. Everything here may block; any thread may call. `clock` gives Unix seconds."""

    def __init__(self, store: Store, options: FileOptions, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._max_bytes = options.max_mb * MIB
        self._clock = clock
        self.folder = Path(options.folder or _default_folder(store))

    def draft(self, *, is_capped: bool = True) -> Draft:
        """Room for a new file's bytes. Raises `StoreUnavailable`."""
        with _disk_is_store():
            self._claim()
        return Draft(self.folder, self._max_bytes if is_capped else math.inf)

    def keep(
        self, draft: Draft, tenant: str, *, filename: str, purpose: str, expires_after_s: int | None = None
    ) -> StoredFile:
        """A finished draft becomes a file. Raises `StoreUnavailable`, and then there is none."""
        with self._store.changing() as connection:
            return self.keep_within(
                connection, draft, tenant, filename=filename, purpose=purpose, expires_after_s=expires_after_s
            )

    def keep_within(
        self,
        connection: Connection,
        draft: Draft,
        tenant: str,
        *,
        filename: str,
        purpose: str,
        expires_after_s: int | None = None,
    ) -> StoredFile:
        """As `keep`, together with whatever else the transaction changes."""
        now = int(self._clock())
        file = StoredFile(
            id=draft.id,
            tenant=tenant,
            filename=filename,
            purpose=purpose,
            bytes=draft.size,
            created_at=now,
            expires_at=None if expires_after_s is None else now + expires_after_s,
        )
        connection.execute(files.insert().values(msgspec.structs.asdict(file)))
        return file

    def find(self, tenant: str, file_id: str) -> StoredFile:
        """A tenant's file. Raises `NoSuchObject`, also for another tenant's, and for one whose time is over."""
        with self._store.reading() as connection:
            return self.find_within(connection, tenant, file_id)

    def find_within(self, connection: Connection, tenant: str, file_id: str) -> StoredFile:
        """As `find`, in a transaction that is open."""
        row = connection.execute(self._of(tenant).where(files.c.id == file_id)).mappings().first()
        if row is None:
            raise no_such_file(file_id)
        return StoredFile(**row)

    def page(self, tenant: str, page: Page, purpose: str | None = None) -> tuple[list[StoredFile], bool]:
        """A tenant's files, and whether there are more."""
        query = self._of(tenant)
        if purpose is not None:
            query = query.where(files.c.purpose == purpose)
        with self._store.reading() as connection:
            found = [StoredFile(**row) for row in connection.execute(page.of(query, files)).mappings()]
        return found[: page.limit], len(found) > page.limit

    def content(self, tenant: str, file_id: str) -> tuple[StoredFile, Path]:
        """A tenant's file and where its bytes are. Raises `NoSuchObject`, also when they are lost."""
        file, path = self.find(tenant, file_id), self.path(file_id)
        if not path.is_file():
            logger.error("the bytes of %s are not in the folder of files any more", file_id)
            raise no_such_file(file_id)
        return file, path

    def path(self, file_id: str) -> Path:
        """Where the bytes of a file are. Who has opened them may read on when it is deleted."""
        return self.folder / file_id

    def delete(self, tenant: str, file_id: str) -> None:
        """Raises `NoSuchObject`, and `Conflict` while a batch reads it."""
        with self._store.changing() as connection:
            self.find_within(connection, tenant, file_id)
            query = select(batches.c.id).where(batches.c.input_file_id == file_id, batches.c.status.in_(OPEN_BATCHES))
            batch_id = connection.execute(query.limit(1)).scalar()
            if batch_id is not None:
                raise Conflict(
                    f"The file {file_id} is the input of the batch {batch_id}, which is not over. "
                    "Cancel the batch, or delete the file later.",
                    param="id",
                    code="file_in_use",
                )
            connection.execute(delete(files).where(files.c.id == file_id))
        self._remove(file_id)

    def sweep(self) -> int:
        """Remove the files whose time is over, but for those that a batch reads; how many."""
        reading = select(batches.c.input_file_id).where(batches.c.status.in_(OPEN_BATCHES))
        is_over = files.c.expires_at <= int(self._clock())
        query = select(files.c.id).where(is_over, files.c.id.not_in(reading)).limit(SWEPT_AT_ONCE)
        num_removed = 0
        while True:
            with self._store.reading() as connection:
                is_any = connection.execute(query.limit(1)).first() is not None
            if not is_any:  # nearly always, and then nobody is kept from writing
                return num_removed
            with self._store.changing() as connection:
                removed = list(connection.execute(query).scalars())
                connection.execute(delete(files).where(files.c.id.in_(removed)))
            for file_id in removed:
                self._remove(file_id)
            num_removed += len(removed)

    def tidy(self) -> None:
        """Remove the bytes that no row speaks of. For a start, when nobody uploads.

        Raises `ConfigError` naming `files.folder` when the folder is another store's, which knows what this does not.
        """
        if not self.folder.exists():
            return
        try:
            self._claim()
            with self._store.reading() as connection:
                known = set(connection.execute(select(files.c.id)).scalars())
            for path in list(self.folder.iterdir()):
                if OURS.fullmatch(path.name) and path.name not in known:
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise ConfigError(f"files.folder: {self.folder} cannot be used ({error.strerror})") from None

    def _claim(self) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        mark, own = self.folder / MARK, self._store.identity()
        found = mark.read_text(encoding="ascii", errors="replace") if mark.exists() else ""
        if found not in ("", own):
            raise ConfigError(
                f"files.folder: {self.folder} belongs to another store; give this one a folder of its own"
            )
        if not found:
            mark.write_text(own, encoding="ascii")

    def _of(self, tenant: str) -> Select[Any]:
        is_there = or_(files.c.expires_at.is_(None), files.c.expires_at > int(self._clock()))
        return select(files).where(files.c.tenant == tenant, is_there)

    def _remove(self, file_id: str) -> None:
        try:
            (self.folder / file_id).unlink(missing_ok=True)
        except OSError as error:  # the next start tries again
            logger.warning("the bytes of %s cannot be removed: %s", file_id, error.strerror)


def no_such_file(file_id: str) -> NoSuchObject:
    """Nothing tells a file that never was from another tenant's."""
    return NoSuchObject(f"No such File object: {file_id[:200]}", param="id")


def _default_folder(store: Store) -> str:
    return f"{store.file if store.dialect == 'sqlite' else store.options.spool}-files"


@contextlib.contextmanager
def _disk_is_store() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        logger.warning("the folder of files takes nothing: %s", error.strerror)
        raise StoreUnavailable("Files cannot be kept now. Try again later.") from error
