"""How every process of Laneway writes its log, to stderr: JSON, one object a line; on a terminal, lines for people."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import msgspec

FIELDS = "laneway_fields"  # of a record: what its line says beside the message
OURS = ("laneway", "gateway", "backends")


class JsonLines(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, the record's own fields, and a traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, FIELDS, {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        try:
            return msgspec.json.encode(line, enc_hook=str).decode()
        except UnicodeEncodeError:  # a lone surrogate, which only escapes can carry
            return json.dumps(msgspec.to_builtins(line, enc_hook=str))


class PlainLines(logging.Formatter):
    """Time, level and message, and a traceback if any. Control characters of a client's do not reach the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        message = "".join(char if char.isprintable() else "?" for char in record.getMessage())
        trace = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return f"{time} {record.levelname.lower()}: {message}{trace}"


def configure(level: str = "info", stream: TextIO | None = None) -> None:
    """Send everything to `stream` (stderr), from `level` up; the libraries only from warnings up."""
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PlainLines() if stream.isatty() else JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(level.upper())
