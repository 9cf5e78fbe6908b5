"""Which requests get in."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.api.auth import Gate, mask
from gateway.api.exchange import Exchange
from gateway.errors import NotAuthenticated
from gateway.tenants import ANONYMOUS, AuthOptions, KeyRing

KEYED = Gate(KeyRing(AuthOptions(keys=("sk-right-key-123456",))))
OPEN = Gate(KeyRing(AuthOptions()))


def exchange(headers: dict[str, str]) -> Exchange:
    return exchange_of(list(headers.items()))


def exchange_of(headers: list[tuple[str, str]]) -> Exchange:
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers]
    scope: Any = {"type": "http", "method": "POST", "path": "/x", "headers": pairs, "state": {}}
    return Exchange.of(scope)


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer sk-right-key-123456"},
        {"Authorization": "bEARER   sk-right-key-123456  "},
        {"api-key": "sk-right-key-123456"},
        {"x-api-key": " sk-right-key-123456"},
        {"Authorization": "Basic eDp5", "api-key": "sk-right-key-123456"},
    ],
)
def test_a_known_key_gets_in_whatever_header_it_comes_in(headers: dict[str, str]) -> None:
    seen = exchange(headers)

    key = KEYED.admit(seen)

    assert (key.tenant, seen.key) == ("default", key)


@pytest.mark.parametrize("headers", [{}, {"Authorization": ""}, {"Authorization": "Bearer"}, {"Authorization": "sk-x"}])
def test_no_key_is_told_where_to_put_one(headers: dict[str, str]) -> None:
    with pytest.raises(NotAuthenticated, match="Authorization header") as caught:
        KEYED.admit(exchange(headers))

    assert caught.value.code is None


def test_a_wrong_key_is_refused_and_masked() -> None:
    with pytest.raises(NotAuthenticated) as caught:
        KEYED.admit(exchange({"Authorization": "Bearer sk-abcdefgh-12345yz"}))

    assert caught.value.code == "invalid_api_key"
    assert caught.value.message == "Incorrect API key provided: sk-ab***yz."


@pytest.mark.parametrize("name", ["authorization", "api-key", "x-api-key"])
@pytest.mark.parametrize("others", [[], [("x-other", "1"), ("x-other", "2")]])
def test_two_headers_for_one_key_are_refused_even_when_both_are_right(name: str, others: list[tuple[str, str]]) -> None:
    secret = "Bearer sk-right-key-123456" if name == "authorization" else "sk-right-key-123456"

    with pytest.raises(NotAuthenticated, match="more than one"):
        KEYED.admit(exchange_of([(name, secret), *others, (name, secret)]))


def test_other_headers_may_be_repeated() -> None:
    pairs = [("cookie", "a"), ("authorization", "Bearer sk-right-key-123456"), ("cookie", "b")]

    assert KEYED.admit(exchange_of(pairs)).tenant == "default"


def test_an_open_server_takes_anyone() -> None:
    assert OPEN.admit(exchange({})) == ANONYMOUS
    assert OPEN.admit(exchange({"Authorization": "Bearer whatever"})) == ANONYMOUS


def test_a_short_or_odd_key_is_masked_nearly_whole() -> None:
    assert mask(b"secret12") == "se***"
    assert mask(b"\x00\xff" + b"x" * 20) == "??xxx***xx"
