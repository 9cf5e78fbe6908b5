from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from backends.errors import ConfigError
from gateway import journal
from gateway.errors import StoreUnavailable
from gateway.events import Charge, Record
from gateway.intake import SIDES, Intake
from gateway.spool import Spool
from gateway.store import DBAPIConnection, Store, StoreOptions
from gateway.writer import MANY, MANY_TAKE_S, Writer
from tests.records import admit, answer, note, request_id, settle, tables
from tests.stores import Postgres

PATIENCE_S = 30


@pytest.fixture
def writer(store: Store) -> Iterator[Writer]:
    with running(store) as writer:
        yield writer


@pytest.fixture
def remote(postgres_url: str, tmp_path: Path) -> Iterator[Store]:
    """A store on Postgres, with a small spool."""
    with closing(Store.open(StoreOptions(url=postgres_url, spool=f"{tmp_path}/spool.db", spool_max_mb=1))) as store:
        yield store


@contextlib.contextmanager
def running(store: Store, **options: Any) -> Iterator[Writer]:
    writer = Writer(store, **options)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


class Done:
    """Waits for submits."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._changed = threading.Condition()

    def of(self, number: int) -> Callable[[], None]:
        def done() -> None:
            with self._changed:
                self.numbers.append(number)
                self._changed.notify_all()

        return done

    def wait_for(self, num_submits: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.numbers) >= num_submits, PATIENCE_S)


def wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.005)


def num_events(connection: DBAPIConnection) -> int:
    [found] = connection.execute("SELECT count(*) FROM ledger_events").fetchone()
    return int(found)


def settled(store: Store) -> list[str]:
    return [row[0] for row in tables(store)["ledger_events"] if row[1] == 3]


def spooled(store: Store) -> list[Record]:
    with closing(Spool(Path(store.options.spool), 1)) as spool:
        return spool.oldest(10**9).records


def test_what_is_done_is_in_the_store(store: Store, writer: Writer) -> None:
    seen = []
    done = threading.Event()

    def look() -> None:
        seen.extend(settled(store))
        done.set()

    writer.submit([admit(1), settle(1)], look)

    assert done.wait(PATIENCE_S)
    assert seen == [request_id(1)]


def test_each_submit_is_done_once_and_in_order(store: Store, writer: Writer) -> None:
    done = Done()
    for number in range(300):
        writer.submit([admit(number), settle(number)], done.of(number))
    writer.submit([], done.of(300))
    done.wait_for(301)
    writer.stop()

    assert done.numbers == list(range(301))
    assert settled(store) == [request_id(number) for number in range(300)]
    assert writer.state.records == 600
    assert writer.state.groups <= 300
    assert writer.state.queued == 0


def test_what_is_queued_at_a_moment_is_one_transaction(store: Store) -> None:
    writer = Writer(store)
    for number in range(100):
        writer.submit([admit(number)])
    with contextlib.closing(store.raw_connection()):
        writer.start()
    writer.stop()

    assert (writer.state.records, writer.state.groups) == (100, 1)


def test_a_read_between_sees_all_that_was_submitted_before_it_and_nothing_later(store: Store) -> None:
    writer = Writer(store)
    answers = []
    for number in range(5):
        writer.submit([admit(2 * number), admit(2 * number + 1)])
        answers.append(writer.between(num_events))
    writer.start()
    writer.stop()

    assert [answer.result() for answer in answers] == [2, 4, 6, 8, 10]


def test_a_read_that_fails_tells_its_asker_and_no_other(store: Store, writer: Writer) -> None:
    failed = writer.between(lambda connection: connection.execute("SELECT 1 FROM nowhere"))
    assert "nowhere" in str(failed.exception(PATIENCE_S))

    done = Done()
    writer.submit([settle(1)], done.of(1))
    done.wait_for(1)
    assert settled(store) == [request_id(1)]


def test_stop_writes_all_that_is_queued_and_takes_nothing_more(store: Store) -> None:
    writer = Writer(store)
    for number in range(3000):
        writer.submit([settle(number)])
    writer.start()
    writer.stop()

    assert len(settled(store)) == 3000
    with pytest.raises(RuntimeError, match="stopped"):
        writer.submit([settle(3000)])
    writer.stop()


@pytest.mark.parametrize(
    "bad",
    [
        settle(50, [Charge("budget", 0, 2**70)]),
        settle(50, tenant="\ud800"),
        settle(50, tenant=None, answer=answer(50, "name", b"a poem")),
    ],
    ids=["number", "text", "null"],
)
def test_a_record_that_cannot_be_written_is_logged_and_holds_up_no_other(
    store: Store, writer: Writer, bad: Record, caplog: pytest.LogCaptureFixture
) -> None:
    done = Done()
    for number in range(100):
        writer.submit([bad if number == 50 else settle(number)], done.of(number))
    done.wait_for(100)

    assert settled(store) == [request_id(number) for number in range(100) if number != 50]
    assert writer.state.rejected == 1
    assert writer.state.store_is_away is False
    [line] = [record.getMessage() for record in caplog.records if record.name == "laneway.ledger"]
    assert request_id(50) in line
    assert "poem" not in line


def test_one_who_waits_and_fails_does_not_stop_the_writer(
    store: Store, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    done = Done()
    writer.submit([settle(1)], lambda: [][1])
    writer.submit([settle(2)], done.of(2))
    done.wait_for(1)

    assert settled(store) == [request_id(1), request_id(2)]
    assert "what waited for a commit failed" in caplog.text


def test_a_commit_whose_answer_was_lost_counts_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[Sequence[Record]] = []
    commit = journal.commit

    def lose_the_first(connection: DBAPIConnection, records: Sequence[Record], dialect: Any) -> None:
        commit(connection, records, dialect)
        if records and not lost:
            lost.append(records)
            raise connection.OperationalError("connection lost")

    monkeypatch.setattr(journal, "commit", lose_the_first)
    with running(store) as writer:
        done = Done()
        writer.submit([admit(1), settle(1, [Charge("budget", 0, 7)]), admit(2)], done.of(1))
        writer.submit([settle(2)], done.of(2))
        done.wait_for(2)

    found = tables(store)
    assert len(lost) == 1
    assert [row[8] for row in found["usage_hours"]] == [2]
    assert found["budget_windows"] == [("budget", 0, 0, 7)]
    assert found["open_requests"] == []


def test_the_next_run_goes_on_where_the_last_stopped(store: Store) -> None:
    with running(store) as writer:
        writer.submit([admit(1), note(1, 1)])
    with running(store) as writer:
        writer.submit([settle(1)])
        writer.submit([settle(1)])

    found = tables(store)
    assert len(found["ledger_events"]) == 3
    assert found["open_requests"] == []


# A file that takes nothing now: the writer keeps trying.


def without_patience(store: Store, monkeypatch: pytest.MonkeyPatch, *pragmas: str) -> None:
    """Connections of the writer fail at once where they would wait 10 s for a lock."""
    connect = store.raw_connection

    def raw_connection() -> DBAPIConnection:
        connection = connect()
        connection.execute("PRAGMA busy_timeout = 0")
        return connection

    monkeypatch.setattr(store, "raw_connection", raw_connection)


def test_a_locked_file_is_tried_again_until_it_is_free(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_patience(sqlite_store, monkeypatch)
    done = Done()
    with running(sqlite_store) as writer:
        with sqlite_store.changing():
            writer.submit([settle(1)], done.of(1))
            writer.submit([settle(2)], done.of(2))
            wait_until(lambda: not writer.is_accepting)
            away = writer.state
        done.wait_for(2)
        assert writer.is_accepting
        assert writer.state.last_error is None

    assert (away.store_is_away, away.last_error, away.queued) == (True, "database is locked", 2)
    assert settled(sqlite_store) == [request_id(1), request_id(2)]
    assert len([record for record in caplog.records if "does not take" in record.getMessage()]) == 1


def test_a_full_disk_loses_nothing_and_lets_nothing_new_begin(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite_store.raw_connection
    is_full = threading.Event()

    def raw_connection() -> DBAPIConnection:
        connection = connect()
        connection.execute(f"PRAGMA max_page_count = {1 if is_full.is_set() else 10**6}")
        return connection

    monkeypatch.setattr(sqlite_store, "raw_connection", raw_connection)
    is_full.set()
    done = Done()
    with running(sqlite_store) as writer:
        for number in range(500):
            writer.submit([settle(number)], done.of(number))
        wait_until(lambda: not writer.is_accepting)
        assert writer.state.last_error == "database or disk is full"
        is_full.clear()
        done.wait_for(500)

    assert done.numbers == list(range(500))
    assert len(settled(sqlite_store)) == 500


def test_stop_ends_in_time_and_says_what_it_could_not_write(
    sqlite_store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_patience(sqlite_store, monkeypatch)
    writer = Writer(sqlite_store)
    writer.start()
    with sqlite_store.changing():
        for number in range(3):
            writer.submit([settle(number)])
        writer.stop(timeout_s=0.05)

    assert "3 submits written nowhere: database is locked" in caplog.text


# Postgres away: what comes goes to the spool.


def test_connections_that_break_again_and_again_lose_and_double_nothing(
    remote: Store, caplog: pytest.LogCaptureFixture
) -> None:
    done = Done()
    kill = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND query NOT LIKE '%pg_terminate%'"
    )
    with running(remote) as writer:
        for number in range(400):
            writer.submit([admit(number)])
            writer.submit([settle(number, [Charge("budget", 0, 1)])], done.of(number))
            if number % 40 == 20:
                with remote.changing() as connection:
                    connection.execute(kill)
            time.sleep(0.001)
        done.wait_for(400)
        wait_until(lambda: writer.state.spooled == 0)

    found = tables(remote)
    assert "takes the ledger's records again" in caplog.text
    assert done.numbers == list(range(400))
    assert len(found["ledger_events"]) == 800
    assert [row[8:] for row in found["usage_hours"]] == [(400, 4000, 2000, 0, 0, 280_000)]
    assert found["budget_windows"] == [("budget", 0, 0, 400)]
    assert found["open_requests"] == []


def test_while_postgres_is_stopped_records_become_durable_in_the_spool_and_are_shipped_later(
    remote: Store, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    done = Done()
    with running(remote) as writer:
        writer.submit([admit(1), admit(2)], done.of(0))
        done.wait_for(1)
        postgres.stop()
        writer.submit([settle(1)], done.of(1))
        writer.submit([admit(3), settle(3)], done.of(2))
        done.wait_for(3)
        away = writer.state
        assert writer.is_accepting
        assert isinstance(writer.between(num_events).exception(PATIENCE_S), StoreUnavailable)

        postgres.start()
        wait_until(lambda: writer.state.spooled == 0)
        writer.submit([settle(2)], done.of(3))
        done.wait_for(4)
        assert writer.between(num_events).result(PATIENCE_S) == 6
        assert not writer.state.store_is_away

    assert (away.store_is_away, away.spooled) == (True, 3)
    assert settled(remote) == [request_id(number) for number in (1, 2, 3)]
    assert tables(remote)["open_requests"] == []
    assert len([record for record in caplog.records if "does not take" in record.getMessage()]) == 1


def test_what_comes_while_the_spool_is_shipped_comes_after_it(remote: Store) -> None:
    done = Done()
    with running(remote, answer_s=0.1) as writer, closing(remote.raw_connection()) as other:
        with other.transaction():
            other.execute("LOCK TABLE ledger_events")
            for number in range(2500):
                writer.submit([admit(number)], done.of(number))
            done.wait_for(2500)  # in the spool, more than goes into a transaction
            num_before = num_waiting(remote)
            wait_until(lambda: num_waiting(remote) > num_before)  # now the first of them are tried
            for number in reversed(range(2500)):
                writer.submit([settle(number)], done.of(number))
            between = writer.between(num_events)
        done.wait_for(5000)
        error = between.exception(PATIENCE_S)
        assert isinstance(error, StoreUnavailable) or between.result() == 5000  # never in the middle
        wait_until(lambda: writer.state.spooled == 0)
        assert writer.between(num_events).result(PATIENCE_S) == 5000

    assert tables(remote)["open_requests"] == []


def num_waiting(store: Store) -> int:
    """Connections that wait for a lock; those that the writer gave up do so for a while."""
    with store.reading() as connection:
        return int(connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one())


def test_a_spool_that_an_earlier_run_left_is_in_the_store_when_start_returns(remote: Store, postgres: Postgres) -> None:
    with running(remote) as writer:
        postgres.stop()
        for number in range(1500):
            writer.submit([admit(number), settle(number)])
    assert len(spooled(remote)) == 3000

    postgres.start()
    writer = Writer(remote)
    writer.submit([settle(9999)])
    writer.start()
    assert len(settled(remote)) >= 1500
    writer.stop()

    assert len(settled(remote)) == 1501
    assert spooled(remote) == []


def test_a_run_that_starts_without_postgres_takes_records_and_ships_them_when_it_is_there(
    remote: Store, postgres: Postgres
) -> None:
    done = Done()
    postgres.stop()
    with running(remote) as writer:
        assert writer.state.store_is_away
        writer.submit([settle(1)], done.of(1))
        done.wait_for(1)
        assert writer.state.spooled == 1
        postgres.start()
        wait_until(lambda: not writer.state.store_is_away and writer.state.spooled == 0)

    assert settled(remote) == [request_id(1)]


def test_a_batch_that_was_shipped_and_not_taken_out_when_the_process_died_counts_once(remote: Store) -> None:
    groups: list[list[Record]] = [[admit(1)], [settle(1, [Charge("budget", 0, 7)])], [admit(2), settle(2)], [admit(3)]]
    with closing(Spool(Path(remote.options.spool), 1)) as spool, closing(remote.raw_connection()) as connection:
        for group in groups:
            spool.append(group)
        journal.commit(connection, spool.oldest(3).records, remote.dialect)
    before = tables(remote)

    with running(remote):
        pass

    found = tables(remote)
    assert found["usage_hours"] == before["usage_hours"]
    assert found["budget_windows"] == [("budget", 0, 0, 7)]
    assert found["open_requests"] == [(request_id(3), "run")]


def test_with_the_spool_full_nothing_new_may_begin_and_nothing_is_lost(remote: Store, postgres: Postgres) -> None:
    done = Done()
    num_submits = 0

    with running(remote) as writer:

        def submit() -> None:
            nonlocal num_submits
            large = answer(num_submits, "name", bytes(20_000))
            writer.submit([settle(num_submits, answer=large)], done.of(num_submits))
            num_submits += 1

        postgres.stop()
        while writer.is_accepting:
            submit()
            done.wait_for(num_submits)
        submit()
        done.wait_for(num_submits)  # a running request still settles
        for _ in range(20):
            submit()
        wait_until(lambda: "disk is full" in str(writer.state.last_error))
        assert writer.state.queued > 0

        postgres.start()
        done.wait_for(num_submits)
        wait_until(lambda: writer.state.spooled == 0 and writer.is_accepting)

    assert done.numbers == list(range(num_submits))
    assert settled(remote) == [request_id(number) for number in range(num_submits)]


def test_a_server_that_does_not_answer_is_away(remote: Store) -> None:
    done = Done()
    with running(remote, answer_s=0.1) as writer:
        pid = writer.between(lambda connection: connection.info.backend_pid).result(PATIENCE_S)
        os.kill(pid, signal.SIGSTOP)
        try:
            writer.submit([settle(1)], done.of(1))
            done.wait_for(1)
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: writer.state.spooled == 0)

    assert settled(remote) == [request_id(1)]


class Unhurried:
    """A clock by which everything takes its time."""

    def __init__(self) -> None:
        self._ticks = itertools.count()

    def __call__(self) -> float:
        return 2 * next(self._ticks) * MANY_TAKE_S / MANY


def intake_bytes(store: Store) -> int:
    return sum(Path(f"{store.file}-intake-{side}").stat().st_size for side in SIDES)


def test_what_is_written_ahead_is_durable_at_once_and_soon_in_the_store(sqlite_store: Store) -> None:
    with running(sqlite_store) as writer, sqlite_store.changing():  # others have the store to themselves
        assert writer.write_ahead([admit(1), settle(1)])
        assert writer.write_ahead([admit(2)])
        assert tables(sqlite_store)["ledger_events"] == []
        assert intake_bytes(sqlite_store)
    assert settled(sqlite_store) == [request_id(1)]
    assert intake_bytes(sqlite_store) == 0


def test_a_flush_waits_until_it_is_in_the_store_and_nothing_of_it_stays_beside(sqlite_store: Store) -> None:
    with running(sqlite_store, clock=Unhurried()) as writer:
        for number in range(100):
            assert writer.write_ahead([admit(number), settle(number)])
        writer.flush(PATIENCE_S)
        assert len(settled(sqlite_store)) == 100
        assert writer.state.groups < 100
        assert writer.state.queued == 0
        wait_until(lambda: intake_bytes(sqlite_store) == 0)


def test_what_is_in_the_store_already_when_it_is_taken_in_changes_nothing(sqlite_store: Store) -> None:
    charge = Charge("budget", 0, 700)
    with closing(Intake(sqlite_store.file)) as intake:
        for number in range(3):
            assert intake.append([admit(number), settle(number, [charge])])
    with closing(sqlite_store.raw_connection()) as connection:
        journal.commit(connection, [admit(0), settle(0, [charge]), admit(1)], "sqlite")

    with running(sqlite_store):
        assert intake_bytes(sqlite_store) == 0
        found = tables(sqlite_store)
    assert settled(sqlite_store) == [request_id(number) for number in range(3)]
    assert [row[-1] for row in found["budget_windows"]] == [2100]
    assert [row[8] for row in found["usage_hours"]] == [3]
    assert found["open_requests"] == []


def test_what_a_killed_process_had_written_ahead_is_in_the_store_after_the_next_start(tmp_path: Path) -> None:
    """Killed while others had the store, so that nothing of it was committed."""
    code = (
        "import os, signal, sys\n"
        "from gateway.store import Store, StoreOptions\n"
        "from gateway.writer import MANY, MANY_TAKE_S, Writer\n"
        "from tests.records import admit, settle\n"
        "from tests.unit.gateway.test_writer import Unhurried\n"
        "store = Store.open(StoreOptions(url=sys.argv[1]))\n"
        "writer = Writer(store, clock=Unhurried())\n"
        "writer.start()\n"
        "with store.changing():\n"
        "    assert all(writer.write_ahead([admit(number), settle(number)]) for number in range(500))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    url = f"sqlite:///{tmp_path}/laneway.db"
    child = subprocess.run([sys.executable, "-c", code, url], timeout=60, check=False)
    assert child.returncode == -signal.SIGKILL

    with closing(Store.open(StoreOptions(url=url))) as store:
        assert settled(store) == []
        with running(store):
            pass
        assert settled(store) == [request_id(number) for number in range(500)]


def test_nothing_written_ahead_overtakes_what_waits_for_the_store(sqlite_store: Store) -> None:
    done = Done()
    with running(sqlite_store) as writer:
        with sqlite_store.changing():
            writer.submit([admit(1)], done.of(1))
            assert not writer.write_ahead([settle(1)])
        done.wait_for(1)
        assert writer.write_ahead([settle(1)])
    assert settled(sqlite_store) == [request_id(1)]


def test_who_waits_is_not_held_up_by_what_does_not(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.writer.GATHER_S", 3600.0)
    with running(sqlite_store) as writer:
        done = Done()
        for number in range(10):
            assert writer.write_ahead([admit(number)])
            writer.submit([settle(number)], done.of(number))
            done.wait_for(number + 1)
        assert len(settled(sqlite_store)) == 10
        assert writer.write_ahead([admit(10)])
        assert writer.between(num_events).result(PATIENCE_S) == 21


def test_what_comes_many_at_once_shares_commits_instead(sqlite_store: Store) -> None:
    now = 0.0
    with running(sqlite_store, clock=lambda: now) as writer:
        told = []
        for number in range(2 * MANY):
            told.append(writer.write_ahead([admit(number)]))
            now += MANY_TAKE_S / MANY / 2
        assert told == [True] * MANY + [False] * MANY
        for number in range(2 * MANY, 4 * MANY):
            told.append(writer.write_ahead([admit(number)]))
            now += MANY_TAKE_S / MANY * 2
        assert told[-MANY:] == [True] * MANY


def test_a_store_that_must_sync_is_never_written_ahead_of_but_takes_in_what_is_there(tmp_path: Path) -> None:
    options = StoreOptions(url=f"sqlite:///{tmp_path}/laneway.db", durability="full")
    with closing(Store.open(options)) as store:
        with closing(Intake(store.file)) as intake:
            intake.append([admit(1), settle(1)])
        with running(store) as writer:
            assert settled(store) == [request_id(1)]
            assert not writer.write_ahead([admit(2)])


def test_a_store_on_postgres_has_no_intake(remote: Store) -> None:
    with running(remote) as writer:
        assert not writer.write_ahead([admit(1)])


def test_an_intake_that_another_process_has_is_named(sqlite_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.writer.INTAKE_WAIT_S", 0.0)
    with closing(Intake(sqlite_store.file)), pytest.raises(ConfigError, match="in use by another process"):
        Writer(sqlite_store).start()
