"""The table of validation against a real front, in both modes: the answer, the backend left alone, the connection kept.

A vector is sent on a connection that is never opened anew, with `stream` and without, and a good body right after it.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.config import Settings
from gateway.conformance.vectors import TYPE, Vector, good_body, vectors
from gateway.lanes import DEFAULT_LANES
from gateway.openai.wire import WireOptions
from gateway.store import StoreOptions
from tests.integration.front.front_server import Front, running

MODEL = "scripted"
WINDOW = 64
VECTORS = list(vectors(WINDOW))


@pytest.fixture(scope="module", params=[False, True], ids=["lenient", "strict"])
def front(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("front")
    settings = Settings(
        store=StoreOptions(url=f"sqlite:///{folder}/laneway.db"),
        wire=WireOptions(strict=request.param),
        lanes=dict(DEFAULT_LANES),
        backends={"test": {"type": "scripted", "models": [MODEL], "max_model_len": WINDOW}},
    )
    with running(settings, folder) as front:
        yield front


@pytest.fixture
def strict(front: Front, request: pytest.FixtureRequest) -> bool:
    return bool(request.node.callspec.params["front"])


@pytest.fixture
def connection(front: Front) -> Iterator[http.client.HTTPConnection]:
    """One connection, never opened a second time."""
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=20)
    connection.connect()
    connection.auto_open = 0
    yield connection
    connection.close()


def ask(connection: http.client.HTTPConnection, method: str, route: str, body: bytes) -> tuple[int, str, bytes]:
    connection.request(method, route, body, {"Content-Type": "application/json"})
    reply = connection.getresponse()
    return reply.status, reply.headers["content-type"], reply.read()


def error_in(body: bytes) -> dict[str, Any]:
    whole = json.loads(body)
    assert list(whole) == ["error"]
    error: dict[str, Any] = whole["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    return error


def assert_good(connection: http.client.HTTPConnection, route: str) -> None:
    path = route if route.endswith("completions") else "/v1/chat/completions"
    status, _, body = ask(connection, "POST", path, json.dumps(good_body(path, MODEL)).encode())

    assert status == 200
    assert json.loads(body)["choices"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector.name)
def test_a_vector_is_answered_as_the_table_says(
    front: Front, strict: bool, connection: http.client.HTTPConnection, vector: Vector, stream: bool
) -> None:
    stream = stream and vector.may_stream  # what is about streams itself, or is no body, is sent as it is
    expected = vector.expected_status(strict=strict)
    started = front.count("started")

    status, content_type, body = ask(connection, vector.method, vector.route, vector.payload(MODEL, stream=stream))

    assert status == expected, body
    if expected == 200:
        assert content_type == ("text/event-stream; charset=utf-8" if stream else "application/json")
        if vector.finish_reason is not None and not stream:
            choice = json.loads(body)["choices"][0]
            assert (choice["text"], choice["finish_reason"]) == ("", vector.finish_reason)
    else:
        error = error_in(body)
        assert content_type == "application/json"
        assert (error["type"], error["param"], error["code"]) == (TYPE, vector.param, vector.code)
        assert 0 < len(error["message"]) < 600
        assert front.count("started") == started
    assert_good(connection, vector.route)


def test_every_row_of_the_table_is_there() -> None:
    assert {vector.number for vector in VECTORS} == {*range(1, 72), 79, 80, 81}
