"""What comes before a body is judged: codings, types, odd JSON, other methods; and the connection is kept."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import zlib
from collections.abc import Iterator
from typing import Any

import brotli
import pytest
import zstandard

from backends.log import FIELDS
from gateway.config import ServerOptions, Settings
from gateway.lanes import DEFAULT_LANES
from gateway.openai.wire import WireOptions
from gateway.store import StoreOptions
from gateway.tenants import AuthOptions
from tests.integration.front.front_server import CHAT, MESSAGES, Front, Serve, read_until, running

LIMIT = 100_000
BODY: dict[str, Any] = {"model": "scripted", "messages": MESSAGES}
GOOD = json.dumps(BODY).encode()
KEYS = ("code", "message", "param", "type")
ORIGIN = "https://app.example"


class Line:
    """One connection to a front, never opened a second time."""

    def __init__(self, front: Front) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=20)
        self.connection.connect()
        self.connection.auto_open = 0

    def ask(
        self, method: str, path: str, body: bytes | None = None, **headers: str
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        self.connection.request(method, path, body, sent)
        reply = self.connection.getresponse()
        return reply.status, reply.headers, reply.read()

    def error(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, dict[str, Any]]:
        """Of a request that must fail, in the envelope; a good one is answered right after it."""
        status, got, text = self.ask(method, path, body, **headers)
        assert got["content-type"] == "application/json"
        assert got["x-request-id"]
        error: dict[str, Any] = json.loads(text)["error"]
        assert tuple(sorted(error)) == KEYS
        assert self.ask("POST", CHAT, GOOD)[0] == 200
        return status, error


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("front")
    settings = Settings(
        server=ServerOptions(max_body_bytes=LIMIT),
        store=StoreOptions(url=f"sqlite:///{folder}/laneway.db"),
        lanes=dict(DEFAULT_LANES),
        backends={"test": {"type": "scripted", "models": ["scripted"]}},
    )
    with running(settings, folder) as front:
        yield front


@pytest.fixture
def line(bounded: Front) -> Iterator[Line]:
    line = Line(bounded)
    yield line
    line.connection.close()


PACKS = {
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.compress,
}


@pytest.mark.parametrize("coding", PACKS)
def test_a_packed_body_is_read_and_a_corrupt_or_swollen_one_is_told(line: Line, coding: str) -> None:
    pack = PACKS[coding]

    assert line.ask("POST", CHAT, pack(GOOD), Content_Encoding=coding)[0] == 200
    assert line.ask("POST", CHAT, pack(GOOD), Content_Encoding=coding.upper())[0] == 200
    for corrupt in (GOOD, pack(GOOD)[:-4], pack(GOOD) + b"tail"):
        status, error = line.error("POST", CHAT, corrupt, Content_Encoding=coding)
        assert (status, error["param"], error["code"]) == (400, None, None)
    status, error = line.error("POST", CHAT, pack(b" " * 5_000_000), Content_Encoding=coding)
    assert (status, error["code"]) == (413, "request_too_large")


def test_what_cannot_be_read_is_told_in_the_envelope_and_the_connection_is_kept(line: Line) -> None:
    for coding in ("compress", "gzip, br", "*"):
        status, error = line.error("POST", CHAT, GOOD, Content_Encoding=coding)
        assert (status, error["code"]) == (415, "unsupported_media_type")
    status, error = line.error("POST", CHAT, b"--x--", Content_Type="multipart/form-data; boundary=x")
    assert (status, error["code"]) == (415, "unsupported_media_type")
    status, error = line.error("POST", CHAT, b" " * (LIMIT + 1))
    assert (status, error["code"]) == (413, "request_too_large")
    status, error = line.error("DELETE", CHAT, GOOD)
    assert (status, error["code"]) == (405, "method_not_supported")
    assert line.error("POST", "/v1/nope", GOOD)[0] == 404
    assert line.error("GET", "/v1")[0] == 404
    assert line.error("GET", "/v1/")[0] == 404


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/json; x"])
def test_any_other_content_type_is_read_as_json(line: Line, content_type: str) -> None:
    assert line.ask("POST", CHAT, GOOD, **({"Content_Type": content_type} if content_type else {}))[0] == 200


DEEP = b"[" * 400 + b"]" * 400


@pytest.mark.parametrize(
    "odd",
    [
        b'{"model":"scripted","messages":[{"role":"user","content":"\\ud800"}]}',
        b'{"model":"scripted","messages":[{"role":"user","content":"\xff"}]}',
        b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"seed":1e400}',
        b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 5000 + b"}",
        b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"seed":' + b"9" * 4000 + b"}",
        b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"temperature":' + b"9" * 4000 + b"}",
        b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
        b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"zzz":' + b"[" * 2000 + b"]" * 2000 + b"}",
    ],
    ids=lambda odd: repr(odd[60:80]),
)
def test_json_that_cannot_be_taken_is_a_bad_request(line: Line, odd: bytes) -> None:
    assert line.error("POST", CHAT, odd)[0] == 400


@pytest.mark.parametrize(
    "odd",
    [
        b"\xef\xbb\xbf" + GOOD,
        b'{"model":7,"model":"scripted","messages":[{"role":"user","content":"x"}]}',
        b'{"model":"scripted","messages":[{"role":"user","content":"a\\u0000b"}],"n":1.0,"max_tokens":20.0}',
        b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"zzz":' + b"9" * 4000 + b"}",
        b'{"model":"scripted","messages":[{"role":"user","content":"x"}],"zzz":' + DEEP + b"}",
    ],
    ids=lambda odd: repr(odd[:40]),
)
def test_json_that_is_only_odd_is_taken(line: Line, odd: bytes) -> None:
    assert line.ask("POST", CHAT, odd)[0] == 200


PLACES = {
    "free": b'"tools":[{"type":"function","function":{"name":"f","parameters":%s}}]',
    "constrained": b'"tools":[{"type":"function","function":{"name":"f","strict":true,"parameters":%s}}]',
    "format": b'"response_format":{"type":"json_schema","json_schema":{"name":"t","schema":%s}}',
    "template": b'"chat_template_kwargs":{"k":%s}',
    "vLLM": b'"structured_outputs":{"json":%s}',
}
HUGE = [b'{"type":"integer","maximum":%s}' % (b"9" * 400), b'{"enum":[%s]}' % (b"9" * 4000)]


def deep(levels: int) -> bytes:
    """A schema of so many objects, one in the other."""
    return b'{"type":"object","properties":{"a":' * levels + b"{}" + b"}}" * levels


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("schema", [*map(deep, (50, 100, 200, 300, 400, 450, 480, 490, 2000)), *HUGE], ids=len)
def test_deep_or_huge_schemas_are_taken_or_refused_and_never_break_anything(
    line: Line, schema: bytes, place: str
) -> None:
    status = line.ask("POST", CHAT, GOOD[:-1] + b"," + PLACES[place] % schema + b"}")[0]

    assert status in (200, 400)
    assert line.ask("POST", CHAT, GOOD)[0] == 200


def test_expect_continue_is_answered_before_the_body_is_sent(bounded: Front) -> None:
    head = b"POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % (
        CHAT.encode(),
        len(GOOD),
    )

    with socket.create_connection(("127.0.0.1", bounded.port), timeout=20) as connection:
        for _ in range(2):
            connection.sendall(head)
            assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 100 Continue\r\n")
            connection.sendall(GOOD)
            assert read_until(connection, b'"usage"').startswith(b"HTTP/1.1 200 OK\r\n")


def test_heads_without_a_key_say_that_the_server_lives(serve: Serve) -> None:
    front = serve(auth=AuthOptions(keys=("sk-the-only-key-99",)))
    line = Line(front)

    for method in ("HEAD", "GET"):
        for path in ("/", "/api/hello"):
            status, headers, body = line.ask(method, path)
            assert status == 200
            assert headers["content-type"] == "application/json"
            assert bool(body) == (method == "GET")
    line.connection.close()


def test_browsers_may_read_every_error(serve: Serve) -> None:
    front = serve(
        server=ServerOptions(max_body_bytes=LIMIT, cors_origins=(ORIGIN,)),
        auth=AuthOptions(keys=("sk-the-only-key-99",)),
    )
    key = {"Authorization": "Bearer sk-the-only-key-99", "Origin": ORIGIN}
    failing = {**BODY, "script": {"fail": {"kind": "crash"}}}

    with front.client(headers=key) as client:
        replies = [
            client.post(CHAT, json={**BODY, "n": 0}),
            client.post(CHAT, json=BODY, headers={"Authorization": "Bearer sk-wrong-wrong"}),
            client.post("/v1/nope"),
            client.get(CHAT),
            client.post(CHAT, content=b" " * (LIMIT + 1)),
            client.post(CHAT, content=GOOD, headers={"Content-Encoding": "compress"}),
            client.post(CHAT, json=failing),
        ]

    assert [reply.status_code for reply in replies] == [400, 401, 404, 405, 413, 415, 500]
    for reply in replies:
        assert reply.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in reply.headers["access-control-expose-headers"]


def test_unknown_fields_are_counted_without_their_names(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    front = serve()

    with front.client() as client:
        assert client.post(CHAT, json={**BODY, "zzz-1": 1, "zzz-2": None}).status_code == 200
        metrics = client.get("/metrics").text

    assert "laneway_unknown_fields_total 2.0" in metrics
    assert "zzz" not in f"{metrics}{caplog.text}"


def test_unknown_fields_are_logged_when_that_is_asked_for_a_few_and_cut_short(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    front = serve(wire=WireOptions(unknown_fields="warn"))
    unknown = {f"zzz{number}\n{'y' * 1000}": 1 for number in range(100)}

    with front.client(headers={"X-Request-Id": "trace-1"}) as client:
        assert client.post(CHAT, json={**BODY, **unknown}).status_code == 200

    (line,) = [record for record in caplog.records if "unknown fields" in record.getMessage()]
    assert getattr(line, FIELDS)["request_id"] == "trace-1"
    assert line.getMessage().startswith("100 unknown fields in a request: 'zzz0\\nyyy")
    assert len(line.getMessage()) < 400
    assert "zzz5" not in line.getMessage()


def test_unknown_fields_are_refused_when_that_is_asked_and_nothing_else_is(serve: Serve) -> None:
    front = serve(wire=WireOptions(unknown_fields="reject"))

    with front.client() as client:
        refused = client.post(CHAT, json={**BODY, "zzz": 1})
        lenient = client.post(CHAT, json={**BODY, "tools": [], "stop": list("vwxyz")})

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "zzz")
    assert lenient.status_code == 200


def test_more_tokens_than_the_window_has_end_with_it(serve: Serve) -> None:
    endless = {**BODY, "max_tokens": 9, "script": {"tokens": ["a"] * 9, "eos": False}}

    with serve(max_model_len=4).client() as client:
        choice = client.post(CHAT, json=endless).json()["choices"][0]

    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", "aaa")


def test_what_the_sdk_sends_passes_a_strict_server(serve: Serve) -> None:
    front = serve(wire=WireOptions(strict=True))
    function: Any = {
        "name": "f",
        "description": "x",
        "parameters": {"type": "object", "properties": {}},
        "strict": True,
    }

    with front.openai() as client:
        first = client.chat.completions.create(
            model="scripted",
            messages=[
                {"role": "developer", "content": "x"},
                {"role": "user", "content": [{"type": "text", "text": "y"}]},
            ],
            tools=[{"type": "function", "function": function}],
            tool_choice="auto",
            max_completion_tokens=20,
            stop=["v", "w"],
            metadata={"k": "v"},
            service_tier="default",
            store=False,
        )
        said: Any = first.choices[0].message.model_dump()
        chunks = client.chat.completions.create(
            model="scripted",
            messages=[{"role": "user", "content": "y"}, said, {"role": "user", "content": "z"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        usage = [chunk.usage for chunk in chunks][-1]
        text = client.completions.create(model="scripted", prompt="a b", logprobs=1, best_of=2, echo=True)

    assert usage is not None
    assert text.choices[0].text.startswith("a b")


def test_a_window_that_is_too_small_is_told_after_the_model_and_under_an_idempotency_key_too(serve: Serve) -> None:
    front = serve(wire=WireOptions(strict=True), max_model_len=8)

    with front.client() as client:
        unknown = client.post(CHAT, json={**BODY, "model": "nope", "max_tokens": 9})
        named = [client.post(CHAT, json={**BODY, "max_tokens": 9}, headers={"Idempotency-Key": "k"}) for _ in range(2)]

        words = [{"role": "user", "content": "one two three"}]
        beside, fitting = (client.post(CHAT, json={**BODY, "messages": words, "max_tokens": cap}) for cap in (6, 5))

    assert (unknown.status_code, fitting.status_code) == (404, 200)
    for reply in (*named, beside):
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "max_tokens")
    assert front.count("started") == 1


def test_a_silent_stream_gets_comments_alone_and_the_sdk_reads_to_its_end(serve: Serve) -> None:
    front = serve(wire=WireOptions(keep_alive_s=0.05))
    streamed = {**BODY, "stream": True, "script": {"tokens": ["one", " two"], "delay_s": 0.4}}

    with front.client() as client, front.openai() as sdk:
        raw = client.post(CHAT, json=streamed).text
        chunks = sdk.chat.completions.create(
            model="scripted", messages=BODY["messages"], stream=True, extra_body={"script": streamed["script"]}
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    assert {line for line in raw.split("\n") if not line.startswith("data: ")} == {"", ": keep-alive"}
    assert raw.count(": keep-alive\n\n") >= 2
    assert text == "one two"
