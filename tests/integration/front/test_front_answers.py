"""Answers of a real front to the OpenAI SDK and to plain HTTP."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import brotli
import pytest
import zstandard
from openai import APIError, BadRequestError, InternalServerError, NotFoundError

from tests.integration.front.front_server import FAILURES

if TYPE_CHECKING:
    from tests.integration.front.front_server import Front, Serve

USER: Any = [{"role": "user", "content": "one two three"}]
BODY = {"model": "scripted", "messages": USER}


def script(**fields: object) -> dict[str, object]:
    return {"script": fields}


def test_the_sdk_gets_a_whole_answer(front: Front) -> None:
    with front.openai() as client:
        answer = client.chat.completions.create(model="scripted", messages=USER)

    assert answer.choices[0].message.content == "one two three"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 4)


def test_the_sdk_streams_an_answer_with_usage(front: Front) -> None:
    with front.openai() as client:
        chunks = list(
            client.chat.completions.create(
                model="scripted", messages=USER, stream=True, stream_options={"include_usage": True}
            )
        )

    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "one two three"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].usage is not None
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 7)
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


def test_the_sdk_gets_legacy_completions_streamed_and_whole(front: Front) -> None:
    with front.openai() as client:
        whole = client.completions.create(model="scripted", prompt=["a b", "c"])
        pieces = list(client.completions.create(model="scripted", prompt="a b", stream=True))

    assert [choice.text for choice in whole.choices] == ["a b", "c"]
    assert "".join(piece.choices[0].text for piece in pieces if piece.choices) == "a b"


def test_every_reply_has_an_id_and_streams_have_their_headers(front: Front) -> None:
    with front.client() as client:
        ours = client.get("/v1/models")
        theirs = client.get("/nope", headers={"X-Request-Id": "trace 7"})
        odd = client.get("/health", headers={"X-Request-Id": "x" * 129})
        stream = client.post("/v1/chat/completions", json={**BODY, "stream": True})

    assert ours.headers["x-request-id"].startswith("req_")
    assert theirs.headers["x-request-id"] == "trace 7"
    assert odd.headers["x-request-id"].startswith("req_")
    assert ours.headers["openai-version"] == "2020-10-01"
    assert int(ours.headers["openai-processing-ms"]) >= 0
    assert ours.headers["content-type"] == "application/json"
    assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert stream.headers["cache-control"] == "no-cache"
    assert stream.headers["x-accel-buffering"] == "no"
    assert "content-length" not in stream.headers
    assert stream.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "status", "code"), FAILURES)
def test_a_failure_before_the_first_token_is_a_status(
    front: Front, stream: bool, kind: str, status: int, code: str | None
) -> None:
    failing = {**BODY, "stream": stream, **script(fail={"after_tokens": 0, "kind": kind, "message": "/etc/secret"})}

    with front.client() as client:
        reply = client.post("/v1/chat/completions", json=failing)
        after = client.post("/v1/chat/completions", json=BODY)

    error = reply.json()["error"]
    assert (reply.status_code, error["code"]) == (status, code)
    assert sorted(error) == ["code", "message", "param", "type"]
    assert reply.headers["content-type"] == "application/json"
    assert ("retry-after" in reply.headers) == (status in (429, 503))
    assert status != 500 or "secret" not in reply.text
    assert after.status_code == 200


@pytest.mark.parametrize("kind", ["unavailable", "crash", "end"])
def test_a_failure_after_the_first_token_is_an_error_event(front: Front, kind: str) -> None:
    failing = script(tokens=["a", "b"], fail={"after_tokens": 1, "kind": kind})

    with front.client() as client:
        reply = client.post("/v1/chat/completions", json={**BODY, "stream": True, **failing})
    with front.openai() as sdk, pytest.raises(APIError) as caught:
        list(sdk.chat.completions.create(model="scripted", messages=USER, stream=True, extra_body=failing))

    events = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert (reply.status_code, events[-1]) == (200, "[DONE]")
    assert sorted(json.loads(events[-2])["error"]) == ["code", "message", "param", "type"]
    assert not any('"finish_reason":"' in event for event in events)
    assert caught.value.message


def test_the_sdk_raises_its_own_classes(front: Front) -> None:
    with front.openai() as client:
        with pytest.raises(NotFoundError) as unknown:
            client.chat.completions.create(model="nope", messages=USER)
        with pytest.raises(BadRequestError) as bad:
            client.chat.completions.create(model="scripted", messages=USER, temperature=9)
        with pytest.raises(InternalServerError) as overloaded:
            client.chat.completions.create(
                model="scripted", messages=USER, extra_body=script(fail={"kind": "overloaded"})
            )

    assert unknown.value.code == "model_not_found"
    assert (bad.value.code, bad.value.param) == ("decimal_above_max_value", "temperature")
    assert overloaded.value.response.headers["retry-after"]


@pytest.mark.parametrize("body", [b"", b"[]", b"null", b"1", b'"x"', b"{", b"\xff", b"[" * 100_000])
@pytest.mark.parametrize(
    "path",
    ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize", "/detokenize"],
)
def test_a_body_that_is_no_object_is_a_bad_request(front: Front, path: str, body: bytes) -> None:
    with front.client() as client:
        reply = client.post(path, content=body)

    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["param"], error["code"]) == (
        400,
        "invalid_request_error",
        None,
        None,
    )


def test_compressed_and_untyped_bodies_are_read(front: Front) -> None:
    raw = json.dumps(BODY).encode()

    with front.client() as client:
        packed = [
            client.post("/v1/chat/completions", content=pack(raw), headers={"Content-Encoding": coding})
            for coding, pack in (("gzip", gzip.compress), ("br", brotli.compress), ("zstd", zstandard.compress))
        ]
        untyped = client.post("/v1/chat/completions", content=b"\xef\xbb\xbf" + raw)
        unknown = client.post("/v1/chat/completions", content=raw, headers={"Content-Encoding": "compress"})
        form = client.post("/v1/chat/completions", files={"file": b"x"})

    assert [reply.status_code for reply in (*packed, untyped, unknown, form)] == [200, 200, 200, 200, 415, 415]
    assert form.json()["error"]["code"] == "unsupported_media_type"


def test_a_big_body_arrives_whole_and_a_too_big_one_is_refused(serve: Serve) -> None:
    from gateway.config import ServerOptions

    front = serve(server=ServerOptions(max_body_bytes=300_000), max_model_len=100_000)
    text = "word " * 50_000
    packed = gzip.compress(json.dumps({"model": "scripted", "prompt": text * 10}).encode())

    with front.client() as client:
        whole = client.post("/v1/completions", json={"model": "scripted", "prompt": text, "max_tokens": 2})
        refused = client.post("/v1/completions", json={"model": "scripted", "prompt": text * 2})
        bomb = client.post("/v1/completions", content=packed, headers={"Content-Encoding": "gzip"})
        after = client.post("/v1/chat/completions", json=BODY)

    assert (whole.status_code, whole.json()["usage"]["prompt_tokens"]) == (200, 50_000)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "request_too_large")
    assert (bomb.status_code, after.status_code) == (413, 200)


def test_a_chunked_upload_is_read(front: Front) -> None:
    raw = json.dumps(BODY).encode()

    with front.client() as client:
        reply = client.post("/v1/chat/completions", content=iter([raw[:10], raw[10:]]))

    assert reply.status_code == 200


def test_a_prompt_that_never_fits_names_the_context_length(serve: Serve) -> None:
    front = serve(max_model_len=4)

    with front.client() as client:
        chat = client.post("/v1/chat/completions", json={**BODY, "messages": [{"role": "user", "content": "w " * 9}]})
        text = client.post("/v1/completions", json={"model": "scripted", "prompt": "w " * 9, "stream": True})

    assert (chat.status_code, text.status_code) == (400, 400)
    assert "maximum context length" in chat.json()["error"]["message"]
    assert chat.json()["error"]["code"] == "context_length_exceeded"
    assert [reply.json()["error"]["param"] for reply in (chat, text)] == ["messages", "prompt"]


def test_the_callers_deadline_ends_the_answer(front: Front) -> None:
    slow = {**BODY, **script(tokens=["a"], first_delay_s=30)}
    never = {**BODY, "stream": True, **script(tokens=["a", "b"], fail={"after_tokens": 1, "kind": "hang"})}

    with front.client(headers={"X-Request-Timeout": "0.2"}) as client:
        late = client.post("/v1/chat/completions", json=slow)
        cut = client.post("/v1/chat/completions", json=never)
        bad = client.post("/v1/chat/completions", json=BODY, headers={"X-Request-Timeout": "-1"})

    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
    assert (cut.status_code, "deadline_exceeded" in cut.text) == (200, True)
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "X-Request-Timeout")


@pytest.mark.parametrize("kind", ["overloaded", "rate_limited"])
def test_when_to_come_back_is_told_as_the_backend_tells_it(front: Front, kind: str) -> None:
    for stream in (False, True):
        failing = {**BODY, "stream": stream, **script(fail={"kind": kind, "retry_after_s": 7})}
        with front.client() as client:
            reply = client.post("/v1/chat/completions", json=failing)

        assert (reply.headers["retry-after"], reply.headers["retry-after-ms"]) == ("7", "7000")
