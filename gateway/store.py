"""The one database for everything durable: SQLite by default, Postgres by URL. It is opened, read, changed and held."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import sqlalchemy
from msgspec import Meta, Struct
from sqlalchemy import BigInteger, ColumnElement, Connection, Engine, func, select
from sqlalchemy.engine.interfaces import DBAPIConnection as DBAPIConnection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from backends.errors import ConfigError
from gateway import migrations
from gateway.connections import LOCK_WAIT_S, Durability, connect, create_engine, is_away, read_url, show
from gateway.connections import Dialect as Dialect
from gateway.errors import StoreUnavailable
from gateway.file_lock import lock
from gateway.tables import keys, revisions, secrets, servers

CHANNEL = "laneway_revision"  # on Postgres, of the notice that `revisions` grew
LIVING_S = 60  # on Postgres, a server that was not seen for longer is dead
HOLD_WAIT_S = 0.5  # the server before may just be ending, or another process just asking who holds the store
CHANGES = 0x6C616E65776179  # on Postgres, the advisory lock of `changing`: "laneway"
PEPPER_BYTES = 32
PEPPER_CHECK = "pepper-check"


class StoreOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[store]`: where everything durable is, and how durable.

    `url` is `sqlite:///FILE` or `postgresql://USER@HOST/DATABASE`. With `durability` normal, what a client was told
    survives the death of every process, the database's own too. A power loss may take the last moments from SQLite,
    which then syncs at checkpoints alone; on Postgres the server's `synchronous_commit` decides. full: power loss takes
    nothing; SQLite syncs every commit, and Postgres at least its own disk, whatever server, database or role say.
    `admit` strict: nothing is dispatched before its admit is durable. `pepper_file` holds the secret that keys are
    digested with, 32 bytes or more; without it one is kept in the store. A running request's use so far is noted
    every `progress_s` seconds. Ledger events older than `retention_days` are removed, their rollups stay; 0 keeps all.
    `spool` is the local file that takes records while Postgres is away, up to `spool_max_mb` MiB.
    """

    url: Annotated[str, Meta(min_length=1)] = "sqlite:///laneway.db"
    durability: Durability = "normal"
    admit: Literal["relaxed", "strict"] = "relaxed"
    pepper_file: str | None = None
    progress_s: Annotated[float, Meta(gt=0, le=3600)] = 2.0
    retention_days: Annotated[int, Meta(ge=0, le=36500)] = 0
    spool: Annotated[str, Meta(min_length=1)] = "laneway-spool.db"
    spool_max_mb: Annotated[int, Meta(ge=1, le=1 << 20)] = 256


class Server(Struct, frozen=True, kw_only=True):
    """A row of `servers`: who writes to the store. `control` is the path of its control socket on `host`."""

    run_id: str
    host: str
    pid: int
    control: str
    started_at: int
    seen_at: int

    @property
    def is_here(self) -> bool:
        """Whether it is where this process is, so that its pid and its paths mean the same here."""
        return self.host == this_host()

    @property
    def is_gone(self) -> bool:
        """Whether its process is known to have ended, which on this host is seen at once."""
        return self.is_here and not _runs(self.pid)


class Store:
    """The database. Any thread may call. `open` makes one, `close` ends it."""

    def __init__(self, options: StoreOptions, engine: Engine) -> None:
        """For `open`, which also sees to the tables."""
        self.options = options
        self.dialect: Dialect = "sqlite" if engine.dialect.name == "sqlite" else "postgresql"
        self._engine = engine
        self._reads = engine  # SQLite's transactions see one moment of the database anyway
        if self.dialect == "postgresql":
            self._reads = engine.execution_options(isolation_level="REPEATABLE READ")
        self._writes = engine.execution_options(begin="BEGIN IMMEDIATE")
        self._pepper = b""
        self._held: dict[str, dict[str, str | int]] = {}

    @classmethod
    def open(cls, options: StoreOptions) -> Store:
        """The store at `options.url`, made or migrated where it must be. Any number of processes may do so at once.

        Raises `ConfigError` naming `store.url` or `store.pepper_file`, and what to do.
        """
        url = read_url(options.url)
        if url.get_backend_name() == "sqlite":
            _create_file(Path(url.database or ""))
        store = cls(options, create_engine(url, options.durability))
        try:
            store._prepare()
        except (SQLAlchemyError, sqlite3.Error, StoreUnavailable) as error:
            store.close()
            raise ConfigError(f"store.url: {show(url)} cannot be used: {_reason(error)}") from error
        except BaseException:
            store.close()
            raise
        return store

    def _prepare(self) -> None:
        if self.dialect == "sqlite":
            self._keep_a_write_ahead_log()
        with self.reading() as connection:
            is_current = migrations.version(connection) == migrations.HEAD
        if not is_current:
            with self.changing() as connection:
                migrations.upgrade(connection)
        with self.reading() as connection:
            rows = connection.execute(select(secrets.c.name, secrets.c.value))
            kept = {row.name: row.value for row in rows}
        file = self.options.pepper_file
        self._pepper = kept["pepper"] if file is None else _read_pepper(Path(file))
        if kept.get(PEPPER_CHECK) != _check_value(self._pepper):
            self._change_pepper(known=PEPPER_CHECK in kept or file is not None)

    def _change_pepper(self, *, known: bool) -> None:
        """Digest with another secret from now on, which is possible as long as there is no key to be found with it.

        Raises `ConfigError`, since every key would be refused without a word.
        """
        with self.changing() as connection:
            if known and connection.execute(select(keys.c.id).limit(1)).first() is not None:
                named = "store.pepper_file is missing" if self.options.pepper_file is None else "store.pepper_file"
                raise ConfigError(
                    f"{named}: the keys of this store were made with another pepper; "
                    "use the configuration that they were made with (--config)"
                )
            connection.execute(secrets.delete().where(secrets.c.name == PEPPER_CHECK))
            connection.execute(secrets.insert().values(name=PEPPER_CHECK, value=_check_value(self._pepper)))

    def _keep_a_write_ahead_log(self) -> None:
        """Readers and the writer then do not wait for each other. The file remembers it."""
        until = time.monotonic() + LOCK_WAIT_S
        while True:  # SQLite does not wait itself for another process that does the same
            try:
                with contextlib.closing(self.raw_connection()) as connection:
                    connection.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if not is_away(error) or time.monotonic() >= until:
                    raise
                time.sleep(0.01)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees the database as it was at the block's first query. Nothing it writes is kept.

        Raises `StoreUnavailable` when the database is away.
        """
        with _away_is_unavailable(), self._reads.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def changing(self) -> Iterator[Connection]:
        """One transaction, alone among all `changing` of all processes: committed at the end, undone on an error.

        Raises `StoreUnavailable` when the database is away, or for `LOCK_WAIT_S` was busy with others' changes.
        """
        with self._writing() as connection:
            if self.dialect == "postgresql":
                connection.execute(select(func.pg_advisory_xact_lock(CHANGES)))
            yield connection

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        with _away_is_unavailable(), self._writes.begin() as connection:
            yield connection

    def next_revision(self, connection: Connection) -> int:
        """The revision of the rows that this transaction changes. Call it within `changing`."""
        change = revisions.update().values(value=revisions.c.value + 1).returning(revisions.c.value)
        value: int = connection.execute(change).scalar_one()
        if self.dialect == "postgresql":
            connection.execute(select(func.pg_notify(CHANNEL, str(value))))
        return value

    def raw_connection(self) -> DBAPIConnection:
        """A new connection of the driver (sqlite3, psycopg), for one thread at a time; its transactions are explicit.

        The caller closes it. Raises `StoreUnavailable` when the database is away.
        """
        with _away_is_unavailable():
            return connect(self._engine, self.options.durability)

    def pepper(self) -> bytes:
        """The secret of 32 bytes that keys are digested with."""
        return self._pepper

    def identity(self) -> str:
        """What no other store has: by it what lies elsewhere is known to be this one's."""
        name, made = "identity", os.urandom(16)
        query = select(secrets.c.value).where(secrets.c.name == name)
        with self.reading() as connection:
            found = connection.execute(query).scalar()
        if found is None:
            with self.changing() as connection:
                found = connection.execute(query).scalar()
                if found is None:
                    connection.execute(secrets.insert().values(name=name, value=made))
        return bytes(found or made).hex()

    @contextlib.contextmanager
    def hold(self, run_id: str, control: Path) -> Iterator[None]:
        """Be the server on this store for the block: it takes one at a time, and is free once its process ended.

        Raises `ConfigError` naming the server that holds it, and `StoreUnavailable` when the database is away.
        """
        with self._locked(control) if self.dialect == "sqlite" else contextlib.nullcontext():
            self._held[run_id] = {"host": this_host(), "pid": os.getpid(), "control": str(control)}
            try:
                self._wait_for_the_end_of_others()
                self._claim(run_id)
                yield
            finally:
                del self._held[run_id]
                with contextlib.suppress(StoreUnavailable), self._writing() as connection:
                    connection.execute(servers.delete().where(servers.c.run_id == run_id))

    def _wait_for_the_end_of_others(self) -> None:
        """For a moment, in which one that was told to end, or killed with its parent, is gone."""
        until = time.monotonic() + HOLD_WAIT_S
        while self.dialect == "postgresql" and self.living_servers() and time.monotonic() < until:
            time.sleep(0.02)

    def _claim(self, run_id: str) -> None:
        """Where there is no lock that goes with a process, the rows of those that live are in the way."""
        dead = sqlalchemy.true() if self.dialect == "sqlite" else self._is_stale()
        with self.changing() as connection:
            connection.execute(servers.delete().where(dead))
            for server in [Server(**row) for row in connection.execute(select(servers)).mappings()]:
                if not (server.is_gone or self._was_ours(server)):
                    raise ConfigError(
                        f"store.url: {show(self._engine.url)} is in use by another server (pid {server.pid} on "
                        f"{server.host.split()[0]}); stop that one, or give this one a store of its own"
                    )
                connection.execute(servers.delete().where(servers.c.run_id == server.run_id))
            self._add_server(connection, run_id)

    def _was_ours(self, server: Server) -> bool:
        """Of a server in this very process, which ended while the database was away and left its row."""
        return server.is_here and server.pid == os.getpid() and server.run_id not in self._held

    @contextlib.contextmanager
    def _locked(self, control: Path) -> Iterator[None]:
        """The lock is the process's: no child inherits it, and it goes however the process ends."""
        try:
            file = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(f"store.url: {self._lock_path} cannot be written ({error.strerror})") from None
        try:
            if not lock(file, fcntl.LOCK_EX, HOLD_WAIT_S):
                pid = os.pread(file, 4096, 0).decode(errors="replace").partition("\n")[0]
                raise ConfigError(
                    f"store.url: {self._engine.url.database} is in use by another server (pid {pid}); "
                    "stop that one, or give this one a store of its own"
                )
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n{control}\n".encode(), 0)
            yield
        finally:
            os.close(file)

    def touch(self, run_id: str) -> None:
        """Say that the server `run_id`, which holds the store, lives."""
        mine = servers.c.run_id == run_id
        with self._writing() as connection:
            seen = connection.execute(servers.update().where(mine).values(seen_at=self._now()))
            if seen.rowcount == 0:  # taken for dead while it was paused
                self._add_server(connection, run_id)

    def _add_server(self, connection: Connection, run_id: str) -> None:
        row = servers.insert().values(run_id=run_id, started_at=self._now(), seen_at=self._now())
        connection.execute(row.values(self._held[run_id]))

    def living_servers(self) -> list[Server]:
        """The servers on this store now."""
        if self.dialect == "sqlite" and not self._is_locked():
            return []
        query = select(servers) if self.dialect == "sqlite" else select(servers).where(~self._is_stale())
        with self.reading() as connection:
            seen = [Server(**row) for row in connection.execute(query).mappings()]
        return [server for server in seen if not server.is_gone]

    def living_runs(self) -> set[str]:
        """The run ids of the servers on this store now. What others left open is to be recovered."""
        return {server.run_id for server in self.living_servers()}

    def is_held(self) -> bool:
        """Whether a server is on this store now."""
        return self._is_locked() if self.dialect == "sqlite" else bool(self.living_servers())

    def close(self) -> None:
        """Close the connections that nobody uses; those in use close when they are given back."""
        self._engine.dispose()

    def _now(self) -> ColumnElement[int]:
        """Unix seconds by the database's clock, since the servers' own may differ."""
        if self.dialect == "sqlite":
            return sqlalchemy.cast(func.strftime("%s", "now"), BigInteger)
        return sqlalchemy.cast(sqlalchemy.extract("epoch", func.clock_timestamp()), BigInteger)

    def _is_stale(self) -> ColumnElement[bool]:
        return servers.c.seen_at < self._now() - LIVING_S

    @property
    def file(self) -> str:
        """SQLite's, by the name that is the same however it was opened: what lies beside it is named after it."""
        return os.path.realpath(str(self._engine.url.database))

    @property
    def _lock_path(self) -> str:
        return f"{self.file}.lock"

    def _is_locked(self) -> bool:
        try:
            file = os.open(self._lock_path, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return not lock(file, fcntl.LOCK_SH)
        finally:
            os.close(file)


def _runs(pid: int) -> bool:
    """Whether the process lives; one that has ended and is not collected yet does not. True where nobody can tell."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return not Path("/proc/self/stat").exists()
    return state not in "ZX"


def this_host() -> str:
    """Where this process is: the machine's name and, on Linux, the namespace that its pids are of."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


@contextlib.contextmanager
def _away_is_unavailable() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if is_away(error):
            raise StoreUnavailable("the store is away, or too busy; try again later") from error
        raise


def _reason(error: BaseException) -> str:
    """The first line of what the driver said."""
    if isinstance(error, StoreUnavailable) and error.__cause__ is not None:
        error = error.__cause__
    said = error.orig if isinstance(error, DBAPIError) else error
    return str(said).strip().partition("\n")[0]


def _create_file(path: Path) -> None:
    """An empty database that only its owner reads: SQLite would make it by the umask, and it holds secrets."""
    if not path.parent.is_dir():
        raise ConfigError(f"store.url: there is no folder {path.parent}; make it, or name another file")
    try:
        path.touch(0o600, exist_ok=False)
    except FileExistsError:
        return
    except OSError as error:
        raise ConfigError(f"store.url: {path} cannot be made ({error.strerror}); name another file") from None


def _read_pepper(path: Path) -> bytes:
    try:
        content = path.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"store.pepper_file: {path} cannot be read ({error.strerror})") from None
    if len(content) < PEPPER_BYTES:
        raise ConfigError(
            f"store.pepper_file: {path} holds {len(content)} bytes; allowed: {PEPPER_BYTES} or more, "
            "such as `openssl rand -hex 32` prints"
        )
    return hashlib.sha256(content).digest()


def _check_value(pepper: bytes) -> bytes:
    """By which a pepper is recognised; it says nothing about the pepper."""
    return hmac.digest(pepper, b"laneway", "sha256")
