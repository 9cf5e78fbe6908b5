"""A database that is new, current, half-made, of a newer Laneway, or opened by many at once."""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.sql.schema import SchemaItem

from backends.errors import ConfigError
from gateway import migrations
from gateway.store import Store, StoreOptions
from gateway.tables import METADATA, ledger_events, revisions, secrets
from tests.stores import Postgres

# Eight processes, forked by one that has loaded everything, so that they really start together.
OPEN_AT_ONCE = """
import os, sys, traceback
import alembic.command
from gateway.store import Store, StoreOptions

def open_store():
    try:
        Store.open(StoreOptions(url=sys.argv[1])).close()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)

children = [os.fork() or open_store() for _ in range(8)]
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Of a database that nothing was made in yet."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/laneway.db"
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    url = postgres.create_empty_database()
    yield url
    postgres.drop_database(url)


def opened(url: str) -> contextlib.closing[Store]:
    return contextlib.closing(Store.open(StoreOptions(url=url)))


def is_ours(item: SchemaItem, name: str | None, kind: str, is_found: bool, _: SchemaItem | None) -> bool:
    """Partitions of the ledger are tables for Postgres, not for us."""
    return not (kind == "table" and is_found and (name or "").startswith("ledger_events_"))


def test_what_migrations_make_is_what_the_tables_say(empty_url: str) -> None:
    with opened(empty_url) as store, store.reading() as connection:
        context = MigrationContext.configure(connection, opts={"include_object": is_ours})

        assert compare_metadata(context, METADATA) == []


def test_on_sqlite_they_are_made_by_the_same_statements(sqlite_store: Store, tmp_path: Path) -> None:
    def statements(engine: sqlalchemy.Engine) -> dict[str, list[str]]:
        """Without what varies in writing, not in meaning: the order of columns is kept, that of constraints not."""
        with engine.connect() as connection:
            rows = connection.exec_driver_sql("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL").all()
        engine.dispose()
        return {name: sorted(part.strip(" ,\t") for part in sql.split("\n")) for name, sql in rows}

    plain = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/plain.db")
    METADATA.create_all(plain)
    expected = statements(plain)

    found = statements(sqlalchemy.create_engine(sqlite_store.options.url))

    del found[migrations.VERSION_TABLE]
    assert found == expected


def test_the_head_is_the_newest_revision() -> None:
    scripts = ScriptDirectory(str(Path(migrations.__file__).parent))

    assert scripts.get_current_head() == migrations.HEAD


def test_a_new_store_is_at_the_head_with_its_first_rows(empty_url: str) -> None:
    with opened(empty_url) as store, store.reading() as connection:
        assert migrations.version(connection) == migrations.HEAD
        assert connection.execute(sqlalchemy.select(revisions)).all() == [(1, 0)]
        kept = connection.execute(sqlalchemy.select(secrets)).all()

    assert [(name, len(value)) for name, value in kept] == [("pepper", 32), ("pepper-check", 32)]


def test_opening_again_changes_nothing(empty_url: str) -> None:
    with opened(empty_url) as store:
        with store.changing() as connection:
            store.next_revision(connection)
        pepper = store.pepper()

    with opened(empty_url) as store, store.changing() as connection:
        assert (store.next_revision(connection), store.pepper()) == (2, pepper)


def test_eight_processes_may_open_a_new_store_at_once(empty_url: str) -> None:
    run = subprocess.run(
        [sys.executable, "-c", OPEN_AT_ONCE, empty_url], capture_output=True, text=True, timeout=60, check=False
    )

    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    with opened(empty_url) as store, store.reading() as connection:
        assert connection.execute(sqlalchemy.select(revisions)).all() == [(1, 0)]


def test_a_store_of_a_newer_laneway_is_refused(store: Store) -> None:
    with store.changing() as connection:
        connection.execute(sqlalchemy.text(f"UPDATE {migrations.VERSION_TABLE} SET version_num = '9999'"))

    with pytest.raises(ConfigError, match=r"store\.url: .*newer Laneway \(schema 9999, this one knows up to"):
        Store.open(store.options)


def test_a_database_of_something_else_is_refused_and_left_as_it_was(empty_url: str) -> None:
    with opened(empty_url) as store, store.changing() as connection:
        METADATA.drop_all(connection)
        connection.execute(sqlalchemy.text(f"DROP TABLE {migrations.VERSION_TABLE}"))
        connection.execute(sqlalchemy.text("CREATE TABLE servers (something_else INTEGER)"))

    with pytest.raises(ConfigError, match=r"store\.url: .*servers"):
        Store.open(StoreOptions(url=empty_url))

    engine = sqlalchemy.create_engine(empty_url.replace("postgresql:", "postgresql+psycopg:"))
    assert sqlalchemy.inspect(engine).get_table_names() == ["servers"]
    engine.dispose()


def test_migrating_prints_nothing_and_leaves_the_logging_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    before = (list(root.handlers), root.level, logging.getLogger("laneway").disabled)

    Store.open(StoreOptions(url=f"sqlite:///{tmp_path}/laneway.db")).close()

    assert (list(root.handlers), root.level, logging.getLogger("laneway").disabled) == before
    assert capfd.readouterr() == ("", "")


def test_the_ledger_on_postgres_takes_events_of_any_month(postgres_url: str) -> None:
    event: dict[str, object] = {name: column.type.python_type() for name, column in ledger_events.c.items()}

    with opened(postgres_url) as store, store.changing() as connection:
        connection.execute(ledger_events.insert(), [event | {"request_id": f"{digit}" * 32} for digit in "019f"])
        found = connection.execute(sqlalchemy.text("SELECT count(*) FROM ledger_events_default"))

        assert found.scalar() == 4


def test_a_migration_that_fails_half_way_leaves_no_table(tmp_path: Path) -> None:
    path = tmp_path / "laneway.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE servers (something_else INTEGER)")

    for _ in range(2):
        with pytest.raises(ConfigError, match="table servers already exists"):
            Store.open(StoreOptions(url=f"sqlite:///{path}"))
