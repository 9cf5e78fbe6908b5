"""Each family of routes tells a failure in its own envelope, with its own statuses."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends import errors as backend
from gateway import errors as front
from gateway.anthropic.shapes import MessageErrorEnvelope
from gateway.api.errors import method_refused, reply_to
from gateway.api.exchange import Exchange
from gateway.api.families import ANTHROPIC, OPENAI, family_of
from gateway.openai import faults


def exchange(path: str = "/v1/messages") -> Exchange:
    scope: Any = {"type": "http", "method": "POST", "path": path, "headers": [], "state": {}}
    return Exchange.of(scope)


def told(error: Exception) -> tuple[int, str, str]:
    asked = exchange()
    reply = reply_to(error, asked)
    body = msgspec.json.decode(reply.body, type=MessageErrorEnvelope)
    assert body.request_id == asked.shown_id
    return reply.status, body.error.type, body.error.message


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/", "/v1/messages/count_tokens", "/llm/v1/messages"])
def test_messages_are_anthropics(path: str) -> None:
    assert family_of(path) is ANTHROPIC


@pytest.mark.parametrize("path", ["/", "/v1/chat/completions", "/v1/messagesx", "/messages", "/admin/v1/keys"])
def test_everything_else_is_openais(path: str) -> None:
    assert family_of(path) is OPENAI


REPORT = front.LimitReport(scope="s", limit="l", meter="rpm", amount=1, used=1, reserved=0, asked=1, retry_after_s=0.25)


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (front.InvalidBody("m"), 400, "invalid_request_error"),
        (front.NotAuthenticated("m"), 401, "authentication_error"),
        (front.PermissionDenied("m"), 403, "permission_error"),
        (backend.ModelNotFound("m", param=""), 404, "not_found_error"),
        (front.Conflict("m"), 409, "invalid_request_error"),
        (front.BodyTooLarge("m"), 413, "request_too_large"),
        (front.UnsupportedMedia("m"), 415, "invalid_request_error"),
        (front.LimitReached("m", REPORT), 429, "rate_limit_error"),
        (front.BudgetSpent("m", REPORT, code="insufficient_quota"), 429, "rate_limit_error"),
        (backend.DeadlineExceeded("m"), 504, "timeout_error"),
        (backend.Unavailable("m"), 503, "api_error"),
        (front.StoreUnavailable("m"), 503, "api_error"),
        (backend.Overloaded("m"), 529, "overloaded_error"),
        (front.LaneFull("m"), 529, "overloaded_error"),
        (front.WaitedTooLong("m"), 529, "overloaded_error"),
    ],
)
def test_a_failure_has_anthropics_status_and_type(error: Exception, status: int, kind: str) -> None:
    assert told(error)[:2] == (status, kind)


def test_what_broke_is_not_told() -> None:
    status, kind, message = told(RuntimeError("/root"))

    assert (status, kind) == (500, "api_error")
    assert "/root" not in message


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (faults.missing("max_tokens"), "max_tokens: Field required"),
        (faults.missing("messages[0].content[2].text"), "messages.0.content.2.text: Field required"),
        (
            faults.below("max_tokens", "integer", 1, 0),
            "max_tokens: integer below minimum value. Expected a value >= 1, but got 0 instead.",
        ),
        (
            faults.wrong_type("messages[0]", "an object", 1),
            "messages.0: expected an object, but got an integer instead.",
        ),
        (
            faults.not_one_of("messages[0].role", "x", ["user", "assistant"]),
            "messages.0.role: Invalid value: 'x'. Supported values are: 'user' and 'assistant'.",
        ),
        (front.InvalidBody("Invalid X-Timeout: no.", param="X-Timeout"), "X-Timeout: no."),
        (
            backend.PromptTooLong("This model's maximum context length is 4 tokens.", param="messages"),
            "prompt is too long: This model's maximum context length is 4 tokens.",
        ),
    ],
)
def test_a_message_begins_with_the_field_at_fault(error: Exception, message: str) -> None:
    assert told(error)[2] == message


def test_when_to_come_back_is_told_to_both() -> None:
    for path in ("/v1/messages", "/v1/chat/completions"):
        headers = dict(reply_to(front.LaneFull("m", retry_after_s=2.1), exchange(path)).headers)
        assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"3", b"2100")


def test_a_wrong_method_is_told_in_the_same_envelope() -> None:
    reply = method_refused(exchange(), "OPTIONS, POST")

    assert reply.status == 405
    assert msgspec.json.decode(reply.body, type=MessageErrorEnvelope).error.type == "invalid_request_error"
    assert dict(reply.headers)[b"allow"] == b"OPTIONS, POST"
