"""What a client sees of a chat's answer: each event to the byte, and the whole as the sum of its events."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from backends.types import Chunk, FinishReason, TokenLogprob, ToolCallDelta, TopLogprob, Usage
from gateway.openai.answer import system_fingerprint
from gateway.openai.chat import ChatCompletionRequest, decode_chat

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f"}}
NAMED = {"type": "function", "function": {"name": "f"}}
NONE = Usage()
HEAD = (
    'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","system_fingerprint":"'
    + system_fingerprint("m")
    + '","choices":['
)
DONE = "data: [DONE]\n\n"


def request(**members: Any) -> ChatCompletionRequest:
    return decode_chat(msgspec.json.encode({"model": "m", "messages": [USER], **members}))


def text(piece: str, index: int = 0, usage: Usage = NONE, **members: Any) -> Chunk:
    return Chunk(usage=usage, index=index, text=piece, **members)


def end(reason: FinishReason = FinishReason.STOP, index: int = 0, usage: Usage = NONE, **members: Any) -> Chunk:
    return Chunk(usage=usage, index=index, finish_reason=reason, **members)


def call(index: int = 0, arguments: str = "", **members: Any) -> Chunk:
    return Chunk(usage=NONE, tool_calls=(ToolCallDelta(index=index, arguments=arguments, **members),))


def streamed(chunks: list[Chunk], **members: Any) -> str:
    encoder = request(**members).encoder("req_1", 1)
    return b"".join([*(encoder.encode(chunk) for chunk in chunks), encoder.finish()]).decode()


def folded(chunks: list[Chunk], **members: Any) -> dict[str, Any]:
    folder = request(**members).folder("req_1", 1)
    for chunk in chunks:
        folder.add(chunk)
    body: dict[str, Any] = msgspec.json.decode(folder.body())
    return body


def events(wire: str) -> list[dict[str, Any]]:
    lines = wire.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(line.startswith("data: ") for line in lines[:-1])
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-2]]


def deltas(chunks: list[Chunk], **members: Any) -> list[dict[str, Any]]:
    return [event["choices"][0]["delta"] for event in events(streamed(chunks, **members))]


def test_a_stream_is_role_text_finish_and_end_mark() -> None:
    wire = streamed([Chunk(usage=NONE), text("Hi"), end()])

    assert wire == (
        HEAD + '{"index":0,"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,'
        '"finish_reason":null}]}\n\n'
        + HEAD
        + '{"index":0,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null}]}\n\n'
        + HEAD
        + '{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}\n\n'
        + DONE
    )


def test_usage_comes_in_one_last_event_without_choices_and_is_null_before() -> None:
    usage = Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=2, reasoning_tokens=1)
    chunks = [text("a", usage=Usage(prompt_tokens=5, completion_tokens=1)), end(usage=usage)]

    *ordinary, last = events(streamed(chunks, stream=True, stream_options={"include_usage": True}))

    assert [event["usage"] for event in ordinary] == [None] * 3
    assert last["choices"] == []
    assert last["id"] == "chatcmpl-1"
    assert last["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 1,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def test_usage_is_absent_everywhere_unless_it_was_asked_for() -> None:
    for options in ({}, {"stream": True, "stream_options": {}}, {"stream": True, "stream_options": None}):
        assert '"usage"' not in streamed([text("a"), end()], **options)


def test_continuous_usage_is_on_every_event_and_counts_no_token_before_the_first_is_shown() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = [text("a", usage=Usage(completion_tokens=1)), text("b", usage=Usage(completion_tokens=2)), end()]

    counts = [
        event["usage"]["completion_tokens"] for event in events(streamed(chunks, stream=True, stream_options=options))
    ]

    assert counts == [0, 1, 2, 0, 0]


def test_chunks_with_nothing_to_see_make_no_event() -> None:
    encoder = request().encoder("r", 1)

    assert encoder.encode(Chunk(usage=NONE)) == b""
    assert encoder.encode(Chunk(usage=NONE, token_ids=(1,))) == b""
    assert encoder.encode(text("x")).count(b"data: ") == 2
    assert encoder.encode(Chunk(usage=NONE)) == b""


def test_a_last_chunk_with_text_is_shown_before_its_finish() -> None:
    wire = events(streamed([text("a", finish_reason=FinishReason.LENGTH)]))

    assert [choice["delta"].get("content") for event in wire for choice in event["choices"]] == ["", "a", None]
    assert [choice["finish_reason"] for event in wire for choice in event["choices"]] == [None, None, "length"]


def test_roles_of_all_choices_come_first_and_in_order() -> None:
    chunks = [text("b", 1), text("a", 0), end(index=1), text("c", 2), end(index=2), end(index=0)]

    wire = events(streamed(chunks, n=3))

    roles = [event["choices"][0] for event in wire[:3]]
    assert [(choice["index"], choice["delta"].get("role")) for choice in roles] == [
        (0, "assistant"),
        (1, "assistant"),
        (2, "assistant"),
    ]
    assert all("role" not in event["choices"][0]["delta"] for event in wire[3:])
    assert len({(event["id"], event["created"], event["model"], event["system_fingerprint"]) for event in wire}) == 1


def test_a_choice_ends_once() -> None:
    wire = streamed([text("a"), end(), text("late"), end(FinishReason.LENGTH)])

    assert "late" not in wire
    assert wire.count('"finish_reason":"') == 1


def test_a_tool_call_is_named_once_and_then_only_grows() -> None:
    chunks = [call(id="call_1", name="f"), call(arguments='{"a"', id="call_1", name="f"), call(arguments=":1}"), end()]

    assert deltas(chunks, tools=[TOOL]) == [
        {"role": "assistant", "content": None, "refusal": None},
        {"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a"'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
        {},
    ]


def test_indexes_of_calls_have_no_gaps_and_missing_ids_are_made() -> None:
    body = folded([call(3, name="f"), call(7, name="g", id="x"), call(3, "{}"), end()])

    first, second = body["choices"][0]["message"]["tool_calls"]
    assert (first["function"], second["id"]) == ({"name": "f", "arguments": "{}"}, "x")
    assert first["id"].startswith("call_")
    assert len(first["id"]) == 29


def test_a_second_call_is_cut_when_calls_may_not_be_parallel() -> None:
    chunks = [call(0, "{}", id="a", name="f"), call(1, "{}", id="b", name="f"), call(1, "{}"), end()]

    assert len(folded(chunks, parallel_tool_calls=False)["choices"][0]["message"]["tool_calls"]) == 1
    assert '"index":1' not in streamed(chunks, parallel_tool_calls=False)


@pytest.mark.parametrize(
    ("members", "chunks", "reason"),
    [
        ({"tools": [TOOL]}, [call(id="a", name="f"), end(FinishReason.TOOL_CALLS)], "tool_calls"),
        ({"tools": [TOOL]}, [call(id="a", name="f"), end(FinishReason.STOP)], "tool_calls"),
        ({"tools": [TOOL], "tool_choice": "required"}, [call(id="a", name="f"), end()], "tool_calls"),
        ({"tools": [TOOL], "tool_choice": NAMED}, [call(id="a", name="f"), end(FinishReason.TOOL_CALLS)], "stop"),
        ({"tools": [TOOL]}, [call(id="a", name="f"), end(FinishReason.LENGTH)], "length"),
        ({"tools": [TOOL]}, [text("plain"), end(FinishReason.TOOL_CALLS)], "stop"),
        ({"functions": [{"name": "f"}]}, [call(id="a", name="f"), end()], "function_call"),
        ({}, [text("x"), end(FinishReason.CONTENT_FILTER)], "content_filter"),
    ],
    ids=str,
)
def test_the_finish_reason_is_the_same_streamed_and_whole(
    members: dict[str, Any], chunks: list[Chunk], reason: str
) -> None:
    assert folded(chunks, **members)["choices"][0]["finish_reason"] == reason
    assert events(streamed(chunks, **members))[-1]["choices"][0]["finish_reason"] == reason


def test_functions_are_answered_as_they_were_asked_for() -> None:
    members: dict[str, Any] = {"functions": [{"name": "f"}]}
    chunks = [call(id="a", name="f", arguments="{"), call(arguments="}"), end()]

    message = folded(chunks, **members)["choices"][0]["message"]

    assert message["function_call"] == {"name": "f", "arguments": "{}"}
    assert "tool_calls" not in message
    assert deltas(chunks, **members)[1:3] == [
        {"function_call": {"name": "f", "arguments": "{"}},
        {"function_call": {"arguments": "}"}},
    ]


def test_reasoning_has_both_names_and_events_of_its_own() -> None:
    chunks = [Chunk(usage=NONE, reasoning="hm"), Chunk(usage=NONE, reasoning="m", text="so"), end()]

    assert deltas(chunks)[1:4] == [
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"reasoning_content": "m", "reasoning": "m"},
        {"content": "so"},
    ]
    message = folded(chunks)["choices"][0]["message"]
    assert (message["reasoning_content"], message["reasoning"], message["content"]) == ("hmm", "hmm", "so")
    assert "hm" not in streamed(chunks, include_reasoning=False)


def test_the_body_has_every_member_that_openai_promises() -> None:
    body = folded([text("a"), text("b"), end(usage=Usage(prompt_tokens=2, completion_tokens=3))], service_tier="auto")

    assert body == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "system_fingerprint": system_fingerprint("m"),
        "service_tier": "default",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ab", "refusal": None, "annotations": []},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 3,
            "total_tokens": 5,
            "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
    }


def test_what_stopped_the_text_is_told() -> None:
    for stop_reason in ("END", 7):
        chunks = [text("a"), end(stop_reason=stop_reason)]

        assert folded(chunks)["choices"][0]["stop_reason"] == stop_reason
        assert events(streamed(chunks))[-1]["choices"][0]["stop_reason"] == stop_reason


def test_an_answer_without_text_is_one_choice_with_an_empty_one() -> None:
    assert folded([end()])["choices"][0]["message"]["content"] == ""
    assert deltas([end()]) == [{"role": "assistant", "content": "", "refusal": None}, {}]


def test_echo_puts_the_text_that_is_continued_before_the_answer() -> None:
    members: dict[str, Any] = {
        "messages": [USER, {"role": "assistant", "content": "The sky"}],
        "continue_final_message": True,
        "n": 2,
    }
    chunks = [text(" is"), end(), end(index=1)]

    assert folded(chunks, **members)["choices"][0]["message"]["content"] == " is"
    assert [choice["message"]["content"] for choice in folded(chunks, echo=True, **members)["choices"]] == [
        "The sky is",
        "The sky",
    ]
    assert [delta.get("content") for delta in deltas(chunks, echo=True, **members)] == [
        "",
        "",
        "The sky",
        "The sky",
        " is",
        None,
        None,
    ]


def test_surrogates_and_line_separators_reach_the_client_as_json_can_carry_them() -> None:
    chunks = [text("a\ud800b"), text("\ud83d\ude00\u2028\n"), call(id="\udc00", name="f", arguments="\ud800"), end()]

    message = folded(chunks)["choices"][0]["message"]

    assert message["content"] == "a\ufffdb😀\u2028\n"
    assert message["tool_calls"][0]["function"]["arguments"] == "\ufffd"
    assert "".join(delta.get("content") or "" for delta in deltas(chunks)) == message["content"]


def row(token: str, logprob: float | None = -0.5, raw: bytes | None = None, top: int = 0) -> TokenLogprob:
    others = tuple(TopLogprob(chr(97 + rank), -1.0 - rank, bytes([97 + rank])) for rank in range(top))
    return TokenLogprob(token, logprob, token.encode() if raw is None else raw, others)


def test_logprobs_have_openais_form_and_only_finite_numbers() -> None:
    rows = (row("A", float("-inf"), top=3), row("\ufffd", float("nan"), b"\xf0\x9f"), row("<s>", 0.0, b""))
    body = folded([text("A", logprobs=rows), end()], logprobs=True, top_logprobs=2)

    assert body["choices"][0]["logprobs"] == {
        "content": [
            {
                "token": "A",
                "logprob": -9999.0,
                "bytes": [65],
                "top_logprobs": [
                    {"token": "a", "logprob": -1.0, "bytes": [97]},
                    {"token": "b", "logprob": -2.0, "bytes": [98]},
                ],
            },
            {"token": "\ufffd", "logprob": -9999.0, "bytes": [240, 159], "top_logprobs": []},
            {"token": "<s>", "logprob": 0.0, "bytes": None, "top_logprobs": []},
        ],
        "refusal": None,
    }


def test_logprobs_that_nobody_asked_for_are_not_shown() -> None:
    chunks = [text("A", logprobs=(row("A"),)), end()]

    assert folded(chunks)["choices"][0]["logprobs"] is None
    assert '"logprobs":{' not in streamed(chunks)


def test_logprobs_of_tokens_without_text_go_with_the_next_event() -> None:
    chunks = [
        Chunk(usage=NONE, logprobs=(row("x"),)),
        text("y", logprobs=(row("y"),)),
        end(logprobs=(row("z"),)),
    ]

    shown = [
        [entry["token"] for entry in choice["logprobs"]["content"]] if choice["logprobs"] else None
        for event in events(streamed(chunks, logprobs=True))
        for choice in event["choices"]
    ]

    assert shown == [None, ["x", "y"], ["z"]]


def test_an_upstreams_own_event_goes_out_as_it_came() -> None:
    encoder = request().encoder("r", 1)

    assert encoder.encode(Chunk(usage=NONE, text="a", wire=b"data: {}\n\n")) == b"data: {}\n\n"


pieces = st.text(st.characters(exclude_categories=()), max_size=4)
random_chunks = st.lists(
    st.builds(
        Chunk,
        usage=st.builds(Usage, prompt_tokens=st.just(3), completion_tokens=st.integers(0, 9)),
        index=st.integers(0, 2),
        text=pieces,
        reasoning=st.one_of(st.just(""), pieces),
        tool_calls=st.lists(
            st.builds(ToolCallDelta, index=st.integers(0, 2), id=st.just("id"), name=st.just("f"), arguments=pieces),
            max_size=2,
        ).map(tuple),
        logprobs=st.one_of(st.none(), st.lists(st.builds(row, pieces, st.floats(), st.binary(max_size=3))).map(tuple)),
    ),
    max_size=12,
)


@given(chunks=random_chunks, members=st.fixed_dictionaries({}, optional={"parallel_tool_calls": st.just(False)}))
@settings(max_examples=200, deadline=None)
def test_the_whole_answer_is_the_sum_of_its_stream(chunks: list[Chunk], members: dict[str, Any]) -> None:
    members = {**members, "n": 3, "logprobs": True}
    usage = Usage(prompt_tokens=3, completion_tokens=9)
    chunks = [*chunks, *(end(index=index, usage=usage) for index in range(3))]

    wire = events(streamed(chunks, stream=True, stream_options={"include_usage": True}, **members))
    whole = folded(chunks, **members)

    state = ChatCompletionStreamState()
    for event in wire:
        state.handle_chunk(ChatCompletionChunk.model_validate(event))
    summed = state.get_final_completion().model_dump()
    expected = ChatCompletion.model_validate(whole).model_dump()
    assert summed["usage"] == expected["usage"]
    for ours, theirs in zip(expected["choices"], summed["choices"], strict=True):
        assert ours["finish_reason"] == theirs["finish_reason"]
        assert (ours["message"]["content"] or "") == (theirs["message"]["content"] or "")
        assert ours["message"].get("reasoning") == theirs["message"].get("reasoning")
        assert _calls(ours) == _calls(theirs)
        assert ours["logprobs"]["content"] == ((theirs["logprobs"] or {}).get("content") or [])


def _calls(choice: dict[str, Any]) -> list[tuple[str, str, str]]:
    calls = choice["message"]["tool_calls"] or []
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]
