"""Tenants, projects, keys, limits and prices in memory, as fresh as the store allows.

SQLite is asked at each request whether anything moved, for a few microseconds. On Postgres a thread listens, so that
the way of a request has no I/O; it also looks twice a second, in case a notification was lost. Either way a state is
read in one transaction and takes effect at once, as a whole.
"""

from __future__ import annotations

import logging
import math
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import closing

from sqlalchemy.engine.interfaces import DBAPIConnection, DBAPICursor
from sqlalchemy.exc import SQLAlchemyError

from gateway.errors import StoreUnavailable
from gateway.rules import Price, Rule
from gateway.snapshot import KeyEntry, Reading, Snapshot
from gateway.store import CHANNEL, Store
from gateway.virtual_keys import VirtualKey

log = logging.getLogger("laneway.front")

DATA_VERSION = "PRAGMA data_version"  # moves at every commit of another connection, those of the ledger too
BEGIN = {"sqlite": "BEGIN", "postgresql": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"}
SQLITE_PATIENCE_MS = 20  # of the event loop
LOOK_EVERY_S = 0.5
SILENT_S = 5.0  # a thread that has not seen the store for so long is stuck in it
RETRY_S = (0.1, 5.0)


class Directory:
    """What the store says of who may do what. To be started before it is asked; one thread asks."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] = time.monotonic,
        *,
        look_every_s: float = LOOK_EVERY_S,
        before: Callable[[Snapshot], None] = lambda _: None,
    ) -> None:
        """`before` is told each new state before it takes effect, in the thread that read it; it may read the store."""
        self._store = store
        self._clock = clock
        self._look_every_s = look_every_s
        self._before = before
        self._reading = Reading(store.dialect)
        self._state = Snapshot()
        self._has_ever_had_key = True  # nobody takes a server for open before its store was read
        self._fresh_at = -math.inf
        self._is_failing = False
        self._cursor: DBAPICursor | None = None  # SQLite's, of a connection that only reads
        self._data_version = -1
        self._asking_thread = 0  # the first that asked: two at once on one connection of SQLite end the process
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Read everything, and follow what changes. Raises `StoreUnavailable`, or what else the driver raises."""
        connection = self._store.raw_connection()
        try:
            cursor = connection.cursor()
            self._catch_up(cursor)
        except BaseException:
            connection.close()
            raise
        self._has_ever_had_key = bool(self._state.keys)
        self._note_success()
        if self._store.dialect == "sqlite":
            cursor.execute(f"PRAGMA busy_timeout = {SQLITE_PATIENCE_MS}")
            self._cursor = cursor
        else:
            self._thread = threading.Thread(target=self._follow, args=(connection,), name="directory", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Follow no more."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
        if self._cursor is not None:
            self._cursor.connection.close()
            self._cursor = None

    def freshen(self) -> None:
        """See what was committed before this call (SQLite), or nothing to do (Postgres).

        Raises `RuntimeError` in another thread than the one that asked first, and nothing else.
        """
        if self._cursor is None:
            return
        if self._asking_thread != (thread := threading.get_ident()):
            if self._asking_thread:
                raise RuntimeError("the directory was asked from a second thread")
            self._asking_thread = thread
        try:
            version = self._cursor.execute(DATA_VERSION).fetchone()[0]
            if version != self._data_version:
                self._catch_up(self._cursor)
                self._data_version = version
        except (sqlite3.Error, SQLAlchemyError, StoreUnavailable) as error:
            self._data_version = -1
            self._note_failure(error)
        else:
            self._note_success()

    @property
    def state(self) -> Snapshot:
        """All of it, as of one revision. Another object after each change."""
        return self._state

    @property
    def pepper(self) -> bytes:
        """What secrets are digested with."""
        return self._store.pepper()

    @property
    def has_ever_had_key(self) -> bool:
        """Whether there ever was a key, also when all are revoked or expired by now."""
        return self._has_ever_had_key

    @property
    def is_away(self) -> bool:
        """Whether the store could not be read when it was last tried."""
        return self._is_failing or (self._thread is not None and self.age_s > SILENT_S)

    @property
    def age_s(self) -> float:
        """Seconds since this was last known to be what the store has."""
        return self._clock() - self._fresh_at

    def find(self, digest: bytes) -> KeyEntry | None:
        """The key with this digest, revoked and expired ones too."""
        return self._state.digests.get(digest)

    def rules(self, key: VirtualKey, model: str) -> tuple[Rule, ...]:
        """Every limit that a request of this key for this model comes under: tenant, project, key, model."""
        return self._state.rules(key, model)

    def all_rules(self) -> tuple[Rule, ...]:
        """Every limit."""
        return tuple(self._state.all_rules())

    def holds(self, rule: Rule) -> bool:
        """Whether the limit has not ended."""
        return any(row.id == rule.id for row in self._state.limits.get(rule.scope, ()))

    def price(self, model: str) -> Price | None:
        """Of this model, else of the model `*`."""
        return self._state.price(model)

    def weight(self, tenant: str) -> float:
        """Of a tenant among tenants; 1 for one that the store does not know."""
        row = self._state.tenants.get(tenant)
        return 1.0 if row is None else row.weight

    def _catch_up(self, cursor: DBAPICursor) -> None:
        """What changed is in effect afterwards."""
        cursor.execute(self._reading.revision)
        revision = cursor.fetchall()[0][0]
        known = self._state
        if revision == known.revision:
            return
        if revision < known.revision:  # an older copy was restored, or a replica that lagged took over
            known = Snapshot()
        cursor.execute(BEGIN[self._store.dialect])
        try:
            changes = self._reading.changes(cursor, known.revision)
        finally:
            cursor.execute("COMMIT")
        state = known.changed(changes)
        self._before(state)
        self._state = state
        if self._state.keys:
            self._has_ever_had_key = True

    def _follow(self, connection: DBAPIConnection | None) -> None:
        """The thread's life: listen, and come back to the store when it was away."""
        pause_s = RETRY_S[0]
        while not self._stopping.is_set():
            try:
                with closing(connection or self._store.raw_connection()) as connection:
                    pause_s = RETRY_S[0]
                    self._listen(connection)
            except Exception as error:  # whatever it was: a thread that ends would leave the directory to age
                self._note_failure(error)
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, RETRY_S[1])
            connection = None

    def _listen(self, connection: DBAPIConnection) -> None:
        cursor = connection.cursor()
        cursor.execute(f"LISTEN {CHANNEL}")
        while not self._stopping.is_set():
            self._catch_up(cursor)
            self._note_success()
            for _ in connection.notifies(timeout=self._look_every_s, stop_after=1):
                pass

    def _note_success(self) -> None:
        self._fresh_at = self._clock()
        if self._is_failing:
            self._is_failing = False
            log.info("the store can be read again")

    def _note_failure(self, error: Exception) -> None:
        if not self._is_failing:
            self._is_failing = True
            reason = str(error).partition("\n")[0]
            log.warning("the store cannot be read, what is known of it is %.0f s old: %s", self.age_s, reason)
