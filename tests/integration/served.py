"""`laneway serve` as a real process on a free port, for the tests that need the whole product."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import psutil

LANEWAY = (sys.executable, "-P", "-m", "gateway.cli.main")
IN_TIME_S = 30.0
SCRIPTED = """
[server]
port = 0
[backends.test]
type = "scripted"
models = ["scripted"]
"""


def eventually(condition: Callable[[], bool], what: str, within_s: float = IN_TIME_S) -> None:
    """Wait for what other processes do."""
    ends_at = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends_at, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that still run; a dead one that its new parent has not collected yet does not."""

    def runs(process: psutil.Process) -> bool:
        try:
            return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    return [process for process in processes if runs(process)]


class Served:
    """A running `laneway serve`."""

    def __init__(self, toml: str, folder: Path, environ: dict[str, str]) -> None:
        self.config = config = folder / "laneway.toml"  # a store is beside it unless it names one
        self._output, self._log = folder / "output", folder / "log"
        config.write_text(toml, encoding="utf-8")
        with self._output.open("wb") as output, self._log.open("wb") as log:
            argv = (*LANEWAY, "serve", "--config", str(config))
            temporary = {"TMPDIR": str(folder)} if len(str(folder)) < 40 else {}
            self.process = subprocess.Popen(argv, stdout=output, stderr=log, env=os.environ | temporary | environ)

    @property
    def output(self) -> str:
        """What it printed for people."""
        return self._output.read_text(encoding="utf-8")

    @property
    def log(self) -> str:
        """What it and its children logged."""
        return self._log.read_text(encoding="utf-8")

    @property
    def address(self) -> str:
        """Its root URL, as it printed it."""
        found = re.search(r"https?://\S+(?=/v1\n)", self.output)
        assert found is not None, self.output
        return found.group()

    def wait_until_ready(self) -> None:
        """Wait for the line that says so."""
        eventually(lambda: "ready after" in self.output or self.process.poll() is not None, "ready")
        assert self.process.poll() is None, self.log

    def descendants(self) -> list[psutil.Process]:
        """Every process below it."""
        children: list[psutil.Process] = psutil.Process(self.process.pid).children(recursive=True)
        return children

    def child(self, argument: str) -> psutil.Process:
        """The one process below it that has this word in its command line."""
        (found,) = [process for process in self.descendants() if argument in " ".join(process.cmdline())]
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal it and wait for its exit code."""
        self.process.send_signal(number)
        return self.process.wait(IN_TIME_S)


class Serve(Protocol):
    """Starts a server; it ends with the test."""

    def __call__(self, toml: str = SCRIPTED, *, ready: bool = True, **environ: str) -> Served: ...
