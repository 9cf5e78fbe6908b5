"""Commands that end by themselves, run as the console script runs them but in this process, which takes no second."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec import Struct

from gateway.cli.main import main


class Done(Struct, frozen=True):
    """What a command left: its exit code and what it wrote."""

    code: int
    stdout: bytes
    err: str

    @property
    def out(self) -> str:
        return self.stdout.decode()

    @property
    def document(self) -> Any:
        """Its one JSON document."""
        return json.loads(self.stdout)


class Commands:
    """The command line, with one config for all."""

    def __init__(self, config: Path) -> None:
        self.config = config

    def run(self, *arguments: object, terminal: bool = False, columns: int = 100) -> Done:
        """With standard output as a file, or as a terminal of so many columns."""
        return run("laneway", *arguments, "--config", self.config, terminal=terminal, columns=columns)

    def json(self, *arguments: object) -> Any:
        """What it prints with `--json`, when it went well and said nothing else."""
        done = self.run(*arguments, "--json")
        assert (done.code, done.err) == (0, "")
        return done.document


def run(*argv: object, terminal: bool = False, columns: int = 100) -> Done:
    """As `Commands.run`, with every word given."""
    out, err = Output(terminal), Output(terminal)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "argv", [str(word) for word in argv]))
        stack.enter_context(mock.patch.dict("os.environ", {"COLUMNS": str(columns), "TERM": "xterm"}))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        code = _exit_code()
    return Done(code, out.written(), err.written().decode())


def _exit_code() -> int:
    try:
        main()
    except SystemExit as end:
        assert end.code is None or isinstance(end.code, int)
        return end.code or 0
    return 0


class Output(io.TextIOWrapper):
    """A stream that keeps what is written."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def written(self) -> bytes:
        self.flush()
        kept = self.buffer
        assert isinstance(kept, io.BytesIO)
        return kept.getvalue()


def one_line(text: str) -> bool:
    """Whether it is a single clear line."""
    return text.count("\n") == 1 and text.endswith("\n")


def ids(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Of rows that a command listed."""
    return [row["id"] for row in rows]
