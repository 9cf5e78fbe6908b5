"""What every reply must be, whatever was asked: no 5xx, errors in the envelope, answers as our own document says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, TypeAlias

from jsonschema import Draft202012Validator

from gateway.openapi import openapi_document

Json: TypeAlias = dict[str, Any]

MEMBERS = ("message", "type", "param", "code")
ENVELOPE = {"$ref": "#/components/schemas/ErrorEnvelope"}


class Rules:
    """Our document, and what it says of one reply."""

    def __init__(self) -> None:
        self._document = openapi_document()
        self._validators: dict[str, Draft202012Validator] = {}

    def faults(self, status: int, content_type: str, body: bytes, answer: Json | None = None) -> list[str]:
        """What is wrong with a reply. `answer` is the operation's entry for the status; None: no operation is meant."""
        if status >= 500:
            return [f"status {status}: {body[:300]!r}"]
        if status >= 400:
            return list(self._error_faults(content_type, body, self._error_schema(answer)))
        if answer is None or status == 204:
            return []
        media_type = content_type.partition(";")[0]
        if media_type not in answer["content"]:
            return [f"content type {content_type!r} is none of {list(answer['content'])}"]
        return list(self._answer_faults(media_type, body, answer["content"][media_type]["schema"]))

    def _error_schema(self, answer: Json | None) -> Json:
        """What the operation says of this failure; the envelope, where it says nothing."""
        if answer is None:
            return ENVELOPE
        named = self._document["components"]["responses"]
        whole = named[answer["$ref"].rpartition("/")[2]] if "$ref" in answer else answer
        schema: Json = whole["content"]["application/json"]["schema"]
        return schema

    def _error_faults(self, content_type: str, body: bytes, schema: Json) -> Iterator[str]:
        if content_type != "application/json":
            yield f"an error of content type {content_type!r}"
            return
        try:
            whole = json.loads(body)
        except ValueError:
            yield f"an error that is no JSON: {body[:300]!r}"
            return
        if schema != ENVELOPE:
            yield from self._against(schema, whole)
            return
        error = whole.get("error") if isinstance(whole, dict) else None
        if not isinstance(error, dict) or list(whole) != ["error"] or [*error][:4] != [*MEMBERS]:
            yield f"not the envelope: {body[:300]!r}"
            return
        yield from self._against(ENVELOPE, whole)
        if not error["message"] or "Traceback" in error["message"]:
            yield f"a message for nobody: {error['message']!r}"

    def _answer_faults(self, media_type: str, body: bytes, schema: Json) -> Iterator[str]:
        if media_type == "text/event-stream":
            lines = [line for line in body.decode().split("\n") if line.startswith("data: ")]
            for line in lines:
                if line != "data: [DONE]":
                    event = json.loads(line.removeprefix("data: "))
                    yield from self._against(ENVELOPE if list(event) == ["error"] else schema, event)
        elif media_type == "application/json":
            yield from self._against(schema, json.loads(body))

    def _against(self, schema: Json, value: object) -> Iterator[str]:
        name = json.dumps(schema)
        if name not in self._validators:
            self._validators[name] = Draft202012Validator({**schema, "components": self._document["components"]})
        for error in self._validators[name].iter_errors(value):
            yield f"{error.json_path}: {error.message[:300]}"
