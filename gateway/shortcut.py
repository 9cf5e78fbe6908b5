"""Commits a small group where it is made, in the event loop, while that is quicker than to ask the writer's thread.

To hand a group to a thread and to be woken when it is durable costs more than to commit it: two threads wake up, and
the request goes on with cold caches. That pays only when many requests share the commit, or when it may take long. So
this is for SQLite without a sync at each commit, at rates at which requests come one by one; and it is left alone for a
while once a commit took long, or found the database locked.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from gateway import journal
from gateway.events import Record
from gateway.store import DBAPIConnection, Store

MANY = 64  # groups are so many
MANY_TAKE_S = 0.05  # or longer, or a thread commits several at once
LONGEST_S = 0.002  # that the loop may stand still for
REST_S = 10.0


class Shortcut:
    """A connection of the loop's own. One thread calls, and never while the writer's thread has something to write."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._is_possible = store.dialect == "sqlite" and store.options.durability == "normal"
        self._connection: DBAPIConnection | None = None
        self._came_at = deque([clock()] * MANY, MANY)
        self._rests_until = 0.0

    def is_worth_it(self) -> bool:
        """To be asked for each group, also for those that come while the thread is busy: it learns their rate."""
        now = self._clock()
        took_s = now - self._came_at[0]
        self._came_at.append(now)
        return self._is_possible and took_s >= MANY_TAKE_S and now >= self._rests_until

    def commit(self, records: Sequence[Record]) -> bool:
        """Whether the records are durable. When not, they may be or not; to write them again is right then."""
        began_at = self._clock()
        try:
            journal.commit(self._opened(), records, "sqlite")
        except Exception:  # whatever it is, the thread meets it too, and knows what to do
            self.close()
            self._rests_until = self._clock() + REST_S
            return False
        if self._clock() - began_at > LONGEST_S:
            self._rests_until = self._clock() + REST_S
        return True

    def close(self) -> None:
        """Until it is used again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _opened(self) -> DBAPIConnection:
        if self._connection is None:
            self._connection = self._store.raw_connection()
            self._connection.execute("PRAGMA busy_timeout = 0").close()  # whoever holds the lock: the thread waits
            self._connection.execute("PRAGMA wal_autocheckpoint = 0").close()  # the writer's link sees to it
        return self._connection
