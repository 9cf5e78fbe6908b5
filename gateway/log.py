"""Structured logs: one JSON object a line. What may be logged is named field by field; no header and no body is."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import TextIO

import msgspec

ROOT = "laneway"
FIELDS = "laneway_fields"

access = logging.getLogger(f"{ROOT}.access")


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


def configure(level: str = "info", stream: TextIO | None = None) -> None:
    """Send everything to `stream` (stderr), from `level` up; the libraries only from warnings up."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    for name in (ROOT, "gateway", "backends"):
        logging.getLogger(name).setLevel(level.upper())


def fields(**values: object) -> dict[str, dict[str, object]]:
    """`extra` of a logging call: fields of the line. None is left out."""
    return {FIELDS: {name: value for name, value in values.items() if value is not None}}
