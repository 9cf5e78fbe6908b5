"""Real answers over HTTP hold against the schemas of OpenAI's document: whole ones, and every event of streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.config import Settings
from gateway.lanes import DEFAULT_LANES
from gateway.store import StoreOptions
from tests.contract.openai_document import Json, Members, alternatives, answer_schema, faults, places, schema
from tests.integration.front.front_server import Front, eventually, running

ERROR = {"$ref": "#/components/schemas/ErrorResponse"}
WEATHER: Json = {"name": "weather", "description": "Of a city.", "parameters": {"type": "object"}, "strict": False}
CALLS = [{"name": "weather", "arguments": ['{"city":', ' "Bern"}']}, {"name": "weather", "arguments": ["{}"]}]
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start:"}
PATCH: Json = {"type": "custom", "name": "patch", "format": GRAMMAR}
USER: Json = {"role": "user", "content": "one two three"}
HISTORY: list[Json] = [
    {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
    {"role": "user", "content": "Harm."},
    {"role": "assistant", "refusal": "I will not."},
    USER,
]
CHATS: dict[str, Json] = {
    "text": {},
    "a refusal in the history": {"messages": HISTORY},
    "logprobs of two choices": {"logprobs": True, "top_logprobs": 2, "n": 2, "script": {"top": [{"x": -1.0}] * 3}},
    "bytes that are no text": {"logprobs": True, "script": {"tokens": [{"bytes": [240, 159]}, {"bytes": [142, 173]}]}},
    "tools": {"tools": [{"type": "function", "function": WEATHER}], "script": {"tool_calls": CALLS}},
    "words and a call": {
        "tools": [{"type": "function", "function": WEATHER}],
        "script": {"tokens": ["One"], "tool_calls": CALLS[:1]},
    },
    "functions": {"functions": [WEATHER], "script": {"tool_calls": CALLS[:1]}},
    "reasoning": {"reasoning_effort": "low", "script": {"reasoning": ["hm"], "tokens": ["a"]}},
    "a cap": {"max_completion_tokens": 1, "service_tier": "ultrafast"},
    "nothing": {"script": {"tokens": []}},
}
COMPLETIONS: dict[str, Json] = {
    "text": {},
    "several": {"prompt": ["a b", "c"], "n": 2},
    "echo and logprobs": {"echo": True, "logprobs": 2},
    "a cap": {"max_tokens": 1, "service_tier": "flex"},
}
RESPONSES: dict[str, Json] = {
    "text": {},
    "logprobs": {"top_logprobs": 2, "script": {"tokens": ["a", "b"], "top": [{"x": -1.0}] * 2}},
    "tools": {
        "tools": [{"type": "function", **WEATHER}, PATCH],
        "tool_choice": "auto",
        "script": {"tokens": ["One"], "tool_calls": [*CALLS, {"name": "patch", "arguments": ['{"input": "x"}']}]},
    },
    "reasoning": {"reasoning": {"effort": "low", "mode": "pro"}, "script": {"reasoning": ["h", "m"], "tokens": ["a"]}},
    "a cap": {"max_output_tokens": 1, "service_tier": "ultrafast", "instructions": "Be brief.", "metadata": {"a": "b"}},
    "a format": {
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        "script": {"tokens": ["{}"]},
    },
    "nothing": {"script": {"tokens": []}},
}

# Where OpenAI's servers send null and its document has no null; its SDKs read these as optional, and so does everyone.
UNFINISHED = {"$.choices[].finish_reason"}  # on every event of a completion but the last of a choice
FIRST_TOKEN = {"$.choices[].logprobs"}  # the first token of an echoed prompt has no probability
UNUSED_YET = {"$.response.usage"}  # of a response that has not ended

# What answers have beside the document: vLLM's members, which its clients read, and three that OpenAI sends unsaid.
OURS = {
    "/chat/completions.choices[].message.reasoning",
    "/chat/completions.choices[].message.reasoning_content",
    "/chat/completions.choices[].stop_reason",
    "/completions.choices[].stop_reason",
    "/completions.service_tier",
    "/models.data[].max_model_len",
    "/models.data[].parent",
    "/models.data[].permission",
    "/models.data[].root",
    "/responses.output[]<custom_tool_call>.status",
    "/responses.store",
}
# What answers do not have of the document, which requires none of it: reason → members.
LEFT_OUT = {
    "Models here make text alone, and nothing is moderated or encrypted.": {
        "/chat/completions.choices[].message.audio",
        "/chat/completions.moderation",
        "/responses.moderation",
        "/responses.output[]<reasoning>.encrypted_content",
    },
    "Counts of what there is none of here.": {
        f"/{route}completions.usage.{details}_tokens_details.{kind}_tokens"
        for route in ("", "chat/")
        for details, kind in (
            ("completion", "text"),
            ("prompt", "text"),
            ("prompt", "image"),
            ("prompt", "cache_write"),
        )
    },
    "Nothing is stored, and what is ignored is not repeated.": {
        "/chat/completions.metadata",
        "/models.data[].shutdown_date",
        "/responses.completed_at",
        "/responses.conversation",
        "/responses.max_tool_calls",
        "/responses.prompt",
        "/responses.prompt_cache_key",
        "/responses.prompt_cache_options",
        "/responses.prompt_cache_retention",
        "/responses.reasoning.context",
        "/responses.reasoning.generate_summary",
        "/responses.reasoning.mode",
        "/responses.safety_identifier",
        "/responses.user",
    },
    "Of the tools that only OpenAI runs, and of its own models' phases.": {
        "/responses.output[]<custom_tool_call>.caller",
        "/responses.output[]<custom_tool_call>.namespace",
        "/responses.output[]<function_call>.caller",
        "/responses.output[]<function_call>.namespace",
        "/responses.output[]<message>.phase",
    },
    "SDKs make it themselves, from the output.": {"/responses.output_text"},
    "Repeated as the client wrote it, and these requests have not written it.": {
        "/responses.text.format<json_schema>.description",
        "/responses.text.format<json_schema>.strict",
        "/responses.text.verbosity",
        "/responses.tools[]<custom>.allowed_callers",
        "/responses.tools[]<custom>.defer_loading",
        "/responses.tools[]<custom>.description",
        "/responses.tools[]<function>.allowed_callers",
        "/responses.tools[]<function>.defer_loading",
        "/responses.tools[]<function>.output_schema",
    },
}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("front")
    settings = Settings(
        store=StoreOptions(url=f"sqlite:///{folder}/laneway.db"),
        lanes=dict(DEFAULT_LANES),
        backends={"test": {"type": "scripted", "models": ["scripted"]}},
    )
    with running(settings, folder) as front:
        yield front


@pytest.fixture
def client(front: Front) -> Iterator[httpx.Client]:
    with front.client() as client:
        yield client


def post(client: httpx.Client, path: str, body: Json) -> httpx.Response:
    reply = client.post(f"/v1{path}", json={"model": "scripted", **body})
    assert reply.status_code == 200, reply.text
    return reply


def events(reply: httpx.Response) -> list[Any]:
    """The data of a stream's events, without the end mark."""
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


@pytest.mark.parametrize("case", CHATS)
def test_a_chat_is_answered_as_the_document_says(client: httpx.Client, case: str) -> None:
    body = {"messages": [USER], **CHATS[case]}
    wanted = answer_schema("/chat/completions", "post")
    of_events = answer_schema("/chat/completions", "post", "text/event-stream")

    whole = post(client, "/chat/completions", body).json()
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    stream = events(post(client, "/chat/completions", streamed))

    assert faults(whole, wanted) == []
    assert len(stream) >= 2
    assert [fault for event in stream for fault in faults(event, of_events)] == []


@pytest.mark.parametrize("case", COMPLETIONS)
def test_a_completion_is_answered_as_the_document_says(client: httpx.Client, case: str) -> None:
    body = {"prompt": "a b", **COMPLETIONS[case]}
    wanted = answer_schema("/completions", "post")

    whole = post(client, "/completions", body).json()
    stream = events(post(client, "/completions", {**body, "stream": True}))

    first_token = FIRST_TOKEN if "echo" in body else set()
    assert places(faults(whole, wanted)) == first_token
    assert places(fault for event in stream for fault in faults(event, wanted)) == UNFINISHED | first_token
    assert faults(stream[-1], wanted) == []


@pytest.mark.parametrize("case", RESPONSES)
def test_a_response_is_answered_as_the_document_says(client: httpx.Client, case: str) -> None:
    body = {"input": "one two three", **RESPONSES[case]}

    whole = post(client, "/responses", body).json()
    stream = events(post(client, "/responses", {**body, "stream": True}))

    assert faults(whole, answer_schema("/responses", "post")) == []
    assert places(fault for event in stream for fault in event_faults(event)) == UNUSED_YET
    assert event_faults(stream[-1]) == []


def test_a_response_that_fails_is_told_as_the_document_says(client: httpx.Client) -> None:
    failing = {"tokens": ["a", "b"], "fail": {"kind": "crash", "after_tokens": 1}}

    stream = events(post(client, "/responses", {"input": "x", "stream": True, "script": failing}))

    assert [event["type"] for event in stream[-2:]] == ["response.failed", "error"]
    assert places(fault for event in stream for fault in event_faults(event)) == UNUSED_YET


def event_faults(event: Json) -> list[str]:
    """Against the schema of its own type, which says more than that none of sixty fits."""
    wanted = next(
        option
        for option in alternatives(schema("ResponseStreamEvent"))
        if event["type"] in option["properties"]["type"]["enum"]
    )
    return faults(event, wanted)


@pytest.mark.parametrize("text", ["a b", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_embeddings_are_answered_as_the_document_says(client: httpx.Client, text: object) -> None:
    wanted = answer_schema("/embeddings", "post")

    assert faults(post(client, "/embeddings", {"input": text}).json(), wanted) == []


def test_packed_embeddings_differ_from_the_document_in_the_vector_alone(client: httpx.Client) -> None:
    """The document has no base64 answer, which every SDK asks for; OpenAI sends a text in the vector's place."""
    answer = post(client, "/embeddings", {"input": "a", "encoding_format": "base64"}).json()

    assert isinstance(answer["data"][0]["embedding"], str)
    assert [fault.partition(":")[0] for fault in faults(answer, answer_schema("/embeddings", "post"))] == [
        "$.data[0].embedding"
    ]


def test_models_and_counts_are_answered_as_the_document_says(client: httpx.Client) -> None:
    models = client.get("/v1/models").json()
    one = client.get("/v1/models/scripted").json()
    counted = post(client, "/responses/input_tokens", {"input": "a b"}).json()

    assert faults(models, answer_schema("/models", "get")) == []
    assert faults(one, answer_schema("/models/{model}", "get")) == []
    assert faults(counted, answer_schema("/responses/input_tokens", "post")) == []


def test_files_are_answered_as_the_document_says(client: httpx.Client) -> None:
    made = client.post("/v1/files", files={"file": ("a.txt", b"a")}, data={"purpose": "user_data"}).json()

    assert faults(made, answer_schema("/files", "post")) == []
    assert faults(client.get(f"/v1/files/{made['id']}").json(), answer_schema("/files/{file_id}", "get")) == []
    assert faults(client.get("/v1/files").json(), answer_schema("/files", "get")) == []
    deleted = client.delete(f"/v1/files/{made['id']}").json()
    assert faults(deleted, answer_schema("/files/{file_id}", "delete")) == []


@pytest.mark.parametrize("line", ["good", "not a line"])
def test_batches_are_answered_as_the_document_says(client: httpx.Client, line: str) -> None:
    """OpenAI sends null for what is not so yet, where its document leaves it out."""
    asked = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"model": "scripted", "input": "a"}}
    text = json.dumps(asked) if line == "good" else line
    file = client.post("/v1/files", files={"file": ("a", text.encode())}, data={"purpose": "batch"}).json()
    body = {
        "input_file_id": file["id"],
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
        "metadata": {"a": "b"},
    }
    wanted = answer_schema("/batches", "post")

    made = client.post("/v1/batches", json=body).json()
    path = f"/v1/batches/{made['id']}"
    eventually(lambda: client.get(path).json()["status"] in ("completed", "failed"), "it is over")
    ended = client.get(path).json()

    assert [fault for batch in (made, ended) for fault in faults(without_nulls(batch), wanted)] == []
    sent = Members()
    sent.add(ended, wanted, "/batches")
    assert sent.additions() == set()
    assert ended["status"] == ("completed" if line == "good" else "failed")
    assert faults(without_nulls(client.get("/v1/batches").json()), answer_schema("/batches", "get")) == []


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: without_nulls(member) for name, member in value.items() if member is not None}
    return [without_nulls(member) for member in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files/file-0"),
        ("DELETE", "/v1/files/file-0"),
        ("POST", "/v1/files"),
        ("POST", "/v1/batches"),
        ("POST", "/v1/batches/batch_0/cancel"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/responses"),
        ("POST", "/v1/embeddings"),
        ("GET", "/v1/models/nope"),
        ("DELETE", "/v1/models/scripted"),
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("GET", "/v1/nothing"),
    ],
)
def test_errors_are_told_as_the_document_says(client: httpx.Client, method: str, path: str) -> None:
    reply = client.request(method, path, content=b"{}")

    assert 400 <= reply.status_code < 500
    assert faults(reply.json(), ERROR) == []


@pytest.fixture
def members(client: httpx.Client) -> Members:
    """Of one answer of each kind."""
    members = Members()
    asked: tuple[tuple[str, Json, dict[str, Json]], ...] = (
        ("/chat/completions", {"messages": [USER]}, CHATS),
        ("/completions", {"prompt": "a"}, COMPLETIONS),
        ("/responses", {"input": "a"}, RESPONSES),
        ("/embeddings", {"input": "a"}, {"text": {}}),
    )
    for path, body, cases in asked:
        for case in cases.values():
            members.add(post(client, path, {**body, **case}).json(), answer_schema(path, "post"), path)
    members.add(client.get("/v1/models").json(), answer_schema("/models", "get"), "/models")
    return members


def test_what_answers_have_beside_the_document_is_known(members: Members) -> None:
    assert members.additions() == OURS


def test_what_answers_leave_out_of_the_document_is_known(members: Members) -> None:
    assert members.omissions() == {place for places in LEFT_OUT.values() for place in places}
