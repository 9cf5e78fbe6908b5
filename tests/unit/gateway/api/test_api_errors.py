"""The table of errors: complete, and saying no more than a client may know."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from backends import errors as backend
from gateway import errors as front
from gateway.api.errors import TABLE, reply_to
from gateway.api.exchange import Exchange


def exchange() -> Exchange:
    scope: Any = {"type": "http", "method": "POST", "path": "/v1/x", "headers": [], "state": {}}
    return Exchange.of(scope)


def tree(base: type[Exception]) -> Iterator[type[Any]]:
    yield base
    for child in base.__subclasses__():
        yield from tree(child)


@pytest.mark.parametrize("error", [*tree(backend.BackendError), *tree(front.GatewayError)])
def test_every_error_becomes_an_envelope(error: type[Any]) -> None:
    reply = reply_to(error("what went wrong"), exchange())

    told = json.loads(reply.body)["error"]
    assert sorted(told) == ["code", "message", "param", "type"]
    assert 400 <= reply.status < 600
    assert error in (backend.BackendError, front.GatewayError) or reply.status != 500 or error is backend.BackendFailed


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (front.InvalidBody("m", param="n", code="invalid_type"), 400, "invalid_request_error", "invalid_type"),
        (front.BodyTooLarge("m"), 413, "invalid_request_error", "request_too_large"),
        (front.NotAuthenticated("m"), 401, "invalid_request_error", None),
        (front.PermissionDenied("m"), 403, "permission_error", None),
        (front.LaneFull("m", retry_after_s=2.1), 503, "service_unavailable", "overloaded"),
        (backend.UnsupportedParameter("m"), 400, "invalid_request_error", "unsupported_parameter"),
        (backend.ModelNotFound("m"), 404, "invalid_request_error", "model_not_found"),
        (backend.EngineDied("m"), 503, "service_unavailable", "engine_died"),
        (backend.DeadlineExceeded("m"), 504, "server_error", "deadline_exceeded"),
    ],
)
def test_the_table(error: Exception, status: int, kind: str, code: str | None) -> None:
    reply = reply_to(error, exchange())

    told = json.loads(reply.body)["error"]
    assert (reply.status, told["type"], told["code"], told["message"]) == (status, kind, code, "m")
    assert (b"retry-after" in dict(reply.headers)) == (status == 503)


def test_the_time_to_come_back_is_rounded_up_to_whole_seconds() -> None:
    assert dict(reply_to(front.LaneFull("m", retry_after_s=2.1), exchange()).headers)[b"retry-after"] == b"3"
    assert dict(reply_to(backend.Unavailable("m"), exchange()).headers)[b"retry-after"] == b"2"


@pytest.mark.parametrize("error", [backend.BackendFailed("at /srv/key"), KeyError("secret"), RuntimeError("/root")])
def test_what_broke_is_not_told(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    reply = reply_to(error, exchange())

    assert reply.status == 500
    assert str(error).encode() not in reply.body
    assert len(caplog.records) == 1


def test_a_prompt_that_is_too_long_blames_the_field_of_its_route() -> None:
    error = backend.PromptTooLong("maximum context length is 4")

    assert json.loads(reply_to(error, exchange(), "prompt").body)["error"]["param"] == "prompt"


def test_the_table_has_a_last_row_for_everything() -> None:
    assert TABLE[Exception].status == 500
