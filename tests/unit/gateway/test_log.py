"""Logs are one JSON object a line, with the fields that were named and no more."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from gateway import log


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The configured log, put back afterwards."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    log.configure("info", stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def test_a_line_is_json_with_its_fields(lines: io.StringIO) -> None:
    log.access.info("GET %s", "/x\n", extra=log.fields(status=200, key=None, model="ünï"))

    line = json.loads(lines.getvalue())
    assert (line["level"], line["logger"], line["message"]) == ("info", "laneway.access", "GET /x\n")
    assert (line["status"], line["model"]) == (200, "ünï")
    assert "key" not in line
    assert lines.getvalue().count("\n") == 1


def test_a_traceback_stays_on_its_line(lines: io.StringIO) -> None:
    try:
        raise ValueError("broken")
    except ValueError as error:
        logging.getLogger("laneway.front").error("unexpected", exc_info=error)

    line = json.loads(lines.getvalue())
    assert "ValueError: broken" in line["traceback"]
    assert lines.getvalue().count("\n") == 1


def test_libraries_speak_only_from_warnings_up(lines: io.StringIO) -> None:
    logging.getLogger("httpx").info("hidden")
    logging.getLogger("laneway.x").info("shown")

    assert [json.loads(line)["message"] for line in lines.getvalue().splitlines()] == ["shown"]


def test_what_json_cannot_say_is_written_as_text(lines: io.StringIO) -> None:
    log.access.info("x", extra=log.fields(odd=object(), lone="\ud800"))

    assert "object object" in json.loads(lines.getvalue())["odd"]
