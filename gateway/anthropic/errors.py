"""How the routes of messages tell what went wrong: Anthropic's envelope, its statuses and its way to name a field."""

from __future__ import annotations

import re

from gateway.anthropic.shapes import MessageError, MessageErrorEnvelope
from gateway.openai.errors import Fault
from gateway.openai.text import to_json

OVERLOADED = 529
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    OVERLOADED: "overloaded_error",
}

_INDEX = re.compile(r"\[(\d+)\]")


def status_of(fault: Fault) -> int:
    """Overload has a status of its own."""
    return OVERLOADED if fault.code == "overloaded" else fault.status


def error_body(fault: Fault, request_id: str) -> bytes:
    """`fault` in the envelope; `request_id` is the one in the headers of the reply."""
    status = status_of(fault)
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return to_json(MessageErrorEnvelope(error=MessageError(type=kind, message=_message(fault)), request_id=request_id))


def _message(fault: Fault) -> str:
    """Such as `messages.0.content: Field required`. Clients that compact a prompt wait for the words of theirs."""
    if fault.code == "context_length_exceeded":
        return f"prompt is too long: {fault.message}"
    if fault.param is None:
        return fault.message
    path = _INDEX.sub(r".\1", fault.param)
    if fault.code == "missing_required_parameter":
        return f"{path}: Field required"
    named = rf"^Invalid (type for )?'?{re.escape(fault.param)}'?: "  # as OpenAI does
    return f"{path}: {re.sub(named, '', fault.message)}"
