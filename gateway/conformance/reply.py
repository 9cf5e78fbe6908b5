"""An answer as it came over the wire, and the readings of it that the checks share, for whole answers and streams."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import httpx

SHOWN_CHARS = 600
DONE = "[DONE]"


class Mismatch(Exception):
    """An answer is not right. `right` says in a plain sentence what should have come, `got` what came instead.

    Without `got` the whole answer is what came.
    """

    def __init__(self, right: str, got: object = None) -> None:
        super().__init__(right)
        self.right = right
        self.got = None if got is None else short(got)


class Lacking(Exception):
    """The server says that it lacks what a case is about. The message has its own words."""


def expect(holds: bool, right: str, got: object = None) -> None:
    """Raise `Mismatch` unless it holds."""
    if not holds:
        raise Mismatch(right, got)


def same(got: object, right: object, what: str) -> None:
    """Raise `Mismatch` unless both are equal; `what` names them."""
    if got != right:
        raise Mismatch(f"{what} is {short(right)}", f"{what} is {short(got)}")


def short(value: object) -> str:
    """A value as a report shows it, cut short."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


class Reply:
    """One answer. `connection` is the client's end of the connection that it came over."""

    def __init__(self, status: int, headers: httpx.Headers, body: bytes, connection: object = None) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.connection = connection

    def __str__(self) -> str:
        return f"{self.status} {self.content_type}: {short(self.body.decode('utf-8', 'replace'))}"

    @property
    def content_type(self) -> str:
        """With its parameters; empty when there is none."""
        return str(self.headers.get("content-type", ""))

    @property
    def is_stream(self) -> bool:
        """Whether it is a stream of events."""
        return self.content_type.startswith("text/event-stream")

    @cached_property
    def json(self) -> Any:
        """The body as JSON; what is no JSON is a mismatch."""
        try:
            return json.loads(self.body)
        except ValueError:
            raise Mismatch("the body is JSON") from None

    @cached_property
    def data(self) -> list[str]:
        """The data of each event of a stream, as a client's decoder puts it together."""
        events, data = [], list[str]()
        for line in self.body.decode().replace("\r\n", "\n").split("\n"):
            if not line and data:
                events.append("\n".join(data))
                data = []
            name, _, value = line.partition(":")
            if name == "data":
                data.append(value.removeprefix(" "))
        expect(not data, "every event of a stream ends with a blank line")
        return events

    @cached_property
    def chunks(self) -> list[Any]:
        """The JSON of each event of a stream."""
        try:
            return [json.loads(data) for data in self.data if data != DONE]
        except ValueError:
            raise Mismatch("the data of every event is JSON, or [DONE]") from None

    @property
    def parts(self) -> list[Any]:
        """The chunks of a stream that are no error, or the one object of a whole answer."""
        return [chunk for chunk in self.chunks if "error" not in chunk] if self.is_stream else [self.json]

    def choices(self, index: int = 0) -> list[Any]:
        """All that came for one choice."""
        return [choice for part in self.parts for choice in part["choices"] if choice["index"] == index]

    def deltas(self, index: int = 0) -> list[Any]:
        """The messages of one choice, or the pieces of it."""
        return [choice["delta" if self.is_stream else "message"] for choice in self.choices(index)]

    def text(self, index: int = 0) -> str:
        """The text of one choice, of chats and completions."""
        choices = self.choices(index)
        if choices and "text" in choices[0]:
            return "".join(choice["text"] for choice in choices)
        return self.joined("content", index)

    def joined(self, member: str, index: int = 0) -> str:
        """A member of the message that holds text."""
        return "".join(delta.get(member) or "" for delta in self.deltas(index))

    def finish(self, index: int = 0) -> str | None:
        """Why one choice ended; there is exactly one reason, and none is empty."""
        given = [choice["finish_reason"] for choice in self.choices(index) if choice["finish_reason"] is not None]
        expect(len(given) == 1, f"choice {index} has exactly one finish_reason that is not null", given)
        return str(given[0])

    def calls(self, index: int = 0) -> list[dict[str, Any]]:
        """The tool calls of one choice. Pieces are added up by their index as the clients do, repeats and all."""
        if not self.is_stream:
            return list(self.deltas(index)[0].get("tool_calls") or [])
        calls: dict[int, dict[str, Any]] = {}
        for piece in (piece for delta in self.deltas(index) for piece in delta.get("tool_calls") or []):
            call = calls.setdefault(piece["index"], {"id": "", "type": "", "function": {"name": "", "arguments": ""}})
            function = piece.get("function") or {}
            call["id"] += piece.get("id") or ""
            call["type"] += piece.get("type") or ""
            call["function"]["name"] += function.get("name") or ""
            call["function"]["arguments"] += function.get("arguments") or ""
        return [call for _, call in sorted(calls.items())]

    @property
    def usage(self) -> Any:
        """The one usage that an answer has."""
        given = [part["usage"] for part in self.parts if part.get("usage") is not None]
        expect(len(given) == 1, "the answer has exactly one usage", given)
        return given[0]

    def error(self, status: int | tuple[int, ...] = 400, **members: str | None) -> dict[str, Any]:
        """The error of a refusal: the status, OpenAI's envelope around it, and those members as given."""
        statuses = (status,) if isinstance(status, int) else status
        expect(self.status in statuses, f"the status is {' or '.join(map(str, statuses))}")
        expect(self.content_type.startswith("application/json"), "the content type of an error is application/json")
        return error_in(self.json, **members)

    def failure(self) -> dict[str, Any]:
        """The error at the end of a stream that broke: one event with the envelope, and no end that looks good."""
        errors = [chunk for chunk in self.chunks if "error" in chunk]
        expect(len(errors) == 1, "the stream has exactly one event with an error")
        place = next(at for at, data in enumerate(self.data) if data != DONE and "error" in json.loads(data))
        rest = self.data[place + 1 :]
        expect(rest in ([], [DONE]), "nothing but [DONE] follows the error", rest)
        reasons = [choice["finish_reason"] for part in self.parts for choice in part["choices"]]
        expect(not any(reasons), "a stream that broke has no finish_reason", reasons)
        return error_in(errors[0])


def error_in(whole: Any, **members: str | None) -> dict[str, Any]:
    """The error in OpenAI's envelope: four members, all there, `code` a text or null."""
    expect(isinstance(whole, dict) and isinstance(whole.get("error"), dict), "the body is {'error': {…}}")
    error: dict[str, Any] = whole["error"]
    expect({"message", "type", "param", "code"} <= set(error), "an error has message, type, param and code", error)
    expect(isinstance(error["message"], str) and bool(error["message"]), "the message of an error is a text", error)
    for name in ("type", "param", "code"):
        expect(error[name] is None or isinstance(error[name], str), f"an error's {name} is a text or null", error)
    for name, right in members.items():
        same(error[name], right, f"the error's {name}")
    return error
