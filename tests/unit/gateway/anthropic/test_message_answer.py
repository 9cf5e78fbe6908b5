"""What a client sees of a message: its events, and the whole as what they add up to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from anthropic._models import construct_type_unchecked
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.types import Chunk, FinishReason, ToolCallDelta, Usage
from gateway.anthropic.errors import error_body
from gateway.anthropic.messages import MessagesRequest, decode_messages
from gateway.anthropic.shapes import Message, MessageEvent
from gateway.openai.errors import Fault

NONE = Usage()
USAGE = Usage(prompt_tokens=5, completion_tokens=7, cached_tokens=2, reasoning_tokens=4)
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
THINKING = {"thinking": {"type": "adaptive"}}


def request(**members: Any) -> MessagesRequest:
    body = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
    return decode_messages(msgspec.json.encode({**body, **THINKING, **members}))


def text(piece: str, **members: Any) -> Chunk:
    return Chunk(usage=NONE, text=piece, **members)


def thought(piece: str) -> Chunk:
    return Chunk(usage=NONE, reasoning=piece)


def call(index: int = 0, arguments: str = "", **members: Any) -> Chunk:
    return Chunk(usage=NONE, tool_calls=(ToolCallDelta(index=index, arguments=arguments, **members),))


def end(reason: FinishReason = FinishReason.STOP, **members: Any) -> Chunk:
    return Chunk(usage=USAGE, finish_reason=reason, **members)


def events(chunks: list[Chunk], **members: Any) -> list[dict[str, Any]]:
    """The data of the events, which are as the OpenAPI document says and carry their type in their line too."""
    encoder = request(**members).encoder("req_1", 1)
    stream = b"".join([*(encoder.encode(chunk) for chunk in chunks), encoder.finish()])
    return parsed(stream)


def parsed(stream: bytes) -> list[dict[str, Any]]:
    *blocks, rest = stream.decode().split("\n\n")
    assert rest == ""
    told = []
    for block in blocks:
        line, data = block.split("\n")
        msgspec.json.decode(data.removeprefix("data: "), type=MessageEvent)
        told.append(msgspec.json.decode(data.removeprefix("data: ")))
        assert line == f"event: {told[-1]['type']}"
    return told


def whole(chunks: list[Chunk], **members: Any) -> dict[str, Any]:
    folder = request(**members).folder("req_1", 1)
    for chunk in chunks:
        folder.add(chunk)
    msgspec.json.decode(folder.body(), type=Message)
    message: dict[str, Any] = msgspec.json.decode(folder.body())
    return message


def accumulated(told: list[dict[str, Any]]) -> dict[str, Any]:
    """What the events add up to in Anthropic's SDK."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    kind: Any = RawMessageStreamEvent
    for data in told:
        if data["type"] != "ping":
            event: Any = construct_type_unchecked(value=data, type_=kind)
            snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    message: dict[str, Any] = snapshot.to_dict()
    return message


def assert_blocks_follow_each_other(told: list[dict[str, Any]]) -> None:
    """Each block begins, goes on and ends before the next begins, and nothing comes outside of one."""
    steps = [(data["type"], data["index"]) for data in told if "index" in data]
    at = -1
    is_open = False
    for kind, index in steps:
        if kind == "content_block_start":
            at += 1
            assert not is_open
            is_open = True
        assert is_open and index == at
        is_open = kind != "content_block_stop"
    assert not is_open


def test_the_events_of_a_text_come_in_anthropics_order() -> None:
    told = events([text("Hel"), text("lo"), end()])

    assert [data["type"] for data in told] == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    message = told[0]["message"]
    assert (message["id"], message["type"], message["role"], message["model"]) == ("msg_1", "message", "assistant", "m")
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    assert told[2]["content_block"] == {"type": "text", "text": ""}
    assert told[3]["delta"] == {"type": "text_delta", "text": "Hel"}
    assert told[6]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


def test_the_usage_keeps_what_was_cached_apart_and_is_cumulative() -> None:
    usage = {
        "input_tokens": 3,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 2,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 4},
    }

    told = events([Chunk(usage=Usage(prompt_tokens=5, completion_tokens=1), text="a"), end()])

    assert (told[0]["message"]["usage"]["input_tokens"], told[0]["message"]["usage"]["output_tokens"]) == (5, 1)
    assert told[-2]["usage"] == usage
    assert whole([text("a"), end()])["usage"] == usage


def test_thoughts_text_and_calls_are_blocks_one_after_the_other() -> None:
    chunks = [
        thought("let me"),
        thought(" see"),
        text("It is"),
        call(id="toolu_1", name="f", arguments='{"a"'),
        call(arguments=": 1}"),
        call(1, id="toolu_2", name="g", arguments="{}"),
        end(),
    ]
    told = events(chunks)
    message = whole(chunks)

    assert_blocks_follow_each_other(told)
    signature = message["content"][0]["signature"]
    assert message["content"] == [
        {"type": "thinking", "thinking": "let me see", "signature": signature},
        {"type": "text", "text": "It is"},
        {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {"a": 1}},
        {"type": "tool_use", "id": "toolu_2", "name": "g", "input": {}},
    ]
    assert len(signature) == 64
    assert message["stop_reason"] == "tool_use"
    deltas = [data["delta"] for data in told if data["type"] == "content_block_delta" and data["index"] in (0, 2)]
    assert deltas == [
        {"type": "thinking_delta", "thinking": "let me"},
        {"type": "thinking_delta", "thinking": " see"},
        {"type": "signature_delta", "signature": signature},
        {"type": "input_json_delta", "partial_json": '{"a"'},
        {"type": "input_json_delta", "partial_json": ": 1}"},
    ]
    assert [data["content_block"].get("input") for data in told if data["type"] == "content_block_start"] == [
        None,
        None,
        {},
        {},
    ]


def test_calls_whose_pieces_come_mixed_are_shown_one_after_the_other() -> None:
    chunks = [
        call(0, id="a", name="f", arguments='{"x":'),
        call(1, id="b", name="g", arguments='{"y":'),
        text("meanwhile"),
        call(0, arguments="1}"),
        call(1, arguments="2}"),
        end(),
    ]
    told = events(chunks)

    assert_blocks_follow_each_other(told)
    assert [block.get("input") or block["text"] for block in whole(chunks)["content"]] == [
        {"x": 1},
        {"y": 2},
        "meanwhile",
    ]


def test_a_call_is_shown_while_it_is_made() -> None:
    encoder = request().encoder("req_1", 1)

    encoder.encode(call(0, id="a", name="f", arguments='{"x":'))
    assert b"partial_json" in encoder.encode(call(0, arguments="1}"))
    assert b'"id":"b"' in encoder.encode(call(1, id="b", name="g", arguments="{"))


def test_a_call_without_an_id_gets_one() -> None:
    first, second = whole([call(0, name="f"), call(1, name="f"), end()])["content"]

    assert first["id"] and second["id"] and first["id"] != second["id"]


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1]", "nonsense"])
def test_an_input_that_is_no_object_is_told_under_anthropics_name_for_that(arguments: str) -> None:
    (block,) = whole([call(0, id="a", name="f", arguments=arguments), end(FinishReason.LENGTH)])["content"]

    assert block["input"] == {"INVALID_JSON": arguments}


@pytest.mark.parametrize(
    ("last", "reason", "sequence"),
    [
        (end(), "end_turn", None),
        (end(stop_reason="END"), "stop_sequence", "END"),
        (end(stop_reason=7), "end_turn", None),
        (end(FinishReason.LENGTH), "max_tokens", None),
        (end(FinishReason.CONTENT_FILTER), "refusal", None),
    ],
)
def test_why_it_ended_is_told_in_anthropics_words(last: Chunk, reason: str, sequence: str | None) -> None:
    message = whole([text("a"), last])

    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    assert events([text("a"), last])[-2]["delta"] == {"stop_reason": reason, "stop_sequence": sequence}


def test_an_answer_without_a_word_is_an_empty_text() -> None:
    for chunks in ([end()], [end(FinishReason.LENGTH)], [Chunk(usage=NONE), end()]):
        assert whole(chunks)["content"] == [{"type": "text", "text": ""}]
        assert_blocks_follow_each_other(events(chunks))
    assert [block["type"] for block in whole([thought("hm"), end()])["content"]] == ["thinking", "text"]


def test_thoughts_that_were_not_asked_for_are_not_shown() -> None:
    message = whole([thought("hm"), text("a"), end()], thinking={"type": "disabled"})

    assert message["content"] == [{"type": "text", "text": "a"}]
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 4}


def test_one_call_at_a_time_is_one_call() -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}

    message = whole([call(0, id="a", name="f"), call(1, id="b", name="f"), end()], tool_choice=choice)

    assert [block["id"] for block in message["content"]] == ["a"]


def test_nothing_is_sent_before_there_is_something_to_see() -> None:
    encoder = request().encoder("req_1", 1)

    assert encoder.encode(Chunk(usage=NONE)) == b""
    assert encoder.encode(text("a")).startswith(b"event: message_start\n")


def test_a_failure_inside_a_stream_is_one_event_of_its_own() -> None:
    encoder = request().encoder("req_1", 1)
    encoder.encode(text("a"))

    (told,) = parsed(encoder.fail(error_body(Fault(status=503, type="x", message="full", code="overloaded"), "req_1")))

    assert told == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "full"},
        "request_id": "req_1",
    }


PIECES = st.one_of(
    st.text(max_size=3).map(text),
    st.text(max_size=3).map(thought),
    st.tuples(st.integers(0, 2), st.sampled_from(["", "{", '"k"', ":1", "}", "{}"])).map(lambda pair: call(*pair)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=12), st.sampled_from(list(FinishReason)))
def test_whatever_comes_the_events_add_up_to_the_whole(pieces: list[Chunk], reason: FinishReason) -> None:
    """Ids are given at random, and the SDK reads inputs that are broken in its own way."""
    chunks = [*pieces, end(reason)]
    told = events(chunks)
    message = whole(chunks)

    assert_blocks_follow_each_other(told)
    shown: dict[int, str] = {}
    for data in told:
        if data["type"] == "content_block_delta":
            delta = data["delta"]
            piece = delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
            shown[data["index"]] = shown.get(data["index"], "") + piece
    assert len(message["content"]) == sum(data["type"] == "content_block_start" for data in told)
    for index, block in enumerate(message["content"]):
        if block["type"] == "tool_use":
            given_text = shown.get(index, "")
            assert block["input"] in (_object(given_text), {"INVALID_JSON": given_text})
        else:
            assert block[block["type"]] == shown.get(index, "")


def test_the_sdk_adds_the_events_up_to_the_whole() -> None:
    chunks = [thought("hm"), text("It"), text(" is"), call(0, id="a", name="f", arguments='{"x": [1, 2]}'), end()]

    message, told = whole(chunks), accumulated(events(chunks))

    for member in ("id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"):
        assert told[member] == message[member]


def _object(given_text: str) -> Any:
    try:
        return msgspec.json.decode(given_text) if given_text else {}
    except msgspec.DecodeError:
        return None
