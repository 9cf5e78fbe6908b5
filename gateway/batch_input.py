"""The input of a batch: a file of JSON lines, checked as a whole before any of them is run, then read line by line."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta, Struct

from gateway.batches import Fault

MOST_FAULTS = 100  # that are told of one file
BOM = b"\xef\xbb\xbf"
MAX_ID_CHARS = 512


class InputLine(Struct, frozen=True):
    """One request. `body` is as the client wrote it."""

    custom_id: Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARS)]
    method: str
    url: str
    body: msgspec.Raw


class BatchInput:
    """The lines of one file, numbered from 1; blank lines are none. Each read opens the file anew."""

    def __init__(self, path: Path, max_line_bytes: int) -> None:
        """Finds the lines. Raises `FileNotFoundError`."""
        self._path = path
        self._max_line_bytes = max_line_bytes
        self._places = array("Q")  # where each line begins
        self._ends = array("Q")
        self._file_lines = array("Q")  # its number among all lines of the file
        with path.open("rb") as file:
            for at, (begins_at, length) in enumerate(_spans(file), start=1):
                if length:
                    self._places.append(begins_at)
                    self._ends.append(begins_at + length)
                    self._file_lines.append(at)

    def __len__(self) -> int:
        return len(self._places)

    def read(self, number: int) -> InputLine:
        """A line of a file in which `check` found nothing."""
        with self._path.open("rb") as file:
            return _DECODER.decode(self._text(file, number))

    def custom_ids(self) -> Iterator[str]:
        """Of all lines, in their order."""
        with self._path.open("rb") as file:
            for number in range(1, len(self) + 1):
                yield _DECODER.decode(self._text(file, number)).custom_id

    def check(self, endpoint: str, most_lines: int) -> tuple[Fault, ...]:
        """What is wrong, up to `MOST_FAULTS`; nothing when all of it can be run."""
        if not len(self):
            return (Fault(code="empty_file", message="The input file has no lines.", param="input_file_id"),)
        if len(self) > most_lines:
            message = f"The input file has {len(self)} lines; a batch may have {most_lines}. Split it."
            return (Fault(code="too_many_lines", message=message, param="input_file_id"),)
        faults: list[Fault] = []
        seen: dict[str, int] = {}
        with self._path.open("rb") as file:
            for number in range(1, len(self) + 1):
                at = self._file_lines[number - 1]
                fault = self._fault(file, number, at, endpoint, seen)
                if fault is not None:
                    faults.append(fault)
                if len(faults) == MOST_FAULTS:
                    break
        return tuple(faults)

    def _fault(self, file: BinaryIO, number: int, at: int, endpoint: str, seen: dict[str, int]) -> Fault | None:
        def fault(code: str, message: str, param: str | None = None) -> Fault:
            return Fault(code=code, message=message, line=at, param=param)

        if self._ends[number - 1] - self._places[number - 1] > self._max_line_bytes:
            return fault("line_too_long", f"The line is longer than {self._max_line_bytes} bytes.")
        text = self._text(file, number)
        try:
            values = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return fault("invalid_json_line", "The line is not valid JSON.")
        if not isinstance(values, dict):
            return fault("invalid_json_line", "The line is not a JSON object.")
        return _fault_in(values, at, endpoint, seen, fault)

    def _text(self, file: BinaryIO, number: int) -> bytes:
        begins_at = self._places[number - 1]
        text = os.pread(file.fileno(), self._ends[number - 1] - begins_at, begins_at)
        return text.removeprefix(BOM) if begins_at == 0 else text


_DECODER = msgspec.json.Decoder(InputLine)


def _fault_in(
    values: dict[str, Any], at: int, endpoint: str, seen: dict[str, int], fault: Callable[..., Fault]
) -> Fault | None:
    custom_id, method, url, body = (values.get(name) for name in ("custom_id", "method", "url", "body"))
    for name in ("custom_id", "method", "url", "body"):
        if values.get(name) is None:
            return fault("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID_CHARS:
        return fault("invalid_custom_id", f"'custom_id' must be a text of 1 to {MAX_ID_CHARS} characters.", "custom_id")
    if custom_id in seen:
        message = f"The custom_id '{custom_id[:60]}' is that of line {seen[custom_id]} too; each needs its own."
        return fault("duplicate_custom_id", message, "custom_id")
    seen[custom_id] = at
    if method != "POST":
        return fault("invalid_method", f"The method must be 'POST', but it is '{str(method)[:20]}'.", "method")
    if url != endpoint:
        return fault("invalid_url", f"The url must be the batch's endpoint '{endpoint}'.", "url")
    if not isinstance(body, dict):
        return fault("invalid_body", "The body must be a JSON object.", "body")
    if body.get("stream"):
        return fault("stream_not_supported", "A line of a batch cannot be streamed: leave 'stream' out.", "body.stream")
    return None


def _spans(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Of every line, where it begins and how long it is without white space at its end. A line may be of any length,
    so it is read in pieces."""
    begins_at = length = at = 0
    while piece := file.readline(1 << 20):
        kept = len(piece.rstrip())
        if kept:
            length = at + kept - begins_at
        at += len(piece)
        if piece.endswith(b"\n"):
            yield begins_at, length
            begins_at, length = at, 0
    if at > begins_at:
        yield begins_at, length
