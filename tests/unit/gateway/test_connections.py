"""What a URL may be, how connections are set up, and which errors mean that the database is away."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import psycopg
import pytest

from backends.errors import ConfigError
from gateway.connections import Durability, is_away, read_url
from gateway.store import Store, StoreOptions
from tests.stores import Postgres


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///file:laneway?mode=memory",
        "sqlite:///laneway.db?mode=ro",
        "sqlite://laneway.db",
        "mysql://root:hunter2@localhost/laneway",
        "postgresql+asyncpg://root:hunter2@localhost/laneway",
        "postgresql://root:hunter2@localhost:port/laneway",
        "laneway.db",
        "root:hunter2@localhost",
    ],
)
def test_a_url_that_can_never_work_is_refused_with_what_could(url: str) -> None:
    with pytest.raises(ConfigError, match=r"store\.url: .*allowed: sqlite:///FILE") as refused:
        read_url(url)

    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(("durability", "synchronous"), [("normal", 1), ("full", 2)])
def test_every_connection_to_sqlite_is_set_up(tmp_path: Path, durability: Durability, synchronous: int) -> None:
    pragmas = ("journal_mode", "synchronous", "foreign_keys", "busy_timeout")
    expected = ["wal", synchronous, 1, 10_000]
    wanted = StoreOptions(url=f"sqlite:///{tmp_path}/laneway.db", durability=durability)

    with contextlib.closing(Store.open(wanted)) as store:
        with store.reading() as connection:
            assert [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in pragmas] == expected
        with contextlib.closing(store.raw_connection()) as raw:
            assert [raw.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas] == expected


@pytest.mark.parametrize(("durability", "commit"), [("normal", "off"), ("full", "on")])
def test_full_durability_overrides_a_postgres_that_says_less(
    postgres_url: str, durability: Durability, commit: str
) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {connection.info.dbname} SET synchronous_commit = off".encode())
    wanted = StoreOptions(url=postgres_url, durability=durability)

    with contextlib.closing(Store.open(wanted)) as store:
        with store.reading() as reading:
            assert reading.exec_driver_sql("SHOW synchronous_commit").scalar() == commit
        with contextlib.closing(store.raw_connection()) as raw:
            assert raw.execute("SHOW synchronous_commit").fetchone() == (commit,)


def test_what_a_driver_says_when_its_connection_is_lost_is_known(postgres: Postgres, postgres_url: str) -> None:
    with contextlib.closing(Store.open(StoreOptions(url=postgres_url))) as store:
        raw = store.raw_connection()
        postgres.stop()

        for _ in range(2):  # at first that it was lost, then that it is closed
            with pytest.raises(psycopg.Error) as failure:
                raw.execute("SELECT 1")
            assert is_away(failure.value)
        raw.close()
        postgres.start()


def test_a_wrong_statement_is_no_sign_of_it(store: Store) -> None:
    connection = store.raw_connection()
    with contextlib.closing(connection), pytest.raises((sqlite3.Error, psycopg.Error)) as failure:
        connection.execute("SELECT nothing FROM nowhere")

    assert not is_away(failure.value)
