"""The OpenAPI document: the file in the repository is up to date, covers the routes, and describes real answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from litestar.testing import TestClient

from gateway.api.generating import ALLOW
from gateway.app import create_app
from gateway.config import Settings
from gateway.lanes import DEFAULT_LANES
from gateway.openai.shapes import ChatCompletion, ChatCompletionChunk, Completion, ErrorEnvelope
from gateway.openapi import OPERATIONS, openapi_document, openapi_yaml

FILE = Path(__file__).parents[2] / "openapi" / "gateway.yaml"
SETTINGS = Settings(lanes=dict(DEFAULT_LANES), backends={"test": {"type": "scripted"}})
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "a b"}]}
SCRIPT = {
    "reasoning": ["hm"],
    "tokens": ["a"],
    "tool_calls": [{"name": "f", "arguments": ["{", "}"]}],
}


def test_the_file_is_what_the_code_says() -> None:
    assert FILE.read_text(encoding="utf-8") == openapi_yaml(), "run `make openapi` and commit the file"


def test_every_reference_leads_somewhere() -> None:
    document = openapi_document()

    for reference in set(re.findall(r'"(#/[^"]+)"', msgspec.json.encode(document).decode())):
        here: Any = document
        for step in reference.removeprefix("#/").split("/"):
            here = here[step]


def test_the_document_covers_the_routes_and_no_others(tmp_path: Path) -> None:
    app = create_app(SETTINGS, tmp_path)
    hidden = {"/", "/api/hello"}

    served = set()
    for route in app.routes:
        path = route.path_format
        methods = getattr(route, "methods", None) or set(ALLOW.split(", "))
        served |= {(path, method.lower()) for method in methods if method not in ("HEAD", "OPTIONS")}

    described = {(operation.path, operation.method) for operation in OPERATIONS}
    assert {entry for entry in served if entry[0] not in hidden} == described


@pytest.mark.parametrize("extra", [{}, {"logprobs": True, "top_logprobs": 1, "n": 2}, {"script": SCRIPT}])
def test_chat_answers_are_as_described(tmp_path: Path, extra: dict[str, object]) -> None:
    streamed = {**CHAT, **extra, "stream": True, "stream_options": {"include_usage": True}}
    with TestClient(create_app(SETTINGS, tmp_path)) as client:
        whole = client.post("/v1/chat/completions", json={**CHAT, **extra})
        events = client.post("/v1/chat/completions", json=streamed).text.split("\n\n")

    assert msgspec.json.decode(whole.content, type=ChatCompletion).choices
    for event in events[:-2]:
        msgspec.json.decode(event.removeprefix("data: "), type=ChatCompletionChunk)


@pytest.mark.parametrize("extra", [{}, {"logprobs": 1, "echo": True}])
def test_completions_and_errors_are_as_described(tmp_path: Path, extra: dict[str, object]) -> None:
    body = {"model": "scripted", "prompt": "a b", **extra}
    with TestClient(create_app(SETTINGS, tmp_path)) as client:
        whole = client.post("/v1/completions", json=body)
        events = client.post("/v1/completions", json={**body, "stream": True}).text.split("\n\n")
        error = client.post("/v1/completions", json={**body, "model": "nope"})

    assert msgspec.json.decode(whole.content, type=Completion).choices
    for event in events[:-2]:
        msgspec.json.decode(event.removeprefix("data: "), type=Completion)
    assert msgspec.json.decode(error.content, type=ErrorEnvelope).error.code == "model_not_found"
