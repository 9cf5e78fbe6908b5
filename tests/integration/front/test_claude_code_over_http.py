"""Claude Code's requests against a real front, streamed and not: all is taken, and what it waits for comes."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import anthropic
import pytest

from gateway.openai.wire import WireOptions
from gateway.tenants import AuthOptions
from tests.integration.front.claude_code import HEADERS, NAMES, quota, title, turn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.front.front_server import Front, Serve

PATH = "/v1/messages?beta=true"
SECRET = "sk-the-only-key-99"
PROMPT = (
    "You are a coding agent.\nWork in /src.\n<system-reminder>\nToday is Tuesday.\n</system-reminder>\n\n"
    "Rename the function.\nLooking.\na.py\nError:\n<tool_use_error>No such file.</tool_use_error>\n"
    "<total_tokens>31000 tokens left</total_tokens>\nGo on."
)
CALLS = {
    "reasoning": ["Now", " edit."],
    "tokens": ["Editing."],
    "tool_calls": [
        {"name": "Edit", "arguments": ['{"what"', ': "a.py"}']},
        {"name": "Bash", "arguments": ['{"what": "make"}']},
    ],
}


@pytest.fixture
def front(serve: Serve) -> Front:
    """A strict server with a key: neither is in this client's way."""
    return serve(auth=AuthOptions(keys=(SECRET,)), wire=WireOptions(strict=True), max_model_len=100_000)


@pytest.fixture
def sdk(front: Front) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=front.url, auth_token=SECRET, api_key=None, max_retries=0, timeout=20) as sdk:
        yield sdk


def answer(front: Front, body: dict[str, Any]) -> dict[str, Any]:
    """The whole answer, asked for without a stream."""
    with front.client(headers={**HEADERS, "authorization": f"Bearer {SECRET}"}) as client:
        reply = client.post(PATH, json={**body, "stream": False})
    assert reply.status_code == 200, reply.text
    message: dict[str, Any] = reply.json()
    return message


def accumulated(sdk: anthropic.Anthropic, body: dict[str, Any]) -> dict[str, Any]:
    """What the SDK makes of the stream."""
    members = {name: value for name, value in body.items() if name not in ("stream", "betas")}
    with sdk.beta.messages.stream(
        model=members.pop("model"),
        max_tokens=members.pop("max_tokens"),
        messages=members.pop("messages"),
        betas=body.get("betas", []),
        extra_body=members,
        extra_headers=HEADERS,
    ) as events:
        message: dict[str, Any] = events.get_final_message().to_dict()
    return message


def told(message: dict[str, Any]) -> dict[str, Any]:
    """The parts of a message that are the same each time it is made."""
    members = ("thinking", "signature", "text", "name", "input")
    return {
        "content": [
            (block["type"], {name: block[name] for name in members if name in block}) for block in message["content"]
        ],
        "stop_reason": message["stop_reason"],
        "used": (message["usage"]["input_tokens"], message["usage"]["output_tokens"]),
    }


def test_a_turn_is_read_whole_and_in_order(front: Front, sdk: anthropic.Anthropic) -> None:
    whole, streamed = answer(front, turn()), accumulated(sdk, turn())

    assert told(whole) == told(streamed)
    assert told(whole)["content"] == [("text", {"text": PROMPT})]
    assert whole["stop_reason"] == "end_turn"


def test_a_turn_is_answered_with_thoughts_and_tools(front: Front, sdk: anthropic.Anthropic) -> None:
    body = turn(script=CALLS)
    whole, streamed = answer(front, body), accumulated(sdk, body)

    assert told(whole) == told(streamed)
    assert [kind for kind, _ in told(whole)["content"]] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block["input"] for block in whole["content"][2:]] == [{"what": "a.py"}, {"what": "make"}]
    assert whole["stop_reason"] == "tool_use"


def test_its_bill_makes_no_prompt_a_new_one(front: Front) -> None:
    first, second = (answer(front, turn(count)) for count in (1, 99_999))

    assert told(first) == told(second)


def test_what_only_anthropic_can_run_is_left_out_and_named(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "laneway.front"):
        answer(front, turn())

    (line,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert "redacted_thinking" in line and "web_search_20250305" in line
    assert "gAAAA" not in line


def test_its_small_requests_are_answered(front: Front, sdk: anthropic.Anthropic) -> None:
    named = {**title(), "script": {"tokens": ['{"title"', ': "Renaming"}']}}

    assert json.loads(answer(front, named)["content"][0]["text"]) == {"title": "Renaming"}
    assert told(answer(front, named)) == told(accumulated(sdk, named))
    assert answer(front, quota())["stop_reason"] == "max_tokens"


def test_it_counts_a_turn_and_its_tools_alone(front: Front) -> None:
    body = {name: value for name, value in turn().items() if name not in ("max_tokens", "stream")}
    alone = {
        "model": "scripted",
        "messages": [{"role": "user", "content": "foo"}],
        "tools": body["tools"][: len(NAMES)],
    }
    with front.client(headers={**HEADERS, "x-api-key": SECRET}) as client:
        counted = [client.post("/v1/messages/count_tokens?beta=true", json=asked) for asked in (body, alone)]

    assert [reply.status_code for reply in counted] == [200, 200]
    whole, tools = (reply.json()["input_tokens"] for reply in counted)
    assert whole > len(PROMPT.split())
    assert tools > len(NAMES)


def test_it_finds_the_server_alive_before_it_has_a_key(front: Front) -> None:
    with front.client(headers={"user-agent": HEADERS["user-agent"]}) as client:
        replies = [client.head(path) for path in ("/", "/api/hello")]

    assert [(reply.status_code, reply.content) for reply in replies] == [(200, b""), (200, b"")]
