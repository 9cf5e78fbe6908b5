"""The error envelope that every failing reply carries."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.errors import LimitReport
from gateway.openai.text import to_json


def envelope(
    message: str,
    type: str,  # noqa: A002 - OpenAI's name
    param: str | None,
    code: str | None,
    limit: LimitReport | None = None,
) -> bytes:
    """`{"error": {…}}` with all four members, null where unknown; `limit`, ours, says which limit refused and why."""
    error: dict[str, Any] = {"message": message, "type": type, "param": param, "code": code}
    if limit is not None:
        error["limit"] = msgspec.to_builtins(limit)
    return to_json({"error": error})
