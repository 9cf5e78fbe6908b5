"""What a client sees of a response: its events, and the whole as what they add up to."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai._models import construct_type_unchecked
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent

from backends.types import Chunk, FinishReason, TokenLogprob, ToolCallDelta, Usage
from gateway.openai.errors import envelope
from gateway.openai.response_answer import custom_input
from gateway.openai.response_shapes import ResponseEvent
from gateway.openai.responses import ResponseRequest, decode_response

EVENT: Any = ResponseStreamEvent
NONE = Usage()
USAGE = Usage(prompt_tokens=5, completion_tokens=7, cached_tokens=2, reasoning_tokens=4)
TOOLS = [{"type": "function", "name": "f"}, {"type": "custom", "name": "patch"}]


def request(**members: Any) -> ResponseRequest:
    return decode_response(msgspec.json.encode({"model": "m", "input": "hi", "tools": TOOLS, **members}))


def text(piece: str, **members: Any) -> Chunk:
    return Chunk(usage=NONE, text=piece, **members)


def thought(piece: str) -> Chunk:
    return Chunk(usage=NONE, reasoning=piece)


def call(index: int = 0, arguments: str = "", **members: Any) -> Chunk:
    return Chunk(usage=NONE, tool_calls=(ToolCallDelta(index=index, arguments=arguments, **members),))


def end(reason: FinishReason = FinishReason.STOP, **members: Any) -> Chunk:
    return Chunk(usage=USAGE, finish_reason=reason, **members)


def wire(chunks: list[Chunk], **members: Any) -> bytes:
    encoder = request(**members).encoder("req_1", 1)
    return b"".join([*(encoder.encode(chunk) for chunk in chunks), encoder.finish()])


def events(chunks: list[Chunk], **members: Any) -> list[dict[str, Any]]:
    return parsed(wire(chunks, **members))


def parsed(stream: bytes) -> list[dict[str, Any]]:
    """The data of the events, which are as the OpenAPI document says and carry their type in their line too."""
    *blocks, rest = stream.decode().split("\n\n")
    assert rest == ""
    made = []
    for number, block in enumerate(blocks):
        line, data = block.split("\n")
        msgspec.json.decode(data.removeprefix("data: "), type=ResponseEvent)
        event = msgspec.json.decode(data.removeprefix("data: "))
        assert (line, event["sequence_number"]) == (f"event: {event['type']}", number)
        made.append(event)
    return made


def folded(chunks: list[Chunk], **members: Any) -> dict[str, Any]:
    folder = request(**members).folder("req_1", 1)
    for chunk in chunks:
        folder.add(chunk)
    body: dict[str, Any] = msgspec.json.decode(folder.body())
    return body


def accumulated(made: list[dict[str, Any]]) -> Response:
    """What the SDK's own accumulator makes of the events; it raises where they break its rules."""
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in made:
        state.handle_event(construct_type_unchecked(type_=EVENT, value=event))
    assert state._completed_response is not None
    return state._completed_response


def kinds(made: list[dict[str, Any]]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in made]


def test_nothing_is_said_before_there_is_something_to_see() -> None:
    encoder = request().encoder("req_1", 1)

    assert encoder.encode(Chunk(usage=NONE)) == b""
    assert encoder.encode(text("a")).startswith(b'event: response.created\ndata: {"type":"response.created"')


def test_each_item_is_opened_before_what_is_in_it_and_closed_before_the_next() -> None:
    made = events([thought("hm"), text("a"), call(id="c", name="f", arguments="{}"), end(FinishReason.TOOL_CALLS)])

    assert kinds(made) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "reasoning_text.delta",
        "reasoning_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    assert [event["output_index"] for event in made[2:-1]] == [0] * 6 + [1] * 6 + [2] * 4
    ids = [event.get("item_id") or event["item"]["id"] for event in made[2:-1]]
    assert len(set(ids)) == 3 and [ids[0][:3], ids[6][:4], ids[12][:3]] == ["rs_", "msg_", "fc_"]
    assert made[14]["item"]["arguments"] == ""
    assert (made[16]["name"], made[16]["arguments"], made[17]["item"]["call_id"]) == ("f", "{}", "c")


def test_pieces_of_calls_that_come_mixed_stay_apart() -> None:
    chunks = [
        call(3, id="a", name="f"),
        call(7, "{", id="b", name="f"),
        call(3, "["),
        call(7, "}"),
        call(3, "]"),
        end(),
    ]

    response = events(chunks)[-1]["response"]

    assert [(item["call_id"], item["arguments"]) for item in response["output"]] == [("a", "[]"), ("b", "{}")]
    assert accumulated(events(chunks)).output


def test_a_call_without_an_id_gets_one() -> None:
    (item,) = folded([call(name="f"), end()])["output"]

    assert item["call_id"].startswith("call_")


def test_a_custom_call_shows_its_text_once_it_is_whole() -> None:
    made = events([call(id="c", name="patch", arguments='{"input"'), call(arguments=':"a\\nb"}'), end()])

    assert kinds(made)[2:-1] == [
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
    ]
    assert [made[2]["item"]["input"], made[3]["delta"], made[4]["input"], made[5]["item"]["input"]] == [
        "",
        *["a\nb"] * 3,
    ]


@pytest.mark.parametrize("arguments", ["", "x", "{", "[]", "3", "{}", '{"input":5}', '{"inputs":"a"}', "[" * 100_000])
def test_arguments_of_a_custom_call_that_are_wrong_are_its_text(arguments: str) -> None:
    assert custom_input(arguments) == arguments
    (item,) = folded([call(id="c", name="patch", arguments=arguments), end()])["output"]
    assert item["input"] == arguments


@pytest.mark.parametrize("before", [[], [thought("hm")]])
def test_an_answer_of_nothing_is_an_empty_message(before: list[Chunk]) -> None:
    response = accumulated(events([*before, end()]))

    assert response.output_text == ""
    assert response.output[-1].type == "message"
    assert len(response.output) == len(before) + 1


def test_an_answer_that_is_cut_has_only_what_was_made() -> None:
    nothing, thinking = folded([end(FinishReason.LENGTH)]), folded([thought("hm"), end(FinishReason.LENGTH)])

    assert (nothing["status"], nothing["output"]) == ("incomplete", [])
    assert [(item["type"], item["status"]) for item in thinking["output"]] == [("reasoning", "incomplete")]
    assert thinking["incomplete_details"] == {"reason": "max_output_tokens"}


def test_a_filtered_answer_is_incomplete_for_that_reason() -> None:
    made = events([text("a"), end(FinishReason.CONTENT_FILTER)])

    assert kinds(made)[-1] == "incomplete"
    assert made[-1]["response"]["incomplete_details"] == {"reason": "content_filter"}


def test_the_usage_is_full_and_counts_reasoning_among_the_output() -> None:
    response = folded([thought("hm"), text("a"), end()])

    assert response["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 4},
        "total_tokens": 12,
    }


def test_the_usage_is_that_of_the_last_chunk_even_after_the_finish() -> None:
    made = events([text("a"), end(), Chunk(usage=Usage(prompt_tokens=9, completion_tokens=1, source="counted"))])

    assert made[-1]["response"]["usage"]["total_tokens"] == 10


def test_the_response_repeats_what_was_asked_and_says_that_nothing_is_stored() -> None:
    asked: dict[str, Any] = {
        "instructions": "be short",
        "max_output_tokens": 9,
        "metadata": {"a": "b"},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "top_p": 0.25,
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_object"}, "verbosity": "low"},
    }
    more = {"store": True, "truncation": "auto", "reasoning": {"effort": "low"}, "service_tier": "auto"}

    response = folded([text("a"), end()], **asked, **more)

    assert {name: response[name] for name in asked} == asked
    assert (response["store"], response["truncation"], response["service_tier"]) == (False, "disabled", "default")
    assert response["reasoning"] == {"effort": "low", "summary": None}
    assert (response["id"], response["object"], response["created_at"], response["model"]) == (
        "resp_1",
        "response",
        1,
        "m",
    )
    for name in ("error", "incomplete_details", "previous_response_id"):
        assert response[name] is None
    assert "service_tier" not in folded([end()])


def test_logprobs_go_with_their_text_and_those_of_tokens_that_show_nothing_come_at_the_end() -> None:
    row, last = TokenLogprob("a", -0.5, b"a"), TokenLogprob("<end>", float("-inf"), b"")
    made = events([text("a", logprobs=(row,)), end(logprobs=(last,))], include=["message.output_text.logprobs"])

    deltas = [event["logprobs"] for event in made if event["type"] == "response.output_text.delta"]
    (part,) = made[-1]["response"]["output"][0]["content"]
    assert deltas == [[{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}]]
    assert [row["logprob"] for row in part["logprobs"]] == [-0.5, -9999.0]
    assert made[3]["part"]["logprobs"] == []


def test_a_stream_that_fails_says_so_in_both_ways_and_numbers_on() -> None:
    encoder = request().encoder("req_1", 1)
    begun = encoder.encode(text("a"))
    told = encoder.fail(envelope("try again in 2s", "requests", None, "rate_limit_exceeded"))

    failed, error = parsed(begun + told)[-2:]
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"] == {"code": "rate_limit_exceeded", "message": "try again in 2s"}
    assert failed["response"]["output"][0]["status"] == "incomplete"
    assert error["error"] == {
        "message": "try again in 2s",
        "type": "requests",
        "param": None,
        "code": "rate_limit_exceeded",
    }
    assert (error["type"], error["code"], error["message"]) == ("error", "rate_limit_exceeded", "try again in 2s")


def test_what_no_client_could_read_is_replaced() -> None:
    response = folded([text("a\ud83d"), call(id="c", name="f", arguments="\ud83d"), end()])

    assert response["output"][0]["content"][0]["text"] == "a\ufffd"
    assert response["output"][1]["arguments"] == "\ufffd"


PIECES = st.one_of(
    st.builds(text, st.text(max_size=4)),
    st.builds(thought, st.text(max_size=4)),
    st.builds(
        call,
        st.integers(0, 3),
        st.text(max_size=4),
        name=st.sampled_from(["f", "patch"]),
        id=st.uuids().map(str),
    ),
)


@settings(deadline=None)
@given(st.lists(PIECES, max_size=12))
def test_the_sdk_accumulates_any_stream_to_the_whole_response(chunks: list[Chunk]) -> None:
    made = events([*chunks, end()])
    whole = folded([*chunks, end()])

    response = accumulated(made)

    assert made[-1]["response"] == whole
    assert [(item.type, item.id) for item in response.output] == [
        (item["type"], item["id"]) for item in whole["output"]
    ]
    done = [event["item"] for event in made if event["type"] == "response.output_item.done"]
    assert sorted(done, key=lambda item: item["id"][-4:]) == whole["output"]
    said = [event["delta"] for event in made if event["type"] == "response.output_text.delta"]
    assert "".join(said) == response.output_text
