"""The store on both databases: what its URL may be, reading, changing, being held, being away."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from msgspec.structs import replace
from sqlalchemy import select

from backends.errors import ConfigError
from gateway import connections
from gateway.accounts import Accounts, NewKey
from gateway.errors import StoreUnavailable
from gateway.store import CHANNEL, LIVING_S, Store, StoreOptions
from gateway.tables import keys, revisions, secrets, servers, tenants
from tests.stores import Postgres

# Holds the store in the name of `run-1`, starts a process that outlives it, says that one's id and waits.
HOLDER = """
import subprocess, sys
from pathlib import Path
from gateway.store import Store, StoreOptions
store = Store.open(StoreOptions(url=sys.argv[1]))
with store.hold("run-1", Path("/run/control.sock")):
    child = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL)
    print(child.pid, flush=True)
    sys.stdin.read()
"""

TENANT = {"weight": 1.0, "time_zone": "UTC", "created_at": 0, "revision": 0}


def options(tmp_path: Path, pepper_file: Path | None = None) -> StoreOptions:
    return StoreOptions(
        url=f"sqlite:///{tmp_path}/laneway.db", pepper_file=None if pepper_file is None else str(pepper_file)
    )


@contextlib.contextmanager
def other_holder(store: Store) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the store, until it is ended."""
    command = [sys.executable, "-c", HOLDER, store.options.url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process
        finally:
            process.kill()
            os.kill(child, signal.SIGKILL)


def revision(store: Store) -> int:
    with store.reading() as connection:
        return int(connection.execute(select(revisions.c.value)).scalar_one())


def tenant_names(store: Store) -> list[str]:
    with store.reading() as connection:
        return list(connection.execute(select(tenants.c.name).order_by(tenants.c.name)).scalars())


class TestOpening:
    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=rf"store\.url: there is no folder {tmp_path}/none; make it"):
            Store.open(StoreOptions(url=f"sqlite:///{tmp_path}/none/laneway.db"))

    @pytest.mark.parametrize("content", [b"not a database at all", None], ids=["other file", "folder"])
    def test_what_is_no_database_is_refused(self, tmp_path: Path, content: bytes | None) -> None:
        path = tmp_path / "laneway.db"
        path.mkdir() if content is None else path.write_bytes(content * 100)

        with pytest.raises(ConfigError, match=r"store\.url: sqlite:///.*laneway\.db cannot be used: .*database"):
            Store.open(options(tmp_path))

    def test_an_absent_postgres_is_named_without_its_password(self, tmp_path: Path) -> None:
        url = f"postgres://laneway:hunter2@/laneway?host={tmp_path}&password=hunter2"

        with pytest.raises(ConfigError, match=r"store\.url: postgresql.*cannot be used: .*connection") as refused:
            Store.open(StoreOptions(url=url))

        assert "hunter2" not in str(refused.value)

    def test_a_missing_driver_is_named_by_its_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "psycopg", None)

        with pytest.raises(ConfigError, match=r"store\.url: Postgres needs .*laneway\[postgres\]"):
            Store.open(StoreOptions(url="postgresql://localhost/laneway"))

    def test_only_the_owner_reads_the_files(self, tmp_path: Path) -> None:
        with contextlib.closing(Store.open(options(tmp_path))) as store:
            with store.changing() as connection:
                store.next_revision(connection)
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.glob("laneway.db*")}

        assert modes == dict.fromkeys(["laneway.db", "laneway.db-wal", "laneway.db-shm"], 0o600)


class TestPepper:
    def test_it_is_made_once_for_each_store(self, tmp_path: Path) -> None:
        peppers = []
        for name in ("one.db", "one.db", "two.db"):
            with contextlib.closing(Store.open(StoreOptions(url=f"sqlite:///{tmp_path}/{name}"))) as store:
                peppers.append(store.pepper())

        assert (len(peppers[0]), peppers[0] == peppers[1], peppers[0] == peppers[2]) == (32, True, False)

    def test_a_file_replaces_it_whatever_the_store_keeps(self, tmp_path: Path) -> None:
        file = tmp_path / "pepper"
        peppers = []
        for name, content in (("one.db", "s" * 40), ("two.db", "s" * 40 + "\n"), ("one.db", "t" * 40)):
            file.write_text(content)
            wanted = StoreOptions(url=f"sqlite:///{tmp_path}/{name}", pepper_file=str(file))
            with contextlib.closing(Store.open(wanted)) as store:
                peppers.append(store.pepper())

        assert (len(peppers[0]), peppers[0] == peppers[1], peppers[0] == peppers[2]) == (32, True, False)

    def test_a_short_or_missing_file_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "pepper"
        with pytest.raises(ConfigError, match=r"store\.pepper_file: .*pepper cannot be read"):
            Store.open(options(tmp_path, pepper_file=file))
        file.write_text("hunter2 " * 3 + "\n" * 32)

        with pytest.raises(ConfigError, match=r"store\.pepper_file: .*23 bytes; allowed: 32 or more") as refused:
            Store.open(options(tmp_path, pepper_file=file))

        assert "hunter2" not in str(refused.value)


class TestReadingAndChanging:
    def test_a_change_is_kept(self, store: Store) -> None:
        with store.changing() as connection:
            connection.execute(tenants.insert().values(name="acme", **TENANT))

        assert tenant_names(store) == ["acme"]

    def test_a_change_that_fails_is_undone_as_a_whole(self, store: Store) -> None:
        with pytest.raises(RuntimeError), store.changing() as connection:
            connection.execute(tenants.insert().values(name="acme", **TENANT))
            store.next_revision(connection)
            raise RuntimeError

        assert (tenant_names(store), revision(store)) == ([], 0)

    def test_a_reader_sees_one_moment(self, store: Store) -> None:
        query = select(revisions.c.value)
        with store.reading() as reading:
            before = reading.execute(query).scalar()
            with store.changing() as connection:
                store.next_revision(connection)

            assert (before, reading.execute(query).scalar()) == (0, 0)
        assert revision(store) == 1

    def test_a_reader_keeps_nothing(self, store: Store) -> None:
        with store.reading() as connection:
            store.next_revision(connection)

        assert revision(store) == 0

    def test_changes_follow_one_another(self, store: Store) -> None:
        """Read, then write what follows from it: no other change comes between, from whatever process."""

        def count() -> None:
            with contextlib.closing(Store.open(store.options)) as mine:
                for _ in range(10):
                    with mine.changing() as connection:
                        value = connection.execute(select(revisions.c.value)).scalar_one()
                        connection.execute(revisions.update().values(value=value + 1))

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert revision(store) == 40

    def test_revisions_grow_by_one(self, store: Store) -> None:
        grown = []
        for _ in range(3):
            with store.changing() as connection:
                grown.append(store.next_revision(connection))

        assert grown == [1, 2, 3]

    def test_postgres_notifies_of_a_new_revision(self, postgres_url: str) -> None:
        store = Store.open(StoreOptions(url=postgres_url))
        with contextlib.closing(store), contextlib.closing(store.raw_connection()) as listener:
            listener.execute(f"LISTEN {CHANNEL}")
            with store.changing() as connection:
                store.next_revision(connection)

            notices = list(listener.notifies(timeout=30, stop_after=1))

        assert [notice.payload for notice in notices] == ["1"]

    def test_references_are_checked(self, store: Store) -> None:
        names = ("id", "hint", "tenant", "project", "name", "role")
        row = dict.fromkeys(names, "x") | {"digest": b"x", "created_at": 0, "revision": 0}

        with pytest.raises(sqlalchemy.exc.IntegrityError), store.changing() as connection:
            connection.execute(keys.insert().values(row))

    def test_a_raw_connection_is_for_any_one_thread_and_begins_nothing_by_itself(self, store: Store) -> None:
        connection = store.raw_connection()

        def write() -> None:
            for end in ("ROLLBACK", "COMMIT"):
                connection.execute("BEGIN")
                connection.execute("UPDATE revisions SET value = value + 1")
                connection.execute(end)
            connection.execute("UPDATE revisions SET value = value + 1")

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        connection.close()

        assert revision(store) == 2


class TestBeingAway:
    def test_a_lock_that_others_keep_is_the_store_being_away(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connections, "LOCK_WAIT_S", 0.01)
        with contextlib.closing(Store.open(options(tmp_path))) as store:
            with contextlib.closing(store.raw_connection()) as other:
                other.execute("BEGIN IMMEDIATE")
                with pytest.raises(StoreUnavailable), store.changing():
                    pass
                other.execute("ROLLBACK")

            with store.changing() as connection:
                assert store.next_revision(connection) == 1

    def test_a_wrong_statement_is_not(self, store: Store) -> None:
        with pytest.raises(sqlalchemy.exc.DBAPIError), store.reading() as connection:
            connection.execute(sqlalchemy.text("SELECT nothing FROM nowhere"))

    def test_a_stopped_postgres_is_unavailable_until_it_is_back(self, postgres: Postgres, postgres_url: str) -> None:
        with contextlib.closing(Store.open(StoreOptions(url=postgres_url))) as store:
            with pytest.raises(StoreUnavailable), store.reading() as connection:
                postgres.stop()
                connection.execute(select(revisions.c.value))
            with pytest.raises(StoreUnavailable), store.reading():
                pass
            with pytest.raises(StoreUnavailable), store.changing():
                pass
            with pytest.raises(StoreUnavailable):
                store.raw_connection()

            postgres.start()

            with store.changing() as connection:
                assert store.next_revision(connection) == 1

    def test_what_was_committed_outlives_a_crash_of_postgres(self, postgres: Postgres, postgres_url: str) -> None:
        with contextlib.closing(Store.open(StoreOptions(url=postgres_url))) as store:
            for _ in range(3):
                with store.changing() as connection:
                    store.next_revision(connection)
                postgres.stop()
                postgres.start()

            assert revision(store) == 3


class TestHolding:
    def test_a_server_is_listed_while_it_holds_the_store(self, store: Store) -> None:
        assert (store.is_held(), store.living_runs()) == (False, set())

        with store.hold("run-1", Path("/run/control.sock")):
            (server,) = store.living_servers()
            assert (server.run_id, server.pid, server.control) == ("run-1", os.getpid(), "/run/control.sock")
            assert (store.is_held(), store.living_runs()) == (True, {"run-1"})

        with store.reading() as connection:
            assert connection.execute(select(servers)).all() == []
        assert (store.is_held(), store.living_runs()) == (False, set())

    def test_an_error_lets_go_of_it(self, store: Store) -> None:
        with pytest.raises(RuntimeError), store.hold("run-1", Path("/run/control.sock")):
            raise RuntimeError

        assert store.living_runs() == set()

    def test_touching_says_that_a_server_lives(self, store: Store) -> None:
        with store.hold("run-1", Path("/run/control.sock")):
            (before,) = store.living_servers()
            with store.changing() as connection:
                connection.execute(servers.update().values(seen_at=1))

            store.touch("run-1")

            (after,) = store.living_servers()
            assert after.seen_at >= before.seen_at

    def test_a_second_server_on_sqlite_is_told_who_has_it(self, sqlite_store: Store) -> None:
        with other_holder(sqlite_store) as holder:
            with (
                pytest.raises(ConfigError, match=rf"store\.url: .*laneway\.db is in use .*\(pid {holder.pid}\)"),
                sqlite_store.hold("run-2", Path("/run/other.sock")),
            ):
                pass

            assert (sqlite_store.is_held(), sqlite_store.living_runs()) == (True, {"run-1"})

    def test_a_killed_server_no_longer_holds_it_whatever_it_had_started(self, sqlite_store: Store) -> None:
        with other_holder(sqlite_store) as holder:
            holder.kill()
            holder.wait()

            assert (sqlite_store.is_held(), sqlite_store.living_runs()) == (False, set())
            with sqlite_store.hold("run-2", Path("/run/other.sock")):
                assert sqlite_store.living_runs() == {"run-2"}

    def test_the_lock_file_tells_the_pid_and_the_control_socket(self, sqlite_store: Store, tmp_path: Path) -> None:
        with sqlite_store.hold("run-1", Path("/run/control.sock")):
            assert (tmp_path / "laneway.db.lock").read_text() == f"{os.getpid()}\n/run/control.sock\n"

    def test_asking_whether_it_is_held_does_not_hold_it(self, sqlite_store: Store) -> None:
        with sqlite_store.hold("run-1", Path("/run/control.sock")):
            pass
        stop = threading.Event()

        def ask() -> None:
            while not stop.is_set():
                sqlite_store.is_held()

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            for _ in range(20):
                with sqlite_store.hold("run-2", Path("/run/control.sock")):
                    pass
        finally:
            stop.set()
            thread.join()

    def test_postgres_takes_a_second_server_once_the_first_was_not_seen_for_a_minute(self, postgres_url: str) -> None:
        control = Path("/run/control.sock")
        store = Store.open(StoreOptions(url=postgres_url))
        with contextlib.closing(store), store.hold("run-1", control):
            with pytest.raises(ConfigError, match="in use by another server"), store.hold("run-2", control):
                pass
            assert store.living_runs() == {"run-1"}
            with store.changing() as connection:
                unseen = servers.update().where(servers.c.run_id == "run-1")
                connection.execute(unseen.values(seen_at=servers.c.seen_at - LIVING_S - 1))

            with store.hold("run-3", control), store.reading() as connection:  # dead rows go when a server comes
                assert connection.execute(select(servers.c.run_id)).scalars().all() == ["run-3"]

            store.touch("run-1")  # it was only paused
            assert store.living_runs() == {"run-1"}

    def test_postgres_takes_a_second_server_at_once_when_the_process_of_the_first_is_gone(
        self, postgres_url: str
    ) -> None:
        control = Path("/run/control.sock")
        store = Store.open(StoreOptions(url=postgres_url))
        with contextlib.closing(store), store.hold("run-1", control):
            with store.changing() as connection:
                connection.execute(servers.update().values(pid=2**22 + 1))
            with store.hold("run-2", control):
                assert store.living_runs() == {"run-2"}


def test_a_pepper_that_keys_were_made_with_cannot_be_lost_from_the_configuration(store_options: StoreOptions) -> None:
    pepper = Path(store_options.spool).with_name("pepper")
    pepper.write_text("p" * 40)
    with_file = replace(store_options, pepper_file=str(pepper))
    Store.open(store_options).close()
    with closing(Store.open(with_file)) as store:
        Accounts(store, "test").create_key(NewKey(tenant="acme"))

    with pytest.raises(ConfigError, match=r"pepper_file is missing.*--config"):
        Store.open(store_options)
    pepper.write_text("q" * 40)
    with pytest.raises(ConfigError, match="made with another pepper"):
        Store.open(with_file)


def test_a_store_of_before_peppers_were_checked_opens_and_is_checked_from_then_on(store_options: StoreOptions) -> None:
    with closing(Store.open(store_options)) as store:
        Accounts(store, "test").create_key(NewKey(tenant="acme"))
        with store.changing() as connection:
            connection.execute(secrets.delete().where(secrets.c.name == "pepper-check"))

    Store.open(store_options).close()
