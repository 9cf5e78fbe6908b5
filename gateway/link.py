"""The writer's connection to the store: one that mends by itself after it broke, and is cut when nothing answers."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from gateway import log
from gateway.errors import StoreUnavailable
from gateway.store import DBAPIConnection, Store

FIRST_PAUSE_S = 0.05  # between two tries; doubled up to the longest
LONGEST_PAUSE_S = 1.0
CHECKPOINT_S = 0.5
LOG_PAGES = 8000  # 32 MiB
WATCH_S = 0.5  # how often a silent server is looked for

logger = logging.getLogger(f"{log.ROOT}.ledger")


class Link(Protocol):
    """A connection that is used by one thread at a time."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    @property
    def is_up(self) -> bool:
        """Whether there is a connection to try something on."""
        ...

    def use(self) -> contextlib.AbstractContextManager[DBAPIConnection]:
        """The connection; closed when the block raises. Raises `StoreUnavailable` when there is none."""
        ...


class LocalLink:
    """To SQLite: opened in the thread that uses it, whenever it has to be.

    What was committed is copied from the log into the database by a thread of its own. SQLite would have a commit do
    it, every thousand pages, and that commit would wait for the disk; now one in eight thousand pages finds a rest.
    """

    is_up = True

    def __init__(self, store: Store) -> None:
        self._store = store
        self._connection: DBAPIConnection | None = None
        self._is_used = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="laneway-writer-link", daemon=True)

    def start(self) -> None:
        """Nothing is opened yet."""
        self._thread.start()

    def stop(self) -> None:
        """Close the connection."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._close()

    @contextlib.contextmanager
    def use(self) -> Iterator[DBAPIConnection]:
        """The connection; closed when the block raises. Raises `StoreUnavailable` when the file cannot be opened."""
        if self._connection is None:
            self._connection = self._store.raw_connection()
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}").close()
        self._is_used = True
        try:
            yield self._connection
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                with contextlib.closing(self._store.raw_connection()) as connection:
                    self._copy_on(connection)
            except Exception as error:  # whatever it is, the next commit meets it as well
                logger.debug("the log of the store was not copied: %s", error)
                self._over.wait(CHECKPOINT_S)

    def _copy_on(self, connection: DBAPIConnection) -> None:
        while not self._over.wait(CHECKPOINT_S):
            if self._is_used:
                self._is_used = False
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").close()


class RemoteLink:
    """To Postgres: a thread of its own connects, again and again, so that nobody waits for a server that is away.

    It calls `on_up` after each time it connected. A use that lasts longer than `answer_s` is ended by shutting the
    socket down: a server that was stopped, or whose host vanished, would hold up its user for minutes.
    """

    def __init__(self, store: Store, on_up: Callable[[], None], clock: Callable[[], float], answer_s: float) -> None:
        self._store = store
        self._on_up = on_up
        self._clock = clock
        self._answer_s = answer_s
        self._connection: DBAPIConnection | None = None
        self._why = "not connected yet"
        self._pause_s = FIRST_PAUSE_S
        self._used_since: float | None = None
        self._lost = threading.Event()
        self._over = threading.Event()
        self._closing = threading.Lock()  # so that a socket is not shut down by a number that is another file's by now
        self._thread = threading.Thread(target=self._run, name="laneway-writer-link", daemon=True)

    @property
    def is_up(self) -> bool:
        """Whether there is a connection to try something on."""
        return self._connection is not None

    def start(self) -> None:
        """Connect once, for as long as that takes to fail at most, and go on in a thread."""
        self._connect()
        self._thread.start()

    def stop(self) -> None:
        """Close the connection, and make no more."""
        self._over.set()
        self._lost.set()
        if self._thread.is_alive():
            self._thread.join(LONGEST_PAUSE_S)  # it may just be connecting
        self._lose("stopped")

    @contextlib.contextmanager
    def use(self) -> Iterator[DBAPIConnection]:
        """The connection; closed when the block raises. Raises `StoreUnavailable` when there is none."""
        connection = self._connection
        if connection is None:
            raise StoreUnavailable(f"the store is away: {self._why}")
        self._used_since = self._clock()
        try:
            yield connection
        except BaseException as error:
            self._lose(str(error))
            raise
        finally:
            self._used_since = None
        self._pause_s = FIRST_PAUSE_S

    def _run(self) -> None:
        while not self._over.is_set():
            if self.is_up:
                self._lost.wait(WATCH_S)
                self._cut_when_silent()
            else:
                self._over.wait(self._pause_s)
                self._connect()
        self._lose("stopped")

    def _connect(self) -> None:
        # Only a use that worked resets the pause: a server may take connections and then refuse every statement.
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        try:
            connection = self._store.raw_connection()
        except Exception as error:
            self._why = str(error.__cause__ or error)
            return
        self._lost.clear()
        self._connection = connection
        self._on_up()

    def _lose(self, why: str) -> None:
        with self._closing:
            connection, self._connection = self._connection, None
            if connection is not None:
                self._why = why
                with contextlib.suppress(Exception):
                    connection.close()
        self._lost.set()

    def _cut_when_silent(self) -> None:
        with self._closing:
            since, connection = self._used_since, self._connection
            if since is None or connection is None or self._clock() - since < self._answer_s:
                return
            with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as server:
                server.shutdown(socket.SHUT_RDWR)  # the driver's wait for an answer ends with an error
