"""Where a command writes what is not for reading: standard output, or a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from gateway.cli.screen import CommandFailed


@contextmanager
def open_output(path: Path | None, form: str) -> Iterator[BinaryIO]:
    """The file of `--output`, or standard output. Parquet on a terminal is refused: it is not text."""
    if path is None:
        if form == "parquet" and sys.stdout.isatty():
            raise CommandFailed("parquet is not for a terminal; name a file with --output, or pipe it to one")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if form == "parquet":
        _check_parquet()
    try:
        with path.open("wb") as file:
            yield file
    except OSError as error:
        raise CommandFailed(f"--output: cannot write {path}: {error.strerror}") from None


def _check_parquet() -> None:
    """Raises `ConfigError` where its extra is missing, before a file is opened, which would empty it."""
    from gateway.export import write_table

    write_table((), (), "parquet", BytesIO())
