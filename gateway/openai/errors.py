"""The error envelope that every failing reply carries."""

from __future__ import annotations

from gateway.openai.text import to_json


def envelope(message: str, type: str, param: str | None, code: str | None) -> bytes:  # noqa: A002 - OpenAI's name
    """`{"error": {…}}` with all four members, null where unknown."""
    return to_json({"error": {"message": message, "type": type, "param": param, "code": code}})
