"""A chat's body becomes the request that backends read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.types import (
    ChatTemplate,
    GenerateRequest,
    MediaPart,
    Message,
    SamplingParams,
    TextPart,
    ToolCall,
)
from gateway.openai.caller import Caller
from gateway.openai.chat import ChatCompletionRequest, decode_chat

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "x": 1}}


def decode(**members: Any) -> ChatCompletionRequest:
    return decode_chat(msgspec.json.encode({"model": "m", "messages": [USER], **members}))


def generate(**members: Any) -> GenerateRequest:
    return decode(**members).to_generate(Caller(request_id="r"))


def test_a_plain_chat_has_every_default() -> None:
    caller = Caller(request_id="r", tenant="t", lane="batch", weight=2.0, first_token_at=1.0, deadline_at=2.0)

    request = decode().to_generate(caller)

    assert request == GenerateRequest(
        request_id="r",
        route="chat",
        model="m",
        messages=(Message(role="user", content="hi"),),
        add_special_tokens=False,
        tenant="t",
        lane="batch",
        weight=2.0,
        first_token_at=1.0,
        deadline_at=2.0,
        body={"model": "m", "messages": [USER]},
    )


def test_every_field_about_sampling_reaches_the_backend() -> None:
    sampling = generate(
        max_tokens=9,
        min_tokens=2,
        n=3,
        temperature=0.5,
        top_p=0.25,
        top_k=20.0,
        min_p=0.125,
        seed=-7,
        frequency_penalty=1,
        presence_penalty=-1,
        repetition_penalty=1.5,
        logit_bias={"5": -100},
        stop=["a", "b"],
        stop_token_ids=[7],
        include_stop_str_in_output=True,
        ignore_eos=True,
        skip_special_tokens=False,
        logprobs=True,
        top_logprobs=4,
    ).sampling

    assert sampling == SamplingParams(
        max_tokens=9,
        min_tokens=2,
        n=3,
        temperature=0.5,
        top_p=0.25,
        top_k=20,
        min_p=0.125,
        seed=-7,
        frequency_penalty=1.0,
        presence_penalty=-1.0,
        repetition_penalty=1.5,
        logit_bias={5: -100.0},
        stop=("a", "b"),
        stop_token_ids=(7,),
        include_stop_str_in_output=True,
        ignore_eos=True,
        skip_special_tokens=False,
        logprobs=4,
    )


def test_max_completion_tokens_beats_its_old_name() -> None:
    assert generate(max_tokens=5, max_completion_tokens=3).sampling.max_tokens == 3
    assert generate().sampling.max_tokens is None


def test_logprobs_without_top_logprobs_asks_for_the_chosen_tokens_alone() -> None:
    assert generate(logprobs=True).sampling.logprobs == 0
    assert generate(logprobs=False, top_logprobs=0).sampling.logprobs is None


def test_values_that_mean_off_are_off() -> None:
    sampling = generate(top_k=-1, stop=[]).sampling

    assert (sampling.top_k, sampling.stop) == (0, ())
    assert 0 < generate(top_p=0).sampling.top_p < 1e-5
    assert generate(stop="x").sampling.stop == ("x",)


def test_unknown_fields_are_kept_in_extra_and_all_fields_in_body() -> None:
    request = generate(script={"tokens": ["a"]}, zzz=None, user="u", top_k=None)

    assert request.extra == {"script": {"tokens": ["a"]}, "zzz": None}
    assert request.body["user"] == "u"
    assert request.body["top_k"] is None


def test_messages_of_all_roles_keep_their_content_and_order() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "null"}}
    request = generate(
        messages=[
            {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "developer", "content": "d", "name": "dev"},
            {"role": "user", "content": [{"type": "text", "text": "see", "cache_control": {}}, _image()]},
            {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm", "function_call": None},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "r"}]},
            {"role": "assistant", "content": "", "tool_calls": [], "annotations": []},
            {"role": "function", "name": "g", "content": "out"},
            {"role": "user"},
        ]
    )

    assert request.messages == (
        Message(role="system", content=(TextPart("a"), TextPart("b"))),
        Message(role="developer", content="d", name="dev"),
        Message(role="user", content=(TextPart("see"), MediaPart("image_url"))),
        Message(role="assistant", reasoning="hm", tool_calls=(ToolCall(id="c1", name="f", arguments="null"),)),
        Message(role="tool", content=(TextPart("r"),), tool_call_id="c1"),
        Message(role="assistant", content=""),
        Message(role="function", content="out", name="g"),
        Message(role="user"),
    )


def _image() -> dict[str, Any]:
    return {"type": "image_url", "image_url": "http://x/y.png"}


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
        {"type": "video_url", "video_url": {"url": "x"}},
        {"type": "audio_url", "audio_url": {"url": "x"}},
        {"type": "image_embeds", "image_embeds": "x"},
    ],
    ids=lambda part: str(part["type"]),
)
def test_media_become_parts_that_a_backend_can_refuse(part: dict[str, Any]) -> None:
    messages = generate(messages=[{"role": "user", "content": [part]}]).messages

    assert messages is not None
    assert messages[0].content == (MediaPart(part["type"]),)


def test_an_old_function_call_and_a_refusal_in_the_history_are_not_lost() -> None:
    messages = generate(
        messages=[
            {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
            {"role": "assistant", "content": None, "refusal": "no"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "never"}], "reasoning_content": "r"},
        ]
    ).messages

    assert messages is not None
    assert [(call.name, call.arguments) for call in messages[0].tool_calls] == [("f", "{}")]
    assert messages[1].content == "no"
    assert (messages[2].text, messages[2].reasoning) == ("never", "r")


def test_the_template_can_be_steered() -> None:
    assert generate().template == ChatTemplate()
    assert generate(add_generation_prompt=False).template == ChatTemplate(add_generation_prompt=False)
    assert generate(
        messages=[USER, {"role": "assistant", "content": "The"}],
        continue_final_message=True,
        chat_template_kwargs={"enable_thinking": False},
        reasoning_effort="low",
    ).template == ChatTemplate(
        add_generation_prompt=False,
        continue_final_message=True,
        kwargs={"reasoning_effort": "low", "enable_thinking": False},
    )


def test_tools_reach_the_backend_whole() -> None:
    request = generate(tools=[TOOL, {"function": {"name": "g"}}])

    assert request.tools == (TOOL, {"type": "function", "function": {"name": "g"}})
    assert request.tool_choice == "auto"
    assert generate(tools=[TOOL], tool_choice="none").tool_choice == "none"
    named = {"type": "function", "function": {"name": "f"}}
    assert generate(tools=[TOOL], tool_choice=named).tool_choice == named
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    assert generate(tools=[TOOL], tool_choice=allowed).tool_choice == allowed


def test_the_deprecated_functions_become_tools() -> None:
    request = generate(functions=[{"name": "f"}], function_call={"name": "f"})

    assert request.tools == ({"type": "function", "function": {"name": "f"}},)
    assert request.tool_choice == {"type": "function", "function": {"name": "f"}}
    assert generate(functions=[{"name": "f"}]).tool_choice == "auto"
    assert generate(function_call="none").tool_choice is None


def test_formats_reach_the_backend_and_any_text_is_none() -> None:
    schema = {"name": "s", "schema": {"type": "object"}, "strict": True}

    assert generate(response_format={"type": "text"}).response_format is None
    assert generate(response_format={"type": "json_object"}).response_format == {"type": "json_object"}
    assert generate(response_format={"type": "json_schema", "json_schema": schema}).response_format == {
        "type": "json_schema",
        "json_schema": schema,
    }


@pytest.mark.parametrize(
    ("members", "constraint"),
    [
        ({}, None),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"regex": "a+", "json": None}}, {"regex": "a+"}),
        ({"structured_outputs": {"json_object": True}}, {"json_object": True}),
        ({"guided_json": {"type": "object"}}, {"json": {"type": "object"}}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_grammar": "root ::= x"}, {"grammar": "root ::= x"}),
    ],
    ids=str,
)
def test_old_names_of_constraints_are_never_dropped(members: dict[str, Any], constraint: dict[str, Any] | None) -> None:
    assert generate(**members).structured_outputs == constraint


@pytest.mark.parametrize(
    ("members", "lane"),
    [
        ({}, None),
        ({"service_tier": "auto"}, None),
        ({"service_tier": "priority"}, "interactive"),
        ({"service_tier": "fast"}, "interactive"),
        ({"service_tier": "default"}, "standard"),
        ({"service_tier": "flex"}, "batch"),
        ({"priority": -1}, "interactive"),
        ({"priority": 0}, None),
        ({"priority": 5}, "batch"),
        ({"priority": 5, "service_tier": "priority"}, "batch"),
    ],
    ids=str,
)
def test_a_body_may_wish_for_a_lane(members: dict[str, Any], lane: str | None) -> None:
    assert decode(**members).lane_wish == lane
