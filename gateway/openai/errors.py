"""The error envelope that every failing reply carries."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from gateway.errors import LimitReport
from gateway.openai.text import to_json


class Fault(Struct, frozen=True, kw_only=True):
    """What went wrong with a request, in OpenAI's words. Other families of routes put it in their own."""

    status: int
    type: str
    message: str
    param: str | None = None
    code: str | None = None
    limit: LimitReport | None = None


def status_of(fault: Fault) -> int:
    """The status as it is."""
    return fault.status


def error_body(fault: Fault, request_id: str) -> bytes:
    """`fault` in the envelope, which has no place for the request's id: it is in a header."""
    return envelope(fault.message, fault.type, fault.param, fault.code, fault.limit)


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
