"""/v1/messages of a real front, to Anthropic's SDK and byte by byte, and what it says of every kind of fault."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic
from anthropic.types import TextBlock, ThinkingBlock, ToolUseBlock
from pydantic import BaseModel

from gateway.config import ServerOptions
from gateway.lanes import LaneOptions
from gateway.openai.wire import WireOptions
from gateway.tenants import AuthOptions, StaticKey
from tests.integration.front.books import Books, slot_taken
from tests.integration.front.front_server import CHAT, eventually

if TYPE_CHECKING:
    import httpx

    from tests.integration.front.front_server import Front, Serve

PATH = "/v1/messages"
COUNT = f"{PATH}/count_tokens"
SECRET = "sk-the-only-key-99"
ASKED: list[Any] = [{"role": "user", "content": "one two three"}]
BODY: dict[str, Any] = {"model": "scripted", "max_tokens": 64, "messages": ASKED}
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}
WEATHER: Any = {"name": "weather", "description": "Tells it.", "input_schema": {"type": "object"}}
ALL_KINDS = {
    "reasoning": ["let me", " see"],
    "tokens": ["It", " is"],
    "tool_calls": [{"name": "weather", "arguments": ['{"a"', ": 1}"]}, {"name": "weather", "arguments": ["{}"]}],
    "cached_tokens": 1,
}


class Answer(BaseModel):
    city: str


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with closing(Books(tmp_path)) as books:
        yield books


@pytest.fixture
def sdk(front: Front) -> Iterator[Anthropic]:
    with client_of(front) as client:
        yield client


def client_of(front: Front, api_key: str = "any", **options: Any) -> Anthropic:
    return Anthropic(base_url=front.url, api_key=api_key, max_retries=0, timeout=20, **options)


def script(**fields: object) -> dict[str, object]:
    return {"script": fields}


def stream(front: Front, **fields: object) -> list[dict[str, Any]]:
    """The events of a streamed message, each under the same type in its line and in its data."""
    with front.client() as client:
        reply = client.post(PATH, json={**BODY, "stream": True, **fields})
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = reply.text.split("\n\n")
    assert events.pop() == ""
    told = []
    for line, data in (event.split("\n") for event in events):
        told.append(json.loads(data.removeprefix("data: ")))
        assert line == f"event: {told[-1]['type']}"
    return told


def error_in(reply: httpx.Response) -> dict[str, Any]:
    """What a refusal says; its envelope is Anthropic's, and its id the one of the headers."""
    whole = reply.json()
    assert reply.headers["content-type"] == "application/json"
    assert list(whole) == ["type", "error", "request_id"]
    assert (whole["type"], sorted(whole["error"])) == ("error", ["message", "type"])
    assert whole["request_id"] == reply.headers["request-id"] == reply.headers["x-request-id"]
    error: dict[str, Any] = whole["error"]
    return error


# Answers.


def test_the_events_of_a_text_come_in_anthropics_order(front: Front) -> None:
    told = stream(front, script={"tokens": ["Hel", "lo"]})

    assert [event["type"] for event in told] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert told[0]["message"]["usage"]["input_tokens"] == 3
    assert told[6]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert (told[6]["usage"]["input_tokens"], told[6]["usage"]["output_tokens"]) == (3, 3)


def test_the_sdk_gets_a_whole_message(sdk: Anthropic) -> None:
    message = sdk.messages.create(
        model="scripted", max_tokens=64, system="Be short.", messages=ASKED, metadata={"user_id": "u"}
    )

    (block,) = message.content
    assert isinstance(block, TextBlock)
    assert (block.text, message.role, message.model) == ("Be short.\none two three", "assistant", "scripted")
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 6)
    assert message.id.startswith("msg_")
    assert message._request_id == f"req_{message.id.removeprefix('msg_')}"


def test_the_sdk_accumulates_thoughts_text_and_tools(sdk: Anthropic) -> None:
    asked: Any = {"model": "scripted", "max_tokens": 64, "messages": ASKED, "tools": [WEATHER], "thinking": THINKING}
    with sdk.messages.stream(**asked, extra_body=script(**ALL_KINDS)) as events:
        kinds = [event.type for event in events]
        final = events.get_final_message()
    whole = sdk.messages.create(**asked, extra_body=script(**ALL_KINDS))

    for message in (final, whole):
        thought, text, first, second = message.content
        assert isinstance(thought, ThinkingBlock) and isinstance(text, TextBlock)
        assert isinstance(first, ToolUseBlock) and isinstance(second, ToolUseBlock)
        assert (thought.thinking, text.text) == ("let me see", "It is")
        assert (first.name, first.input, second.input) == ("weather", {"a": 1}, {})
        assert first.id != second.id
        assert message.stop_reason == "tool_use"
        usage = message.usage
        assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (2, 1, 8)
        assert usage.output_tokens_details is not None and usage.output_tokens_details.thinking_tokens == 2
    assert isinstance(whole.content[0], ThinkingBlock) and isinstance(final.content[0], ThinkingBlock)
    assert final.content[0].signature == whole.content[0].signature != ""
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 4
    assert {"thinking", "signature", "text", "input_json"} <= set(kinds)


async def test_the_asynchronous_sdk_does_the_same(front: Front) -> None:
    async with AsyncAnthropic(base_url=front.url, auth_token="any", max_retries=0, timeout=20) as sdk:
        whole = await sdk.messages.create(model="scripted", max_tokens=64, messages=ASKED)
        async with sdk.messages.stream(model="scripted", max_tokens=64, messages=ASKED) as events:
            pieces = [piece async for piece in events.text_stream]
            final = await events.get_final_message()
        raw = await sdk.messages.create(model="scripted", max_tokens=64, messages=ASKED, stream=True)
        kinds = [event.type async for event in raw]

    assert whole.content == [TextBlock(type="text", text="one two three")]
    assert "".join(pieces) == "one two three"
    assert len(pieces) == 3
    assert (final.stop_reason, final.usage) == (whole.stop_reason, whole.usage)
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_a_round_with_a_tool_goes_back_as_it_came(sdk: Anthropic) -> None:
    calls = script(**ALL_KINDS)
    asked: Any = {"model": "scripted", "max_tokens": 64, "tools": [WEATHER], "thinking": THINKING}
    first = sdk.messages.create(**asked, messages=ASKED, extra_body=calls)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "sunny"}
        for block in first.content
        if isinstance(block, ToolUseBlock)
    ]

    history: list[Any] = [
        *ASKED,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "And?"}]},
    ]

    second = sdk.messages.create(**asked, messages=history)

    (block,) = second.content
    assert isinstance(block, TextBlock)
    assert block.text == "one two three\nIt is\nsunny\nsunny\nAnd?"


def test_the_sdk_parses_an_answer_into_a_model(sdk: Anthropic) -> None:
    says = script(tokens=['{"city"', ': "Paris"}'])

    message = sdk.messages.parse(model="scripted", max_tokens=64, messages=ASKED, output_format=Answer, extra_body=says)

    assert message.parsed_output == Answer(city="Paris")


@pytest.mark.parametrize(
    ("fields", "reason", "sequence"),
    [
        ({"max_tokens": 2, "script": {"tokens": ["a", "b", "c"]}}, "max_tokens", None),
        ({"stop_sequences": ["never", "b"], "script": {"tokens": ["a", "b", "c"]}}, "stop_sequence", "b"),
        ({"script": {"tokens": []}}, "end_turn", None),
    ],
)
def test_how_a_message_ends_is_told_streamed_or_not(
    front: Front, fields: dict[str, Any], reason: str, sequence: str | None
) -> None:
    with front.client() as client:
        whole = client.post(PATH, json={**BODY, **fields}).json()
    told = stream(front, **fields)

    assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, sequence)
    assert told[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}
    assert told[-2]["usage"] == whole["usage"]


def test_at_most_one_tool_is_used_where_that_was_asked_for(sdk: Anthropic) -> None:
    message = sdk.messages.create(
        model="scripted",
        max_tokens=64,
        messages=ASKED,
        tools=[WEATHER],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        extra_body=script(**ALL_KINDS),
    )

    assert [block.type for block in message.content] == ["text", "tool_use"]


@pytest.mark.parametrize("wire", [WireOptions(), WireOptions(strict=True), WireOptions(unknown_fields="reject")])
def test_unknown_fields_are_counted_and_never_refused(serve: Serve, wire: WireOptions) -> None:
    front = serve(wire=wire)
    with front.client() as client:
        reply = client.post(f"{PATH}?beta=true", json={**BODY, "new": 1, "max_tokens": 1 << 40, "speed": "fast"})
        metrics = client.get("/metrics").text

    assert reply.status_code == 200
    assert "laneway_unknown_fields_total 1.0" in metrics


# Counting.


def test_the_sdk_counts_the_tokens_of_all_that_is_read(sdk: Anthropic) -> None:
    plain = sdk.messages.count_tokens(model="scripted", messages=ASKED)
    more = sdk.messages.count_tokens(model="scripted", messages=ASKED, system="Be short.")
    tools = sdk.messages.count_tokens(model="scripted", messages=ASKED, tools=[WEATHER])
    beta = sdk.beta.messages.count_tokens(model="scripted", messages=ASKED, betas=["token-counting-2024-11-01"])

    assert (plain.input_tokens, more.input_tokens, beta.input_tokens) == (3, 5, 3)
    assert tools.input_tokens > plain.input_tokens


def test_what_is_counted_is_what_a_message_is_billed(front: Front) -> None:
    with front.client() as client:
        body = {**BODY, "system": [{"type": "text", "text": "Be short."}], "messages": [*ASKED, *ASKED]}
        counted = client.post(f"{COUNT}?beta=true", json=body).json()
        used = client.post(PATH, json=body).json()["usage"]

    assert counted == {"input_tokens": used["input_tokens"]}


def test_what_cannot_be_counted_is_told_in_the_same_envelope(serve: Serve) -> None:
    front = serve(auth=AuthOptions(key=(StaticKey(key=SECRET, models=("other",)),)))
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    with front.client(headers={"x-api-key": SECRET}) as client:
        hidden = client.post(COUNT, json={"model": "scripted", "messages": ASKED})
        unknown = client.post(COUNT, json={"model": "nope", "messages": ASKED})
        broken = client.post(COUNT, content=b"{")
        alone = client.post(COUNT, json={"model": "scripted"})
    with serve().client() as client:
        seen = client.post(COUNT, json={"model": "scripted", "messages": [{"role": "user", "content": [picture]}]})

    assert error_in(hidden)["message"] == error_in(unknown)["message"].replace("nope", "scripted")
    assert [reply.status_code for reply in (hidden, unknown, broken, alone, seen)] == [404, 404, 400, 400, 400]
    assert error_in(broken)["type"] == "invalid_request_error"
    assert error_in(alone)["message"] == "messages: Field required"
    assert error_in(seen)["message"].startswith("messages: ")


# Faults.


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"messages": None}, "messages: Field required"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text: Field required"),
        ({"temperature": 2}, "temperature: decimal above maximum value. Expected a value <= 1, but got 2 instead."),
    ],
)
def test_a_wrong_body_is_told_in_anthropics_words(
    front: Front, change: dict[str, Any], message: str, is_stream: bool
) -> None:
    with front.client() as client:
        reply = client.post(PATH, json={**BODY, **change, "stream": is_stream})

    assert reply.status_code == 400
    assert error_in(reply) == {"type": "invalid_request_error", "message": message}
    assert front.count("started") == 0


@pytest.mark.parametrize("path", [PATH, COUNT])
def test_every_fault_of_the_transport_is_told_in_the_same_envelope(serve: Serve, path: str) -> None:
    front = serve(server=ServerOptions(max_body_bytes=1024), auth=AuthOptions(keys=(SECRET,)))
    with front.client() as nobody, front.client(headers={"x-api-key": SECRET}) as client:
        told = {
            "no key": nobody.post(path, json=BODY),
            "wrong key": nobody.post(path, json=BODY, headers={"x-api-key": "sk-wrong-wrong-wrong"}),
            "method": client.get(path),
            "route": client.post(f"{path}/batches"),
            "empty": client.post(path),
            "no object": client.post(path, content=b"[]"),
            "broken": client.post(path, content=b'{"model":'),
            "coding": client.post(path, content=b"x", headers={"content-encoding": "lzma"}),
            "multipart": client.post(path, files={"a": b"x"}),
            "large": client.post(path, content=b"x" * 2048),
        }

    assert {what: (reply.status_code, error_in(reply)["type"]) for what, reply in told.items()} == {
        "no key": (401, "authentication_error"),
        "wrong key": (401, "authentication_error"),
        "method": (405, "invalid_request_error"),
        "route": (404, "not_found_error"),
        "empty": (400, "invalid_request_error"),
        "no object": (400, "invalid_request_error"),
        "broken": (400, "invalid_request_error"),
        "coding": (415, "invalid_request_error"),
        "multipart": (415, "invalid_request_error"),
        "large": (413, "request_too_large"),
    }
    assert "OPTIONS" in told["method"].headers["allow"]
    assert "wrong-wrong" not in told["wrong key"].text


def test_a_key_is_taken_from_either_header(serve: Serve) -> None:
    front = serve(auth=AuthOptions(keys=(SECRET,)))
    with front.client() as client:
        replies = [
            client.post(PATH, json=BODY, headers=headers)
            for headers in ({"x-api-key": SECRET}, {"authorization": f"Bearer {SECRET}"})
        ]
        head = [client.head(path) for path in ("/", "/api/hello")]

    assert [reply.status_code for reply in (*replies, *head)] == [200] * 4
    assert [reply.content for reply in head] == [b"", b""]


@pytest.mark.parametrize(
    ("kind", "status", "type_of"),
    [
        ("bad_request", 400, "invalid_request_error"),
        ("overloaded", 529, "overloaded_error"),
        ("unavailable", 503, "api_error"),
        ("crash", 500, "api_error"),
        ("end", 500, "api_error"),
    ],
)
@pytest.mark.parametrize("is_stream", [False, True])
def test_a_backend_that_fails_before_the_first_event_is_a_status(
    front: Front, kind: str, status: int, type_of: str, is_stream: bool
) -> None:
    with front.client() as client:
        reply = client.post(PATH, json={**BODY, "stream": is_stream, **script(fail={"kind": kind})})

    assert (reply.status_code, error_in(reply)["type"]) == (status, type_of)
    assert ("retry-after" in reply.headers) == (status in (503, 529))


@pytest.mark.parametrize(
    ("kind", "type_of"), [("unavailable", "api_error"), ("overloaded", "overloaded_error"), ("crash", "api_error")]
)
def test_a_failure_after_the_first_event_is_the_last_event(front: Front, kind: str, type_of: str) -> None:
    failing = script(tokens=["a", "b"], fail={"after_tokens": 1, "kind": kind})
    told = stream(front, **failing)
    with (
        client_of(front) as sdk,
        pytest.raises(anthropic.APIStatusError) as caught,
        sdk.messages.stream(model="scripted", max_tokens=9, messages=ASKED, extra_body=failing) as events,
    ):
        events.get_final_message()

    assert [event["type"] for event in told[-2:]] == ["content_block_delta", "error"]
    assert (told[-1]["error"]["type"], list(told[-1])) == (type_of, ["type", "error", "request_id"])
    assert told[-1]["request_id"].startswith("req_")
    body: Any = caught.value.body
    assert body["error"]["type"] == type_of


def test_the_sdk_raises_its_own_classes(serve: Serve, books: Books) -> None:
    front = serve(store=books.options, auth=AuthOptions(keys=(SECRET,)))
    limited = books.made(rpm=1, lanes=("standard",)).secret
    asked: Any = {"model": "scripted", "max_tokens": 9, "messages": ASKED}
    with client_of(front, SECRET) as sdk:
        with pytest.raises(anthropic.NotFoundError) as unknown:
            sdk.messages.create(**{**asked, "model": "nope"})
        with pytest.raises(anthropic.BadRequestError) as wrong:
            sdk.messages.create(**{**asked, "max_tokens": 0})
        with pytest.raises(anthropic.InternalServerError) as broken:
            sdk.messages.create(**asked, extra_body=script(fail={"kind": "crash"}))
        with pytest.raises(anthropic.OverloadedError) as overloaded:
            sdk.messages.create(**asked, extra_body=script(fail={"kind": "overloaded"}))
    with client_of(front, "sk-wrong") as sdk, pytest.raises(anthropic.AuthenticationError):
        sdk.messages.create(**asked)
    with client_of(front, limited) as sdk:
        with pytest.raises(anthropic.PermissionDeniedError):
            sdk.messages.create(**asked, extra_headers={"X-Laneway-Lane": "interactive"})
        sdk.messages.create(**asked)
        with pytest.raises(anthropic.RateLimitError) as refused:
            sdk.messages.create(**asked)

    for caught, kind in (
        (unknown, "not_found_error"),
        (wrong, "invalid_request_error"),
        (broken, "api_error"),
        (overloaded, "overloaded_error"),
        (refused, "rate_limit_error"),
    ):
        body: Any = caught.value.body
        assert body["error"]["type"] == kind
        assert body["request_id"] == caught.value.request_id
    assert overloaded.value.status_code == 529
    assert 1 <= int(refused.value.response.headers["retry-after"]) <= 60


def test_a_full_lane_is_an_overload(serve: Serve) -> None:
    front = serve(capacity=1, lanes={"standard": LaneOptions(priority=1, max_queue=0)})
    with slot_taken(front), front.client() as client:
        load = client.get("/load").json()
        full, other = client.post(PATH, json=BODY), client.post(CHAT, json={"model": "scripted", "messages": ASKED})
    with front.client() as client:
        idle = client.get("/load").json()

    assert (full.status_code, error_in(full)["type"]) == (529, "overloaded_error")
    assert (other.status_code, other.json()["error"]["code"]) == (503, "overloaded")
    assert full.headers["retry-after"] == other.headers["retry-after"]
    assert (load, idle) == ({"server_load": 1}, {"server_load": 0})


def test_a_prompt_that_never_fits_says_so_in_the_words_that_clients_wait_for(serve: Serve) -> None:
    front = serve(max_model_len=4)
    with front.client() as client:
        reply = client.post(PATH, json={**BODY, "messages": [{"role": "user", "content": "w " * 9}], "stream": True})

    assert reply.status_code == 400
    assert error_in(reply)["message"].startswith("prompt is too long: ")
    assert "maximum context length" in error_in(reply)["message"]


def test_what_a_backend_refuses_is_told_in_the_fields_of_this_route(front: Front) -> None:
    wrong = {"type": "banana"}
    with front.client() as client:
        text = client.post(PATH, json={**BODY, "output_config": {"format": {"type": "json_schema", "schema": wrong}}})
        tools = client.post(PATH, json={**BODY, "tools": [{**WEATHER, "input_schema": wrong, "strict": True}]})

    assert (text.status_code, tools.status_code) == (400, 400)
    assert error_in(text)["message"].startswith("output_config.format.schema: ")
    assert error_in(tools)["message"].startswith("tools.0.input_schema: ")


# One request among others.


def test_a_client_that_leaves_frees_the_backend_and_is_one_row(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    hangs = script(tokens=["a", "b"], fail={"after_tokens": 1, "kind": "hang"})
    with (
        client_of(front, books.made().secret) as sdk,
        sdk.messages.stream(model="scripted", max_tokens=9, messages=ASKED, extra_body=hangs) as events,
    ):
        assert next(iter(events.text_stream)) == "a"

    eventually(lambda: front.count("running") == 0, "the backend runs nothing")
    (row,) = books.settled()
    assert (row.route, row.completion_tokens) == ("messages", 1)
    assert front.count("cancelled") == 1


def test_the_same_key_gets_the_same_message_once(front: Front) -> None:
    with front.client(headers={"Idempotency-Key": "order-18"}) as client:
        first, again = (client.post(PATH, json={**BODY, "stream": True}) for _ in range(2))

    assert first.content == again.content
    assert again.headers["idempotent-replayed"] == "true"
    assert front.count("started") == 1


def test_a_browser_may_call(serve: Serve) -> None:
    front = serve(server=ServerOptions(cors_origins=("https://app.example",)))
    asked = "anthropic-version,anthropic-dangerous-direct-browser-access,x-api-key"
    with front.client(headers={"Origin": "https://app.example"}) as client:
        preflight = client.options(
            PATH, headers={"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}
        )
        reply = client.post(PATH, json={})

    granted = {name.strip().lower() for name in preflight.headers["access-control-allow-headers"].split(",")}
    assert set(asked.split(",")) <= granted
    assert reply.headers["access-control-allow-origin"] == "https://app.example"
    assert "request-id" in reply.headers["access-control-expose-headers"].split(", ")
