from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from gateway.errors import StoreUnavailable
from gateway.link import LocalLink, RemoteLink
from gateway.store import Store, StoreOptions
from tests.conftest import FakeClock
from tests.stores import Postgres

PATIENCE_S = 30


@pytest.fixture
def remote(postgres_url: str) -> Iterator[Store]:
    with closing(Store.open(StoreOptions(url=postgres_url))) as store:
        yield store


@contextmanager
def started(store: Store, on_up: Callable[[], None], clock: FakeClock) -> Iterator[RemoteLink]:
    link = RemoteLink(store, on_up, clock, answer_s=5.0)
    link.start()
    try:
        yield link
    finally:
        link.stop()


def test_a_file_is_opened_again_after_a_use_that_failed(sqlite_store: Store) -> None:
    link = LocalLink(sqlite_store)
    link.start()
    with link.use() as first:
        pass
    with pytest.raises(ValueError, match="no reason"), link.use() as same:
        raise ValueError("no reason")
    with link.use() as second:
        assert second.execute("SELECT 1").fetchone() == (1,)
    link.stop()

    assert same is first
    assert second is not first


def test_what_was_committed_gets_into_the_file_while_no_commit_waits_for_it(
    sqlite_store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "laneway.db"
    link = LocalLink(sqlite_store)
    link.start()
    with link.use() as connection:
        connection.execute("CREATE TABLE larger AS SELECT randomblob(1000000)")
        assert file.stat().st_size < 1_000_000
    until = time.monotonic() + PATIENCE_S
    while file.stat().st_size < 1_000_000:
        assert time.monotonic() < until
        time.sleep(0.01)
    link.stop()


def test_a_server_that_is_away_is_connected_to_as_soon_as_it_is_there(
    remote: Store, postgres: Postgres, clock: FakeClock
) -> None:
    is_up = threading.Event()
    with started(remote, is_up.set, clock) as link:
        assert is_up.is_set()
        postgres.stop()
        is_up.clear()
        with pytest.raises(psycopg.OperationalError), link.use() as connection:
            connection.execute("SELECT 1")
        assert not link.is_up
        with pytest.raises(StoreUnavailable, match=r"away: .*connection"), link.use():
            pass

        postgres.start()
        assert is_up.wait(PATIENCE_S)
        with link.use() as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_use_that_gets_no_answer_is_ended(remote: Store, clock: FakeClock) -> None:
    with started(remote, lambda: None, clock) as link:
        with link.use() as connection:
            pid = connection.info.backend_pid
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(psycopg.OperationalError), link.use() as connection:
                clock.advance(5.0)
                connection.execute("SELECT 1")
        finally:
            os.kill(pid, signal.SIGCONT)


def test_nothing_is_connected_after_stop(remote: Store, clock: FakeClock) -> None:
    with started(remote, lambda: None, clock) as link, link.use() as connection:
        pass

    assert connection.closed
    with pytest.raises(StoreUnavailable), link.use():
        pass
