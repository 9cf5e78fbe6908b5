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


def report(meter: str = "rpm", retry_after_s: float | None = 0.25) -> front.LimitReport:
    return front.LimitReport(
        scope="key:key_1",
        limit="lim_1",
        meter=meter,
        amount=3,
        used=3,
        reserved=1,
        asked=1,
        retry_after_s=retry_after_s,
    )


@pytest.mark.parametrize("error", [*tree(backend.BackendError), *tree(front.GatewayError)])
def test_every_error_becomes_an_envelope(error: type[Any]) -> None:
    is_limit = issubclass(error, front.LimitReached)
    reply = reply_to(error("what went wrong", *([report()] if is_limit else [])), exchange())

    told = json.loads(reply.body)["error"]
    assert sorted(told.keys() - {"limit"}) == ["code", "message", "param", "type"]
    assert ("limit" in told) == is_limit
    assert 400 <= reply.status < 600
    assert reply.status != 500 or error in (backend.BackendError, front.GatewayError, *tree(backend.BackendFailed))


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


def test_a_limit_says_for_machines_what_refused_and_when_to_come_back() -> None:
    reply = reply_to(front.LimitReached("m", report()), exchange())

    told = json.loads(reply.body)["error"]
    assert (reply.status, told["type"], told["code"]) == (429, "requests", "rate_limit_exceeded")
    assert told["limit"] == {
        "scope": "key:key_1",
        "limit": "lim_1",
        "meter": "rpm",
        "amount": 3,
        "used": 3,
        "reserved": 1,
        "asked": 1,
        "retry_after_s": 0.25,
    }
    headers = dict(reply.headers)
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"1", b"250")
    assert b"x-should-retry" not in headers


@pytest.mark.parametrize(("meter", "kind"), [("rpm", "requests"), ("tpm", "tokens"), ("concurrency", "requests")])
def test_the_type_of_a_rate_limit_is_what_it_counts(meter: str, kind: str) -> None:
    assert json.loads(reply_to(front.LimitReached("m", report(meter)), exchange()).body)["error"]["type"] == kind


def test_a_spent_budget_is_an_insufficient_quota_whatever_it_counts() -> None:
    reply = reply_to(front.BudgetSpent("m", report("tokens"), code="credit_balance_exhausted"), exchange())

    told = json.loads(reply.body)["error"]
    assert (reply.status, told["type"], told["code"]) == (429, "insufficient_quota", "credit_balance_exhausted")


@pytest.mark.parametrize(("meter", "kind"), [("rpm", "requests"), ("tpm", "tokens"), ("usd", "insufficient_quota")])
def test_a_request_that_never_fits_is_told_so_and_what_it_is_too_large_for(meter: str, kind: str) -> None:
    reply = reply_to(front.NeverFits("m", report(meter, None)), exchange())

    assert (reply.status, json.loads(reply.body)["error"]["type"]) == (429, kind)
    assert dict(reply.headers)[b"x-should-retry"] == b"false"


@pytest.mark.parametrize("retry_after_s", [None, 61.0, 3 * 24 * 3600.0])
def test_nobody_is_told_to_sleep_for_longer_than_a_minute(retry_after_s: float | None) -> None:
    headers = dict(reply_to(front.BudgetSpent("m", report("usd", retry_after_s)), exchange()).headers)

    assert headers[b"x-should-retry"] == b"false"
    assert not {b"retry-after", b"retry-after-ms"} & headers.keys()


def test_a_conflict_is_not_tried_again() -> None:
    reply = reply_to(front.Conflict("m"), exchange())

    assert (reply.status, dict(reply.headers)[b"x-should-retry"]) == (409, b"false")


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
