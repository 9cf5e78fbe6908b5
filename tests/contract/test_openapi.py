"""The OpenAPI document: the file in the repository is up to date, covers the routes, and describes real answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar import Litestar
from litestar.testing import TestClient

from gateway.anthropic.shapes import Message, MessageErrorEnvelope, MessageEvent, TokenCount
from gateway.api.admin.access import ACCESS
from gateway.api.generating import ALLOW
from gateway.app import create_app
from gateway.config import Settings
from gateway.lanes import DEFAULT_LANES
from gateway.openai.embeddings import EmbeddingList
from gateway.openai.response_shapes import InputTokens, Response, ResponseEvent
from gateway.openai.shapes import ChatCompletion, ChatCompletionChunk, Completion, ErrorEnvelope
from gateway.openapi import OPERATIONS, openapi_document, openapi_yaml
from gateway.store import StoreOptions

FILE = Path(__file__).parents[2] / "openapi" / "gateway.yaml"
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "a b"}]}
SCRIPT = {
    "reasoning": ["hm"],
    "tokens": ["a"],
    "tool_calls": [{"name": "f", "arguments": ["{", "}"]}],
}


@pytest.fixture
def app(tmp_path: Path) -> Litestar:
    settings = Settings(
        store=StoreOptions(url=f"sqlite:///{tmp_path}/laneway.db"),
        lanes=dict(DEFAULT_LANES),
        backends={"test": {"type": "scripted"}},
    )
    return create_app(settings, tmp_path)


def test_the_file_is_what_the_code_says() -> None:
    assert FILE.read_text(encoding="utf-8") == openapi_yaml(), "run `make openapi` and commit the file"


def test_every_reference_leads_somewhere() -> None:
    document = openapi_document()

    for reference in set(re.findall(r'"(#/[^"]+)"', msgspec.json.encode(document).decode())):
        here: Any = document
        for step in reference.removeprefix("#/").split("/"):
            here = here[step]


def test_every_operation_has_a_name_of_its_own_and_says_what_it_fails_with() -> None:
    operations = [made for methods in openapi_document()["paths"].values() for made in methods.values()]

    assert len({operation["operationId"] for operation in operations}) == len(operations)
    for operation in operations:
        assert not operation["security"] or {"401", "503"} <= operation["responses"].keys(), operation["operationId"]


def test_the_operations_of_the_admin_api_name_their_fields_and_the_roles_that_may_call_them() -> None:
    paths = openapi_document()["paths"]
    schemas = openapi_document()["components"]["schemas"]

    assert {"tenant", "role", "rpm", "budget_nano"} < schemas["KeyOrder"]["properties"].keys()
    assert "key" in schemas["NewKeyRow"]["required"] and "key" not in schemas["KeyRow"]["properties"]
    assert schemas["KeyRowPage"]["properties"]["data"]["items"] == {"$ref": "#/components/schemas/KeyRow"}
    assert {parameter["name"] for parameter in paths["/admin/v1/usage"]["get"]["parameters"]} > {
        "by",
        "since",
        "format",
    }
    for name, roles in ACCESS.items():
        method, path = name.split(" ")
        operation = paths[f"/admin/v1{path}"][method.lower()]
        assert operation["x-roles"] == sorted(roles), name
        assert "403" in operation["responses"], name


def test_the_document_covers_the_routes_and_no_others(app: Litestar) -> None:
    gone = "/v1/responses/{response_id}"  # what never is there is no operation
    itself = {"/docs", "/openapi.json", "/openapi.yaml"}
    hidden = itself | {"/", "/api/hello", gone, f"{gone}/cancel", f"{gone}/input_items"}

    served = set()
    for route in app.routes:
        path = route.path_format
        methods = getattr(route, "methods", None) or set(ALLOW.split(", "))
        served |= {(path, method.lower()) for method in methods if method not in ("HEAD", "OPTIONS")}

    described = {(operation.path, operation.method) for operation in OPERATIONS}
    assert {entry for entry in served if entry[0] not in hidden} == described


@pytest.mark.parametrize("extra", [{}, {"logprobs": True, "top_logprobs": 1, "n": 2}, {"script": SCRIPT}])
def test_chat_answers_are_as_described(app: Litestar, extra: dict[str, object]) -> None:
    streamed = {**CHAT, **extra, "stream": True, "stream_options": {"include_usage": True}}
    with TestClient(app) as client:
        whole = client.post("/v1/chat/completions", json={**CHAT, **extra})
        events = client.post("/v1/chat/completions", json=streamed).text.split("\n\n")

    assert msgspec.json.decode(whole.content, type=ChatCompletion).choices
    for event in events[:-2]:
        msgspec.json.decode(event.removeprefix("data: "), type=ChatCompletionChunk)


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_embeddings_are_as_described(app: Litestar, encoding: str) -> None:
    with TestClient(app) as client:
        reply = client.post(
            "/v1/embeddings", json={"model": "scripted", "input": ["a", "b"], "encoding_format": encoding}
        )

    assert [item.index for item in msgspec.json.decode(reply.content, type=EmbeddingList).data] == [0, 1]


@pytest.mark.parametrize("extra", [{}, {"top_logprobs": 1, "max_output_tokens": 1}, {"script": SCRIPT}])
def test_responses_are_as_described(app: Litestar, extra: dict[str, object]) -> None:
    asked = {"model": "scripted", "input": "a b"}
    failing = {"tokens": ["a"], "fail": {"kind": "crash", "after_tokens": 1}}
    with TestClient(app) as client:
        whole = client.post("/v1/responses", json={**asked, **extra})
        counted = client.post("/v1/responses/input_tokens", json=asked)
        streams = [
            client.post("/v1/responses", json={**asked, "stream": True, **more}).text
            for more in (extra, {"script": failing})
        ]

    assert msgspec.json.decode(whole.content, type=Response).output
    assert msgspec.json.decode(counted.content, type=InputTokens).input_tokens == 2
    for event in "".join(streams).split("\n\n")[:-1]:
        kind, data = event.split("\ndata: ")
        assert msgspec.json.decode(data, type=ResponseEvent).type == kind.removeprefix("event: ")


@pytest.mark.parametrize("extra", [{}, {"max_tokens": 1}, {"script": SCRIPT, "thinking": {"type": "adaptive"}}])
def test_messages_are_as_described(app: Litestar, extra: dict[str, object]) -> None:
    asked = {**CHAT, "max_tokens": 9}
    failing = {"tokens": ["a"], "fail": {"kind": "crash", "after_tokens": 1}}
    with TestClient(app) as client:
        whole = client.post("/v1/messages", json={**asked, **extra})
        counted = client.post("/v1/messages/count_tokens", json=CHAT)
        refused = client.post("/v1/messages", json=CHAT)
        streams = [
            client.post("/v1/messages", json={**asked, "stream": True, **more}).text
            for more in (extra, {"script": failing})
        ]

    assert msgspec.json.decode(whole.content, type=Message).content
    assert msgspec.json.decode(counted.content, type=TokenCount).input_tokens == 2
    assert msgspec.json.decode(refused.content, type=MessageErrorEnvelope).error.type == "invalid_request_error"
    for event in "".join(streams).split("\n\n")[:-1]:
        kind, data = event.split("\ndata: ")
        told = msgspec.json.decode(data, type=MessageEvent)
        assert told.__struct_config__.tag == kind.removeprefix("event: ")


@pytest.mark.parametrize("extra", [{}, {"logprobs": 1, "echo": True}])
def test_completions_and_errors_are_as_described(app: Litestar, extra: dict[str, object]) -> None:
    body = {"model": "scripted", "prompt": "a b", **extra}
    with TestClient(app) as client:
        whole = client.post("/v1/completions", json=body)
        events = client.post("/v1/completions", json={**body, "stream": True}).text.split("\n\n")
        error = client.post("/v1/completions", json={**body, "model": "nope"})

    assert msgspec.json.decode(whole.content, type=Completion).choices
    for event in events[:-2]:
        msgspec.json.decode(event.removeprefix("data: "), type=Completion)
    assert msgspec.json.decode(error.content, type=ErrorEnvelope).error.code == "model_not_found"
