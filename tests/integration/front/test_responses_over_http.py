"""/v1/responses of a real front, to the OpenAI SDK, to an agent that sends all it has, and byte by byte."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from openai import APIError, BadRequestError, NotFoundError
from openai.types.responses import (
    ResponseCustomToolCall,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
)
from pydantic import BaseModel

from tests.integration.front.books import Books
from tests.integration.front.front_server import eventually

if TYPE_CHECKING:
    from openai.types.responses import ParsedResponse

    from tests.integration.front.front_server import Front, Serve

PATH = "/v1/responses"
BODY = {"model": "scripted", "input": "one two three"}
WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
PATCH: Any = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
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


def script(**fields: object) -> dict[str, object]:
    return {"script": fields}


def stream(front: Front, **fields: object) -> list[tuple[str, dict[str, Any]]]:
    """The events of a streamed response: the type in its line, and its data."""
    with front.client() as client:
        reply = client.post(PATH, json={**BODY, "stream": True, **fields})
    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    events = reply.text.split("\n\n")
    assert events.pop() == ""
    lines = [event.split("\n") for event in events]
    assert all(len(pair) == 2 for pair in lines)
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in lines]


def assert_numbered(events: list[tuple[str, dict[str, Any]]]) -> None:
    assert [kind for kind, _ in events] == [data["type"] for _, data in events]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))


def test_the_events_of_a_text_come_in_openais_order(front: Front) -> None:
    events = stream(front, script={"tokens": ["Hel", "lo"]})

    assert_numbered(events)
    assert [kind.removeprefix("response.") for kind, _ in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    created, completed = events[0][1]["response"], events[-1][1]["response"]
    assert (created["id"], created["status"], created["output"]) == (completed["id"], "in_progress", [])
    assert type(created["created_at"]) is int
    assert events[2][1]["item"]["content"] == []
    assert all({"item_id", "output_index", "content_index"} <= data.keys() for _, data in events[3:8])
    assert [data["logprobs"] for _, data in events[4:7]] == [[], [], []]
    assert completed["output"] == [events[8][1]["item"]]
    assert completed["output"][0]["content"] == [
        {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    ]
    assert completed["usage"] == {
        "input_tokens": 3,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 6,
    }


def test_a_stream_with_an_empty_list_of_tools_begins_well(front: Front) -> None:
    assert stream(front, tools=[])[0][0] == "response.created"


def test_the_whole_response_is_what_its_stream_ends_with(front: Front) -> None:
    fields = {"tools": [WEATHER, PATCH], "script": ALL_KINDS, "instructions": "Be short.", "metadata": {"a": "b"}}
    last = stream(front, **fields)[-1][1]["response"]
    with front.client() as client:
        whole = client.post(PATH, json={**BODY, **fields}).json()

    changing = ("id", "created_at", "call_id")

    def without_ids(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: without_ids(member) for name, member in value.items() if name not in changing}
        return [without_ids(member) for member in value] if isinstance(value, list) else value

    assert without_ids(whole) == without_ids(last)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert (whole["usage"]["output_tokens"], whole["usage"]["output_tokens_details"]["reasoning_tokens"]) == (8, 2)
    assert whole["usage"]["input_tokens_details"]["cached_tokens"] == 1
    assert whole["usage"]["total_tokens"] == 13
    assert (whole["instructions"], whole["metadata"], whole["store"]) == ("Be short.", {"a": "b"}, False)
    assert whole["tools"] == [WEATHER, PATCH]


def test_the_sdk_gets_a_whole_response(front: Front) -> None:
    with front.openai() as client:
        answer = client.responses.create(model="scripted", input="one two three", store=True)

    assert (answer.output_text, answer.status, answer.error) == ("one two three", "completed", None)
    assert answer.id.startswith("resp_")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (3, 4, 7)
    assert answer.to_dict()["store"] is False


def test_the_sdk_accumulates_reasoning_text_and_calls(front: Front) -> None:
    with (
        front.openai() as client,
        client.responses.stream(
            model="scripted", input="hi", tools=[WEATHER], extra_body=script(**ALL_KINDS)
        ) as events,
    ):
        kinds = [event.type for event in events]
        final: ParsedResponse[Any] = events.get_final_response()

    thought, message, first, second = final.output
    assert isinstance(thought, ResponseReasoningItem) and thought.content
    assert (thought.content[0].text, thought.summary) == ("let me see", [])
    assert isinstance(message, ResponseOutputMessage)
    assert final.output_text == "It is"
    assert isinstance(first, ResponseFunctionToolCall) and isinstance(second, ResponseFunctionToolCall)
    assert (first.name, first.arguments, second.arguments) == ("weather", '{"a": 1}', "{}")
    assert first.call_id != second.call_id
    assert kinds.count("response.function_call_arguments.delta") == 3
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done") == 4


def test_the_sdk_parses_an_answer_into_a_model(front: Front) -> None:
    says = script(tokens=['{"city"', ': "Paris"}'])
    with front.openai() as client:
        whole = client.responses.parse(model="scripted", input="hi", text_format=Answer, extra_body=says)
        with client.responses.stream(model="scripted", input="hi", text_format=Answer, extra_body=says) as events:
            streamed = events.get_final_response()

    assert whole.output_parsed == streamed.output_parsed == Answer(city="Paris")


def test_the_sdk_raises_its_own_classes(front: Front) -> None:
    with front.openai() as client:
        with pytest.raises(NotFoundError) as unknown:
            client.responses.create(model="nope", input="hi")
        with pytest.raises(BadRequestError) as earlier:
            client.responses.create(model="scripted", input="hi", previous_response_id="resp_x")
        with pytest.raises(NotFoundError) as referred:
            client.responses.create(model="scripted", input=[{"type": "item_reference", "id": "msg_x"}])
        for ask in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
            with pytest.raises(NotFoundError, match="resp_x"):
                ask("resp_x")

    assert unknown.value.code == "model_not_found"
    assert (earlier.value.code, earlier.value.param) == ("previous_response_not_found", "previous_response_id")
    assert (referred.value.type, referred.value.code, referred.value.param) == ("invalid_request_error", None, "input")


def test_the_sdk_counts_the_tokens_of_an_input(front: Front) -> None:
    with front.openai() as client:
        counted = client.responses.input_tokens.count(
            model="scripted", instructions="Be short.", input=[{"role": "user", "content": "one two three"}]
        )

    assert (counted.object, counted.input_tokens) == ("response.input_tokens", 5)


def test_what_cannot_be_counted_is_refused_under_its_own_name(front: Front) -> None:
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,AA"}]}
    with front.client() as client:
        tools = client.post(f"{PATH}/input_tokens", json={**BODY, "tools": [WEATHER]}).json()["error"]
        media = client.post(f"{PATH}/input_tokens", json={**BODY, "input": [picture]}).json()["error"]
        hidden = client.post(f"{PATH}/input_tokens", json={**BODY, "model": "nope"})
        alone = client.post(f"{PATH}/input_tokens", json={"input": "a b"}).json()

    assert (tools["param"], tools["code"]) == ("tools", "unsupported_parameter")
    assert (media["param"], media["code"]) == ("input", "unsupported_value")
    assert (hidden.status_code, alone["input_tokens"]) == (404, 2)


@pytest.mark.parametrize("asked", ["resp_x", "resp_x/cancel", "resp_x/input_items", "compact"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_a_stored_response_is_unknown_whatever_is_wanted_of_it(front: Front, method: str, asked: str) -> None:
    with front.client() as client:
        reply = client.request(method, f"{PATH}/{asked}")

    error = reply.json()["error"]
    assert (reply.status_code, error["type"], error["param"], error["code"]) == (
        404,
        "invalid_request_error",
        None,
        None,
    )


def test_the_cap_makes_a_response_incomplete(front: Front) -> None:
    cut = {"tokens": ["a", "b", "c"], "tool_calls": [{"name": "weather", "arguments": ["{", "}"]}]}
    text = stream(front, max_output_tokens=2, script=cut)
    call = stream(front, max_output_tokens=4, tools=[WEATHER], script=cut)

    for events in (text, call):
        assert_numbered(events)
        response = events[-1][1]["response"]
        assert (events[-1][0], response["status"]) == ("response.incomplete", "incomplete")
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["output"][-1]["status"] == "incomplete"
        assert response["max_output_tokens"] == response["usage"]["output_tokens"]
    assert call[-1][1]["response"]["output"][0]["status"] == "completed"
    assert call[-1][1]["response"]["output"][1]["arguments"] == "{"


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_failure_before_the_first_event_is_a_status(front: Front, is_stream: bool) -> None:
    failing = {**BODY, "stream": is_stream, **script(fail={"kind": "overloaded"})}
    with front.client() as client:
        reply = client.post(PATH, json=failing)

    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "overloaded")
    assert reply.headers["content-type"] == "application/json"


@pytest.mark.parametrize(("kind", "code"), [("unavailable", "backend_unavailable"), ("crash", "server_error")])
def test_a_failure_after_the_first_event_is_told_to_every_kind_of_client(front: Front, kind: str, code: str) -> None:
    failing = script(tokens=["a", "b"], fail={"after_tokens": 1, "kind": kind})
    events = stream(front, **failing)
    with front.openai() as sdk:
        with pytest.raises(APIError) as plain:
            list(sdk.responses.create(model="scripted", input="hi", stream=True, extra_body=failing))
        with (
            pytest.raises(APIError),
            sdk.responses.stream(model="scripted", input="hi", extra_body=failing) as accumulated,
        ):
            accumulated.get_final_response()

    assert_numbered(events)
    (failed, told), (last, error) = events[-2:]
    assert (failed, last) == ("response.failed", "error")
    assert (told["response"]["status"], told["response"]["error"]["code"]) == ("failed", code)
    assert told["response"]["output"][0]["content"][0]["text"] == "a"
    assert (error["code"], error["message"], error["param"]) == (code, error["error"]["message"], None)
    assert sorted(error["error"]) == ["code", "message", "param", "type"]
    assert not any(kind in ("response.completed", "response.incomplete") for kind, _ in events)
    assert plain.value.message == error["message"]


def test_a_custom_tool_is_called_as_one(front: Front) -> None:
    calls = script(tool_calls=[{"name": "apply_patch", "arguments": ['{"inp', 'ut": "*** Begin\\n"}']}])
    with (
        front.openai() as client,
        client.responses.stream(model="scripted", input="hi", tools=[PATCH], extra_body=calls) as events,
    ):
        seen = list(events)
        (call,) = events.get_final_response().output

    assert isinstance(call, ResponseCustomToolCall)
    assert (call.name, call.input) == ("apply_patch", "*** Begin\n")
    assert [event.type for event in seen if "custom_tool_call_input" in event.type] == [
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
    ]


def test_one_call_at_a_time_is_one_call(front: Front) -> None:
    events = stream(front, tools=[WEATHER], parallel_tool_calls=False, script=ALL_KINDS)

    assert [item["type"] for item in events[-1][1]["response"]["output"]] == ["reasoning", "message", "function_call"]


def test_logprobs_come_when_they_are_asked_for(front: Front) -> None:
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 1, "script": {"tokens": ["a", "b"]}}
    events = stream(front, **asked)

    deltas = [data for kind, data in events if kind == "response.output_text.delta"]
    (part,) = events[-1][1]["response"]["output"][0]["content"]
    assert [row["token"] for data in deltas for row in data["logprobs"]] == ["a", "b"]
    assert [row["token"] for row in part["logprobs"]] == ["a", "b"]


def test_a_prompt_that_never_fits_names_the_input_and_the_context_length(serve: Serve) -> None:
    front = serve(max_model_len=4)
    with front.client() as client:
        reply = client.post(PATH, json={**BODY, "input": "w " * 9, "stream": True})

    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["code"]) == (400, "input", "context_length_exceeded")
    assert "maximum context length" in error["message"]


def test_what_a_backend_refuses_is_told_in_the_fields_of_this_route(front: Front) -> None:
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "banana"}}
    tool = {**WEATHER, "parameters": {"type": "banana"}, "strict": True}
    with front.client() as client:
        text = client.post(PATH, json={**BODY, "text": {"format": schema}}).json()["error"]
        tools = client.post(PATH, json={**BODY, "tools": [tool]}).json()["error"]

    assert (text["param"], text["code"]) == ("text.format.schema", "invalid_json_schema")
    assert "response_format" not in text["message"] and "text.format.schema" in text["message"]
    assert (tools["param"], tools["code"]) == ("tools", None)


def test_a_client_that_leaves_frees_the_backend_and_is_one_row(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    key = books.made()
    hangs = script(tokens=["a", "b"], fail={"after_tokens": 1, "kind": "hang"})
    with (
        front.openai(api_key=key.secret) as client,
        client.responses.create(model="scripted", input="hi", stream=True, extra_body=hangs) as events,
    ):
        assert next(event for event in events if event.type == "response.output_text.delta").delta == "a"

    eventually(lambda: front.count("running") == 0, "the backend runs nothing")
    (row,) = books.settled()
    assert (row.route, row.completion_tokens) == ("responses", 1)
    assert front.count("cancelled") == 1


def test_the_same_key_gets_the_same_response_once(front: Front) -> None:
    once = {"Idempotency-Key": "order-18"}
    with front.client(headers=once) as client:
        first, again = (client.post(PATH, json={**BODY, "stream": True}) for _ in range(2))

    assert first.content == again.content
    assert again.headers["idempotent-replayed"] == "true"
    assert front.count("started") == 1


def agent_request() -> dict[str, Any]:
    """What a coding agent sends in its second turn: its whole history, all its tools, and fields of its own."""
    return {
        "model": "scripted",
        "instructions": "You are a coding agent.",
        "input": [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "<permissions>read-only</permissions>"}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "<environment_context>/src</environment_context>"},
                    {"type": "input_text", "text": "Rename the function."},
                ],
            },
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "Look first."}],
                "content": None,
                "encrypted_content": "gAAAA",
            },
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Looking.", "annotations": []}],
            },
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_1",
                "name": "shell",
                "arguments": '{"cmd":["ls"]}',
            },
            {"type": "function_call", "call_id": "call_2", "name": "shell", "arguments": '{"cmd":["pwd"]}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "a.py"},
            {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "/src"}]},
            {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}},
            {"type": "local_shell_call", "call_id": "call_3", "status": "completed", "action": {"type": "exec"}},
            {"type": "custom_tool_call", "call_id": "call_4", "name": "apply_patch", "input": "*** Begin Patch"},
            {"type": "custom_tool_call_output", "call_id": "call_4", "output": "Done."},
            {"type": "ghost_snapshot", "ghost_commit": {"id": "secret-of-the-client"}},
            {"role": "user", "content": "Thanks. Go on."},
        ],
        "tools": [
            {**WEATHER, "name": "shell", "description": "Runs a command."},
            PATCH,
            {"type": "web_search", "external_web_access": False},
            {"type": "local_shell"},
            {"type": "namespace", "name": "mcp__x", "tools": [WEATHER]},
            {"type": "tool_search", "execution": "client"},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "0199-thread",
        "service_tier": None,
        "text": {"verbosity": "medium"},
        "client_metadata": {"installation": "1"},
    }


def test_a_coding_agent_is_answered_and_told_apart_from_what_is_unknown(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "laneway.front"):
        events = stream(front, **agent_request())

    assert_numbered(events)
    kinds = [kind for kind, _ in events]
    response = events[-1][1]["response"]
    done = next(data for kind, data in events if kind == "response.output_item.done")
    assert kinds[-1] == "response.completed"
    assert done["item"]["content"][0]["text"].endswith("Thanks. Go on.")
    assert [tool["name"] for tool in response["tools"]] == ["shell", "apply_patch"]
    assert response["text"] == {"verbosity": "medium", "format": {"type": "text"}}
    assert response["usage"]["total_tokens"] > 0
    (line,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    for kind in ("web_search_call", "local_shell_call", "ghost_snapshot", "web_search", "namespace", "tool_search"):
        assert kind in line
    assert "secret" not in line


def test_a_coding_agent_that_packs_its_history_is_answered_alike(front: Front) -> None:
    """Codex CLI packs what it sends, and names its conversation and itself in headers."""
    packed = zstandard.compress(json.dumps(agent_request()).encode())
    headers = {
        "content-type": "application/json",
        "content-encoding": "zstd",
        "accept": "text/event-stream",
        "originator": "codex_cli_rs",
        "conversation_id": "0199-thread",
        "session_id": "0199-thread",
        "version": "0.60.0",
        "user-agent": "codex_cli_rs/0.60.0 (Linux; x86_64)",
    }
    with front.client(headers=headers) as client:
        reply = client.post(PATH, content=packed)

    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    kinds = [line.removeprefix("event: ") for line in reply.text.splitlines() if line.startswith("event: ")]
    assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
    assert kinds == [kind for kind, _ in stream(front, **agent_request())]
