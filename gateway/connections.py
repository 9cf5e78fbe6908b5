"""Connections to the store's database: what its URL may be, how every connection is set up, when it is away."""

from __future__ import annotations

import sqlite3
from typing import Literal, TypeAlias

import sqlalchemy
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from backends.errors import ConfigError

LOCK_WAIT_S = 10
ALLOWED = "allowed: sqlite:///FILE or postgresql://USER@HOST/DATABASE"

# An error is the statement's fault, or it is the database that cannot serve now. For Postgres by the beginning of
# SQLSTATE: connection, resources, lock not available, shutdown, system, a former primary that only reads.
SQLITE_AWAY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
POSTGRES_AWAY = ("08", "53", "55P03", "57P", "58", "25006")

# libpq's. Without them a server whose host vanished is noticed after many minutes. The URL may say otherwise.
POSTGRES_DEFAULTS: dict[str, str | int] = {
    "connect_timeout": 3,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,
    "application_name": "laneway",
}

Dialect: TypeAlias = Literal["sqlite", "postgresql"]
Durability: TypeAlias = Literal["normal", "full"]


def read_url(text: str) -> URL:
    """`store.url` as SQLAlchemy wants it. Raises `ConfigError`, which never shows what could be a password."""
    try:
        url = sqlalchemy.make_url(text)
    except (ArgumentError, ValueError):
        raise ConfigError(f"store.url: not a URL; {ALLOWED}") from None
    if url.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername != "sqlite":
        raise ConfigError(f'store.url: "{url.drivername}" is no database that Laneway knows; {ALLOWED}')
    if url.host is not None or url.query:
        raise ConfigError(f'store.url: "{show(url)}" names more than a file; allowed: sqlite:///FILE, three slashes')
    if not url.database or url.database.startswith((":", "file:")):
        raise ConfigError(f'store.url: "{show(url)}" would be gone with the process; allowed: sqlite:///FILE')
    return url


def show(url: URL) -> str:
    """The URL for people: without a password."""
    return url.difference_update_query(["password"]).render_as_string(hide_password=True)


def create_engine(url: URL, durability: Durability) -> Engine:
    """Pooled connections. A transaction of SQLite begins as its execution option `begin` says, else `BEGIN`.

    Raises `ConfigError` where the driver is not installed.
    """
    if url.drivername == "sqlite":
        engine = sqlalchemy.create_engine(url, connect_args={"timeout": LOCK_WAIT_S}, pool_timeout=LOCK_WAIT_S)
        event.listen(engine, "begin", _begin)
    else:
        engine = _create_postgres_engine(url)

    @event.listens_for(engine, "connect")
    def set_up(connection: DBAPIConnection, _: object) -> None:
        _set_up(connection, durability)

    return engine


def connect(engine: Engine, durability: Durability) -> DBAPIConnection:
    """A new connection of the driver, outside the pool, on which nothing begins or commits by itself."""
    arguments, options = engine.dialect.create_connect_args(engine.url)
    if engine.dialect.name == "sqlite":
        options.update(timeout=LOCK_WAIT_S, check_same_thread=False)
    else:
        options.update(_postgres_defaults(engine.url), autocommit=True, prepare_threshold=1)
    connection = engine.dialect.connect(*arguments, **options)
    try:
        _set_up(connection, durability)
    except BaseException:
        connection.close()
        raise
    return connection


def is_away(error: BaseException) -> bool:
    """Whether an error of a driver, or of SQLAlchemy around it, means that the database cannot serve now."""
    if isinstance(error, PoolTimeout):
        return True
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or (error.orig is not None and is_away(error.orig))
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF in SQLITE_AWAY  # the higher bits say more closely why
    state = getattr(error, "sqlstate", "")
    if state:
        return bool(state.startswith(POSTGRES_AWAY))
    return state is None and any(kind.__name__ == "OperationalError" for kind in type(error).__mro__)


def _create_postgres_engine(url: URL) -> Engine:
    try:
        return sqlalchemy.create_engine(
            url,
            connect_args=_postgres_defaults(url),
            pool_pre_ping=True,  # connections from before a restart of Postgres are found out, not failed on
            pool_timeout=LOCK_WAIT_S,
            use_native_hstore=False,
        )
    except ModuleNotFoundError:
        raise ConfigError("store.url: Postgres needs the extra: pip install 'laneway[postgres]'") from None


def _postgres_defaults(url: URL) -> dict[str, str | int]:
    return {name: value for name, value in POSTGRES_DEFAULTS.items() if name not in url.query}


def _begin(connection: Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))


def _set_up(connection: DBAPIConnection, durability: Durability) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.isolation_level = None  # the driver begins nothing by itself
        connection.execute("PRAGMA foreign_keys = ON").close()
        connection.execute(f"PRAGMA synchronous = {durability}").close()  # its own words: NORMAL, FULL
        return
    connection.execute("SELECT set_config('lock_timeout', %s, false)", [f"{LOCK_WAIT_S}s"])
    if durability == "full":
        connection.execute(
            "SELECT set_config('synchronous_commit', 'on', false) "
            "WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')"
        )
    connection.commit()
