"""The one thread that writes the ledger: all that is queued at a moment is one group, and one transaction.

In front of SQLite an intake makes records durable at once, and the thread takes its time; see `docs/decisions/0014`.
"""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec
from msgspec import Struct

from backends.errors import ConfigError
from gateway import journal, log
from gateway.connections import is_away
from gateway.errors import StoreUnavailable
from gateway.events import Record, Settled
from gateway.intake import Intake, IntakeBusy
from gateway.link import FIRST_PAUSE_S, LONGEST_PAUSE_S, Link, LocalLink, RemoteLink
from gateway.spool import Spool, SpoolFailed
from gateway.store import DBAPIConnection, Store

GROUP_RECORDS = 1000  # a transaction has about so many at most
GATHER_S = 0.05  # what is durable already waits for so long, so that many share a transaction
MANY = 64  # groups are so many
MANY_TAKE_S = 0.05  # or longer, or they share commits anyway, and the intake is only one more write
INTAKE_WAIT_S = 5.0  # for another process, which only takes in what a dead server left
LOG_EVERY_S = 60.0
ANSWER_S = 5.0  # Postgres that does not answer for longer is away
STOP_S = 10.0
FLUSH_S = 1.0  # a store that takes nothing for so long fails those who ask it soon enough
MAX_ERROR_CHARS = 300

logger = logging.getLogger(f"{log.ROOT}.ledger")

ResultT = TypeVar("ResultT")


class WriterState(Struct, frozen=True, kw_only=True):
    """For live views. `queued` submits wait; `spooled` records wait in the spool; `groups` and `records` were committed
    to the store, `rejected` records could not be. `last_error` says why the store is away; None while it is not.
    """

    queued: int
    spooled: int
    groups: int
    records: int
    rejected: int
    last_error: str | None
    store_is_away: bool


class _Submit(Struct, frozen=True, gc=False):
    records: Sequence[Record]
    done: Callable[[], None] | None = None
    is_in_intake: bool = False


class Writer:
    """Takes records from any thread and makes them durable in their order, in the store or in the spool.

    No record is dropped while the process lives: while neither store nor spool takes one, it and all after it wait, and
    `is_accepting` is False. Only a record that the store refuses for the record's own sake is put into the log instead.
    """

    def __init__(
        self, store: Store, *, clock: Callable[[], float] = time.monotonic, answer_s: float = ANSWER_S
    ) -> None:
        self._store = store
        self._clock = clock
        self._queue: queue.SimpleQueue[_Submit | Callable[[], None]] = queue.SimpleQueue()
        is_local = store.dialect == "sqlite"
        self._link: Link = LocalLink(store) if is_local else RemoteLink(store, self._wake, clock, answer_s)
        self._spool: Spool | None = None
        self._intake: Intake | None = None
        self._came_at = deque([-math.inf] * MANY, MANY)
        self._hurry = threading.Event()  # somebody waits for what is queued
        self._thread = threading.Thread(target=self._run, name="laneway-writer", daemon=True)
        self._closing = threading.Lock()
        self._is_closed = self._is_ending = self._is_stuck = False
        self._giving_up = threading.Event()
        self._num_groups = self._num_records = self._num_rejected = 0
        self._num_submitted = self._num_kept = 0
        self._num_awaited = 0  # submits on their way that are not in the intake
        self._last_error: str | None = None
        self._quiet_until = -math.inf

    def start(self) -> None:
        """Ship what an earlier run left in the intake, and of the spool what the store takes, then write what comes.

        Raises `ConfigError` when the files of the spool or of the intake cannot be used, and `StoreUnavailable` when
        the store does not take what is in the intake.
        """
        options = self._store.options
        if self._store.dialect == "sqlite":
            self._intake = self._take_in()
        else:
            self._spool = Spool(Path(options.spool), options.spool_max_mb, options.durability)
            if not self._spool.is_empty:
                logger.info("%d records of an earlier run are in %s", self._spool.num_records, options.spool)
        self._link.start()
        self._greet()
        while self._can_ship and self._ship():
            pass
        self._thread.start()

    def stop(self, timeout_s: float = STOP_S) -> None:
        """Take nothing more and write what is queued, within `timeout_s`; what is in the spool then is kept there."""
        with self._closing:
            is_first, self._is_closed = not self._is_closed, True
        if is_first and self._thread.is_alive():
            self._queue.put(self._end)
            self._hurry.set()
            self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._giving_up.set()
            self._thread.join(LONGEST_PAUSE_S)
            logger.error("stopped with %d submits written nowhere: %s", self.state.queued, self._last_error)
        if not self._thread.is_alive():
            self._link.stop()
            for files in (self._spool, self._intake):
                if files is not None:
                    files.close()

    def submit(self, records: Sequence[Record], done: Callable[[], None] | None = None) -> None:
        """Queue records to be made durable together; never blocks. `done` is called then, in the writer's thread."""
        self._put(_Submit(records, done))

    def write_ahead(self, records: Sequence[Record]) -> bool:
        """Make records durable at once, in the caller's thread, if that is possible and quicker; else say False, and
        `submit` is right. They are in the store `GATHER_S` later. For the one thread that submits.
        """
        if self._intake is None or self._store.options.durability == "full" or not records or self._is_crowded():
            return False
        if self._num_awaited:  # and must not be overtaken
            return False
        with self._closing:
            if self._is_closed or not self._intake.append(records):
                return False
            self._num_submitted += 1
            self._queue.put(_Submit(records, is_in_intake=True))
        return True

    def _is_crowded(self) -> bool:
        now = self._clock()
        took_s = now - self._came_at[0]
        self._came_at.append(now)
        return took_s < MANY_TAKE_S

    def between(self, read: Callable[[DBAPIConnection], ResultT]) -> Future[ResultT]:
        """What `read` returns or raises, run in the writer's thread when all that was submitted before is committed,
        and nothing that is submitted later. `StoreUnavailable` while the store is away or the spool is not shipped.
        """
        future: Future[ResultT] = Future()
        self._put(partial(self._answer, read, future))
        return future

    def flush(self, timeout_s: float = FLUSH_S) -> None:
        """Wait until all that was submitted before is in the store, or the time is up. Not for the event loop."""
        with contextlib.suppress(TimeoutError, CancelledError, StoreUnavailable, RuntimeError):
            self.between(lambda _: None).result(timeout_s)

    @property
    def is_accepting(self) -> bool:
        """False when what is submitted could wait long to become durable: nothing new should be begun then."""
        is_full = self._spool is not None and self._spool.is_full and self._last_error is not None
        return not self._is_stuck and not is_full

    @property
    def state(self) -> WriterState:
        """As it is now; any thread may ask."""
        return WriterState(
            queued=self._num_submitted - self._num_kept,
            spooled=0 if self._spool is None else self._spool.num_records,
            groups=self._num_groups,
            records=self._num_records,
            rejected=self._num_rejected,
            last_error=self._last_error,
            store_is_away=self._last_error is not None,
        )

    def _put(self, item: _Submit | Callable[[], None]) -> None:
        with self._closing:  # so that nothing comes after the end
            if self._is_closed:
                raise RuntimeError("the writer has been stopped")
            if isinstance(item, _Submit):
                self._num_submitted += 1
                self._num_awaited += 1
            self._queue.put(item)
        if not self._hurry.is_set():
            self._hurry.set()

    def _run(self) -> None:
        while not self._giving_up.is_set() and (not self._is_ending or self._can_ship or self._queue.qsize()):
            try:
                self._turn()
            except Exception:  # this thread must not end: nobody would write any more
                logger.exception("a turn of the ledger's writer failed")

    def _turn(self) -> None:
        group, then = self._next_group()
        if group and not self._keep(group):
            return
        if then is not None:
            then()
        if self._can_ship:
            self._ship()

    def _next_group(self) -> tuple[list[_Submit], Callable[[], None] | None]:
        """What is queued, up to the next thing to be done at its place. Waits when there is nothing else to do."""
        group: list[_Submit] = []
        num_records = 0
        is_idle = not self._is_ending and not self._can_ship
        while num_records < GROUP_RECORDS and (is_idle or self._queue.qsize()):
            item = self._queue.get()
            if not isinstance(item, _Submit):
                return group, item
            if item.is_in_intake and not group:
                self._gather()
            group.append(item)
            num_records += len(item.records)
            is_idle = False
        return group, None

    def _gather(self) -> None:
        """Let more come, unless somebody waits. The side of the intake that has it is cleared when it is committed."""
        assert self._intake is not None
        if not self._intake.has_spare:
            return
        self._hurry.wait(GATHER_S)
        self._hurry.clear()
        with self._closing:
            self._queue.put(partial(self._intake.clear, self._intake.turn()))

    def _keep(self, group: Sequence[_Submit]) -> bool:
        """Make a group durable, however long that takes, and tell those who wait. False when time is up."""
        records = [record for submit in group for record in submit.records]
        pause_s = FIRST_PAUSE_S
        while records and not self._commit_or_spool(records):
            self._is_stuck = True
            if self._giving_up.wait(pause_s):
                return False
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        self._is_stuck = False
        num_awaited = sum(not submit.is_in_intake for submit in group)
        with self._closing:
            self._num_kept += len(group)
            self._num_awaited -= num_awaited
        for submit in group:
            if submit.done is not None:
                _call(submit.done)
        return True

    def _commit_or_spool(self, records: Sequence[Record]) -> bool:
        if self._spool is None:
            return self._commit(records)
        if self._spool.is_empty and self._commit(records):
            return True
        try:
            self._spool.append(records)
        except SpoolFailed as error:
            self._note(error)
            if self._can_ship:
                self._ship()  # which makes room
            return False
        return True

    def _take_in(self) -> Intake:
        try:
            intake = Intake(self._store.file, INTAKE_WAIT_S)
        except IntakeBusy as error:
            raise ConfigError(f"store.url: {error} is in use by another process; try again") from None
        try:
            intake.take_in(GROUP_RECORDS, self._keep_left_over)
        except BaseException:
            intake.close()
            raise
        return intake

    def _keep_left_over(self, records: Sequence[Record]) -> None:
        if not self._commit(records):
            raise StoreUnavailable(f"the store does not take what {self._store.file}-intake has for it")

    @property
    def _can_ship(self) -> bool:
        return self._spool is not None and not self._spool.is_empty and self._link.is_up

    def _ship(self) -> bool:
        """Commit the oldest that is in the spool, and only then take it out: killed in between, it is shipped again."""
        assert self._spool is not None
        try:
            batch = self._spool.oldest(GROUP_RECORDS)
            if batch.records and not self._commit(batch.records):
                return False
            self._spool.remove(batch)
        except SpoolFailed as error:
            self._note(error)
            self._giving_up.wait(LONGEST_PAUSE_S)
            return False
        return True

    def _commit(self, records: Sequence[Record]) -> bool:
        """False when the store does not take them now. It may have some all the same: they will change nothing then."""
        try:
            with self._link.use() as connection:
                self._write(connection, records)
        except Exception as error:
            self._note(error)
            return False
        self._note_success()
        return True

    def _write(self, connection: DBAPIConnection, records: Sequence[Record]) -> None:
        """As one transaction; as several when a record cannot be written for its own sake, to find it."""
        try:
            journal.commit(connection, records, self._store.dialect)
        except Exception as error:
            if not records or not _is_of_a_record(error, connection):
                raise
            if len(records) == 1:
                self._reject(records[0], error)
                return
            middle = len(records) // 2
            self._write(connection, records[:middle])
            self._write(connection, records[middle:])
        else:
            self._num_groups += bool(records)
            self._num_records += len(records)

    def _reject(self, record: Record, error: Exception) -> None:
        """The log is the only place left for it, but not for what a model said to somebody."""
        self._num_rejected += 1
        shown = msgspec.structs.replace(record, answer=None, line=None) if isinstance(record, Settled) else record
        logger.error("a record cannot be written and is only here: %s (%s)", ascii(shown), error)

    def _answer(self, read: Callable[[DBAPIConnection], ResultT], future: Future[ResultT]) -> None:
        try:
            if not future.set_running_or_notify_cancel():
                return
            if self._spool is not None and not self._spool.is_empty:
                raise StoreUnavailable("the store is away, or was: records wait in the spool")
            with self._link.use() as connection:
                _resolve(future, read, connection)
                connection.rollback()  # what the read began; fails with the connection
        except Exception as error:
            if not future.done():
                future.set_exception(error)

    def _wake(self) -> None:
        self._queue.put(self._greet)

    def _greet(self) -> None:
        """Commit nothing: whether the store would take something, and the statements are made."""
        self._commit(())

    def _end(self) -> None:
        self._is_ending = True

    def _note(self, error: Exception) -> None:
        self._last_error = str(error.__cause__ or error).strip().partition("\n")[0][:MAX_ERROR_CHARS]
        now = self._clock()
        if now >= self._quiet_until:
            self._quiet_until = now + LOG_EVERY_S
            kept = "wait in memory" if self._spool is None else f"go to {self._store.options.spool}"
            logger.warning("the store does not take the ledger's records, which %s: %s", kept, self._last_error)

    def _note_success(self) -> None:
        if self._last_error is not None:
            self._last_error = None
            self._quiet_until = -math.inf
            logger.warning("the store takes the ledger's records again")


def _is_of_a_record(error: Exception, connection: DBAPIConnection) -> bool:
    """Whether a transaction failed for what is in it, so that to try again is in vain, and not for the store's sake."""
    if not isinstance(error, connection.Error):
        return True  # of Python: a value that no column can hold
    if isinstance(error, connection.DataError | connection.IntegrityError):
        return True
    is_of_the_driver = isinstance(error, connection.ProgrammingError | connection.InterfaceError)
    return is_of_the_driver and not getattr(error, "sqlstate", None) and not getattr(connection, "closed", False)


def _resolve(future: Future[ResultT], read: Callable[[DBAPIConnection], ResultT], connection: DBAPIConnection) -> None:
    try:
        future.set_result(read(connection))
    except Exception as error:
        future.set_exception(StoreUnavailable("the store is away; try again later") if is_away(error) else error)


def _call(done: Callable[[], None]) -> None:
    try:
        done()
    except Exception:
        logger.exception("what waited for a commit failed")
