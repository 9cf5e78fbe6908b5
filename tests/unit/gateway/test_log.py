"""Logs are one JSON object a line, with the fields that were named and no more."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator

import pytest

from backends.log import configure
from gateway import log


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The configured log, put back afterwards."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure("info", stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


class Terminal(io.StringIO):
    """A stream for people."""

    def isatty(self) -> bool:
        return True


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


def test_on_a_terminal_lines_are_for_people_and_cannot_command_it(lines: io.StringIO) -> None:
    screen = Terminal()
    configure("info", screen)

    log.access.info("GET %s %s", "/\x1b[2J\n", 404, extra=log.fields(status=404))

    assert re.fullmatch(r"\d\d:\d\d:\d\d info: GET /\?\[2J\? 404\n", screen.getvalue())


def test_the_level_is_the_least_that_is_written(lines: io.StringIO) -> None:
    configure("warning", lines)
    log.access.info("hidden")
    configure("debug", lines)
    log.access.debug("shown")

    assert [json.loads(line)["message"] for line in lines.getvalue().splitlines()] == ["shown"]


def test_what_json_cannot_say_is_written_as_text(lines: io.StringIO) -> None:
    log.access.info("x", extra=log.fields(odd=object(), lone="\ud800"))

    assert "object object" in json.loads(lines.getvalue())["odd"]
