"""OpenAI's Python SDK, synchronous and asynchronous, as its users use it, and the class of every error."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from gateway.config import ServerOptions, Settings
from gateway.lanes import DEFAULT_LANES
from gateway.store import StoreOptions
from gateway.tenants import AuthOptions, StaticKey
from tests.integration.front.front_server import Front, eventually, running

KEY, BATCH_KEY = "sk-everything-allowed", "sk-batch-lane-only"
ASKED: Any = [{"role": "user", "content": "hi"}]
CHAT: dict[str, Any] = {"model": "scripted", "messages": ASKED}
TOOL: Any = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}
MOST_BYTES = 50_000
WINDOW = 256

Ask = Callable[[OpenAI], Any]


class City(BaseModel):
    name: str


def says(*tokens: str, **script: Any) -> dict[str, Any]:
    """The extra body of a request whose answer is given."""
    return {"script": {"tokens": list(tokens), **script}}


def fails(kind: str, after_tokens: int = 0, **more: Any) -> dict[str, Any]:
    return says("a", "b", fail={"kind": kind, "after_tokens": after_tokens, "message": "it broke", **more})


TEXT = says("Hello", " there", "!")
ENDLESS = says("word ", eos=False, delay_s=0.02)
CALLS = {
    "script": {
        "tool_calls": [{"name": "lookup", "arguments": ['{"city": ', f'"{city}"}}']} for city in ("Bern", "Rome")]
    }
}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("front")
    settings = Settings(
        server=ServerOptions(max_body_bytes=MOST_BYTES),
        auth=AuthOptions(keys=(KEY,), key=(StaticKey(key=BATCH_KEY, lanes=("batch",), default_lane="batch"),)),
        store=StoreOptions(url=f"sqlite:///{folder}/laneway.db"),
        lanes=dict(DEFAULT_LANES),
        backends={"test": {"type": "scripted", "models": ["scripted"], "max_model_len": WINDOW}},
    )
    with running(settings, folder) as front:
        yield front


@pytest.fixture
def client(front: Front) -> Iterator[OpenAI]:
    with front.openai(KEY) as client:
        yield client


def asynchronous(front: Front) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{front.url}/v1", api_key=KEY, max_retries=0, timeout=20)


def test_the_stream_helper_adds_text_and_calls_up(client: OpenAI) -> None:
    with client.chat.completions.stream(**CHAT, extra_body=TEXT) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta" and event.delta]
        text = stream.get_final_completion().choices[0]
    with client.chat.completions.stream(**CHAT, tools=[TOOL], extra_body=CALLS) as stream:
        done = [event.arguments for event in stream if event.type == "tool_calls.function.arguments.done"]
        called = stream.get_final_completion().choices[0]

    assert (deltas, text.message.content, text.finish_reason) == (["Hello", " there", "!"], "Hello there!", "stop")
    assert text.message.role == called.message.role == "assistant"
    assert done == ['{"city": "Bern"}', '{"city": "Rome"}']
    assert called.message.tool_calls is not None
    assert [call.function.arguments for call in called.message.tool_calls] == done
    assert len({call.id for call in called.message.tool_calls}) == 2


def test_the_stream_helper_gives_log_probabilities_and_several_choices(client: OpenAI) -> None:
    with client.chat.completions.stream(**CHAT, n=2, logprobs=True, extra_body=TEXT) as stream:
        final = stream.get_final_completion()

    assert [choice.message.content for choice in final.choices] == ["Hello there!"] * 2
    for choice in final.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert "".join(entry.token for entry in choice.logprobs.content) == "Hello there!"


def test_answers_are_parsed_into_models(client: OpenAI) -> None:
    answer = says('{"name": ', '"Bern"}')
    chat = client.chat.completions.parse(**CHAT, response_format=City, extra_body=answer)
    with client.chat.completions.stream(**CHAT, response_format=City, extra_body=answer) as stream:
        streamed = stream.get_final_completion()
    response = client.responses.parse(model="scripted", input="hi", text_format=City, extra_body=answer)

    assert chat.choices[0].message.parsed == streamed.choices[0].message.parsed == City(name="Bern")
    assert response.output_parsed == City(name="Bern")


def test_an_answer_that_was_cut_cannot_be_parsed(client: OpenAI) -> None:
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(
            **CHAT, response_format=City, max_tokens=1, extra_body=says('{"name": ', '"Bern"}')
        )


def test_raw_replies_have_their_headers(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(**CHAT, extra_body=TEXT)
    with client.chat.completions.with_streaming_response.create(**CHAT, stream=True, extra_body=TEXT) as streaming:
        lines = [line for line in streaming.iter_lines() if line]
    named = client.chat.completions.create(**CHAT, extra_body=TEXT, extra_headers={"X-Request-Id": "trace-7"})

    assert raw.headers["content-type"] == "application/json"
    assert raw.request_id == raw.headers["x-request-id"] == raw.parse()._request_id
    assert int(raw.headers["openai-processing-ms"]) >= 0
    assert streaming.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert lines[-1] == "data: [DONE]"
    assert named._request_id == "trace-7"


def test_a_legacy_completion_streams(client: OpenAI) -> None:
    chunks = client.completions.create(model="scripted", prompt="abc", stream=True, extra_body=TEXT)

    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello there!"


def test_vectors_are_as_long_packed_as_plain(client: OpenAI) -> None:
    packed = client.embeddings.create(model="scripted", input=["one", "two"])
    plain = client.embeddings.create(model="scripted", input=["one", "two"], encoding_format="float")

    assert [len(item.embedding) for item in packed.data] == [len(item.embedding) for item in plain.data]
    assert packed.data[1].embedding == pytest.approx(plain.data[1].embedding, abs=1e-6)


def test_models_are_listed_and_read(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").object == "model"


async def test_the_asynchronous_client_answers_streams_and_parses(front: Front) -> None:
    async with asynchronous(front) as client:
        whole, *others = await asyncio.gather(
            *(client.chat.completions.create(**CHAT, extra_body=TEXT) for _ in range(8))
        )
        chunks = [chunk async for chunk in await client.chat.completions.create(**CHAT, stream=True, extra_body=TEXT)]
        async with client.chat.completions.stream(**CHAT, extra_body=TEXT) as stream:
            final = await stream.get_final_completion()
        async with client.responses.stream(model="scripted", input="hi", extra_body=TEXT) as events:
            response = await events.get_final_response()

    assert {answer.choices[0].message.content for answer in (whole, *others, final)} == {"Hello there!"}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello there!"
    assert response.output_text == "Hello there!"


async def test_leaving_a_stream_and_cancelling_a_call_end_the_work(front: Front) -> None:
    async with asynchronous(front) as client:
        cancelled = front.count("cancelled")
        stream = await client.chat.completions.create(**CHAT, stream=True, extra_body=ENDLESS)
        await anext(stream)
        await stream.close()
        await asyncio.to_thread(eventually, lambda: front.count("cancelled") == cancelled + 1, "the stream is over")
        started = front.count("started")
        call = asyncio.create_task(client.chat.completions.create(**CHAT, extra_body=ENDLESS))
        await asyncio.to_thread(eventually, lambda: front.count("started") == started + 1, "it began")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.to_thread(eventually, lambda: front.count("cancelled") == cancelled + 2, "the call is over")


def test_a_client_that_waits_no_longer_ends_the_work(front: Front, client: OpenAI) -> None:
    cancelled = front.count("cancelled")

    patient = {"X-Stainless-Read-Timeout": "600"}  # or the server would know, and give up at the same time
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).chat.completions.create(
            **CHAT, extra_body=says("late", first_delay_s=60), extra_headers=patient
        )

    eventually(lambda: front.count("cancelled") == cancelled + 1, "the work is over")


@pytest.mark.parametrize(
    ("kind", "attempts"), [("overloaded", 3), ("rate_limited", 3), ("crash", 3), ("bad_request", 1)]
)
def test_what_may_pass_is_tried_again_and_nothing_else(front: Front, kind: str, attempts: int) -> None:
    def refused() -> float:
        with front.client(headers={"Authorization": f"Bearer {KEY}"}) as client:
            lines = client.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("inference_requests_total{"))

    before = refused()
    with front.openai(KEY) as client, pytest.raises(openai.APIStatusError):
        client.with_options(max_retries=2).chat.completions.create(**CHAT, extra_body=fails(kind, retry_after_s=0.01))

    assert refused() == before + attempts


def chat(**change: Any) -> Ask:
    return lambda client: client.chat.completions.create(**{**CHAT, **change})


def keyed(key: str, **headers: str) -> Ask:
    return lambda client: client.with_options(api_key=key).chat.completions.create(**CHAT, extra_headers=headers)


def reused(client: OpenAI) -> Any:
    for text in ("one", "two"):
        client.chat.completions.create(
            model="scripted", messages=[{"role": "user", "content": text}], extra_headers={"Idempotency-Key": "same"}
        )


INVALID = "invalid_request_error"
LATE = {"extra_body": says("late", first_delay_s=60), "extra_headers": {"X-Request-Timeout": "0.05"}}
LONG: Any = [{"role": "user", "content": "word " * (WINDOW + 1)}]
ERRORS: dict[str, tuple[Ask, int, type[openai.APIStatusError], str | None, str | None, str | None]] = {
    "a field": (chat(n=0), 400, openai.BadRequestError, INVALID, "n", "integer_below_min_value"),
    "a prompt too long": (
        chat(messages=LONG),
        400,
        openai.BadRequestError,
        INVALID,
        "messages",
        "context_length_exceeded",
    ),
    "a backend's refusal": (chat(extra_body=fails("bad_request")), 400, openai.BadRequestError, INVALID, None, None),
    "a wrong key": (keyed("sk-wrong-key"), 401, openai.AuthenticationError, INVALID, None, "invalid_api_key"),
    "no key": (keyed("", Authorization=""), 401, openai.AuthenticationError, INVALID, None, None),
    "a lane": (
        keyed(BATCH_KEY, **{"X-Laneway-Lane": "interactive"}),
        403,
        openai.PermissionDeniedError,
        "permission_error",
        "X-Laneway-Lane",
        None,
    ),
    "a model": (chat(model="nope"), 404, openai.NotFoundError, INVALID, "model", "model_not_found"),
    "a route": (lambda client: client.post("/nope", cast_to=object), 404, openai.NotFoundError, INVALID, None, None),
    "a response": (lambda client: client.responses.retrieve("resp_x"), 404, openai.NotFoundError, INVALID, None, None),
    "a method": (
        lambda client: client.get("/chat/completions", cast_to=object),
        405,
        openai.APIStatusError,
        INVALID,
        None,
        "method_not_supported",
    ),
    "a name used twice": (reused, 409, openai.ConflictError, INVALID, "Idempotency-Key", "idempotency_key_reused"),
    "too many bytes": (
        chat(messages=[{"role": "user", "content": "x" * MOST_BYTES}]),
        413,
        openai.APIStatusError,
        INVALID,
        None,
        "request_too_large",
    ),
    "a coding": (
        keyed(KEY, **{"Content-Encoding": "lzma"}),
        415,
        openai.APIStatusError,
        INVALID,
        None,
        "unsupported_media_type",
    ),
    "a limit": (
        chat(extra_body=fails("rate_limited")),
        429,
        openai.RateLimitError,
        "requests",
        None,
        "rate_limit_exceeded",
    ),
    "a fault": (chat(extra_body=fails("crash")), 500, openai.InternalServerError, "server_error", None, None),
    "no room": (
        chat(extra_body=fails("overloaded")),
        503,
        openai.InternalServerError,
        "service_unavailable",
        None,
        "overloaded",
    ),
    "no backend": (
        chat(extra_body=fails("unavailable")),
        503,
        openai.InternalServerError,
        "service_unavailable",
        None,
        "backend_unavailable",
    ),
    "a deadline": (chat(**LATE), 504, openai.InternalServerError, "server_error", None, "deadline_exceeded"),
}


@pytest.mark.parametrize("what", ERRORS)
def test_every_error_has_its_class_and_can_be_read(client: OpenAI, what: str) -> None:
    ask, status, kind, error_type, param, code = ERRORS[what]

    with pytest.raises(openai.APIStatusError) as caught:
        ask(client)

    error = caught.value
    assert type(error) is kind
    assert (error.status_code, error.type, error.param, error.code) == (status, error_type, param, code)
    assert error.request_id == error.response.headers["x-request-id"]
    assert error.message


@pytest.mark.parametrize("kind", ["unavailable", "overloaded", "rate_limited", "crash", "end"])
def test_an_error_inside_a_stream_is_raised_after_what_came_before(client: OpenAI, kind: str) -> None:
    chunks = client.chat.completions.create(**CHAT, stream=True, extra_body=fails(kind, 1))
    texts: list[str] = []

    with pytest.raises(openai.APIError) as caught:
        texts.extend(chunk.choices[0].delta.content or "" for chunk in chunks)

    assert not isinstance(caught.value, openai.APIStatusError)
    assert caught.value.message
    assert caught.value.type


def test_no_server_is_a_connection_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with OpenAI(base_url=url, api_key="any", max_retries=0) as client, pytest.raises(openai.APIConnectionError):
        client.models.list()
