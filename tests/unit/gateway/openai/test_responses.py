"""What a body of /v1/responses asks of a backend, and what is said of one that is wrong."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.errors import InvalidRequest, UnsupportedParameter
from backends.types import GenerateRequest, MediaPart, Message, TextPart, ToolCall
from gateway.errors import InvalidBody, ResponseNotFound
from gateway.openai.caller import Caller
from gateway.openai.responses import (
    ResponseRequest,
    decode_input_tokens,
    decode_response,
    in_words_of_responses,
)

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CUSTOM = {"type": "custom", "name": "patch"}
WEB = {"type": "web_search"}


def decoded(**members: Any) -> ResponseRequest:
    return decode_response(msgspec.json.encode({"model": "m", "input": "hi", **members}))


def asked(**members: Any) -> GenerateRequest:
    return decoded(**members).to_generate(Caller(request_id="r"))


def messages(*items: dict[str, Any], **members: Any) -> list[Message]:
    return list(asked(input=list(items), **members).messages or ())


def fault(**members: Any) -> InvalidBody:
    with pytest.raises(InvalidBody) as caught:
        decoded(**members)
    return caught.value


def said(role: Any, text: str) -> Message:
    return Message(role=role, content=text)


def test_a_text_is_a_message_of_the_user_after_the_instructions() -> None:
    request = asked(instructions="be short")

    assert request.messages == (said("system", "be short"), said("user", "hi"))
    assert (request.route, request.model, request.stream, request.prompts) == ("responses", "m", False, ())


def test_messages_keep_their_role_and_their_parts() -> None:
    text, image = {"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "data:,", "detail": "low"}
    answer = [{"type": "output_text", "text": "b", "annotations": []}, {"type": "refusal", "refusal": "c"}]

    assert messages(
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "system", "content": [text]},
        {"role": "user", "content": [text, image, {"type": "input_file"}, {"type": "input_audio"}]},
        {"role": "assistant", "id": "msg_1", "status": "completed", "content": answer},
    ) == [
        said("developer", "d"),
        Message(role="system", content=(TextPart("a"),)),
        Message(
            role="user",
            content=(TextPart("a"), MediaPart("input_image"), MediaPart("input_file"), MediaPart("input_audio")),
        ),
        Message(role="assistant", content=(TextPart("b"), TextPart("c"))),
    ]


def test_what_the_assistant_thought_said_and_called_is_one_message() -> None:
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]}
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'}
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": 'say "x"'}

    assert messages(
        thought,
        {"role": "assistant", "content": "ok"},
        call,
        custom,
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "2"}]},
    ) == [
        Message(
            role="assistant",
            content="ok",
            reasoning="hm",
            tool_calls=(
                ToolCall(id="c1", name="f", arguments='{"a":1}'),
                ToolCall(id="c2", name="patch", arguments='{"input":"say \\"x\\""}'),
            ),
        ),
        Message(role="tool", content="1", tool_call_id="c1"),
        Message(role="tool", content=(TextPart("2"),), tool_call_id="c2"),
    ]


def test_a_second_text_or_thought_begins_a_message_of_its_own() -> None:
    summed = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "sum"}], "encrypted_content": "x"}
    hidden: dict[str, Any] = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "x"}
    answer = {"role": "assistant", "content": "a"}

    assert messages(answer, answer) == [said("assistant", "a")] * 2
    assert messages(answer, summed) == [said("assistant", "a"), Message(role="assistant", reasoning="sum")]
    assert messages(hidden, answer) == [said("assistant", "a")]
    assert messages(hidden, {"role": "user", "content": "u"}) == [said("user", "u")]


def test_kinds_of_items_and_tools_that_nothing_knows_are_left_out_and_named_once() -> None:
    skipped = [{"type": "web_search_call", "action": {}}, {"type": "x"}]
    request = decoded(input=[{"role": "user", "content": "a"}, *skipped, *skipped], tools=[WEB, TOOL, WEB])

    assert request.items.messages == (said("user", "a"),)
    assert request.left_out == ("web_search_call", "x", "web_search")
    assert [tool["function"]["name"] for tool in request.tools.tools.definitions] == ["f"]


def test_an_item_that_is_only_referred_to_is_not_left_out_without_a_word() -> None:
    with pytest.raises(ResponseNotFound, match="Item with id 'msg_x' not found") as caught:
        decoded(input=[{"role": "user", "content": "a"}, {"type": "item_reference", "id": "msg_x"}])

    assert caught.value.param == "input"
    assert fault(input=[{"type": "item_reference"}]).param == "input[0].id"


def test_null_is_the_same_as_absent() -> None:
    names = (
        "instructions tools tool_choice text reasoning include store stream metadata previous_response_id background"
    )

    assert asked(**dict.fromkeys(names.split()), input="hi").messages == asked().messages


def test_the_cap_and_the_sampling_reach_the_backend() -> None:
    request = asked(max_output_tokens=5, temperature=0.5, top_p=0, seed=3, stop=["x"])

    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.stop) == (5, 0.5, 3, ("x",))
    assert 0 < sampling.top_p < 0.01
    assert asked(reasoning={"effort": "low", "summary": "auto"}).template.kwargs == {"reasoning_effort": "low"}
    assert asked(chat_template_kwargs={"thinking": False}).template.kwargs == {"thinking": False}


def test_logprobs_are_computed_only_when_they_are_asked_for() -> None:
    assert asked().sampling.logprobs is None
    assert asked(include=["message.output_text.logprobs"]).sampling.logprobs == 0
    assert asked(top_logprobs=3).sampling.logprobs == 3


def test_a_format_is_that_of_a_chat() -> None:
    schema = {"type": "object"}

    assert asked(text={"verbosity": "low"}).response_format is None
    assert asked(text={"format": {"type": "text"}}).response_format is None
    assert asked(text={"format": {"type": "json_object"}}).response_format == {"type": "json_object"}
    assert asked(
        text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}}
    ).response_format == {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    assert asked(structured_outputs={"regex": "a"}).structured_outputs == {"regex": "a"}


def test_tools_are_those_of_a_chat() -> None:
    request = asked(tools=[{**TOOL, "strict": True, "description": "d"}, {"name": "g", "parameters": None}])

    assert request.tools == (
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
        },
        {"type": "function", "function": {"name": "g"}},
    )
    assert request.tool_choice == "auto"
    assert asked(tools=[]).tool_choice is None
    assert asked(tools=[WEB]).tools == ()


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    request = asked(tools=[{**CUSTOM, "description": "Edits.", "format": grammar}, {**CUSTOM, "name": "say"}])

    first, second = (tool["function"] for tool in request.tools)
    assert first["name"] == "patch"
    assert first["description"] == "Edits.\n\nThe input must follow this grammar (lark):\nstart: /.+/"
    assert first["parameters"]["required"] == ["input"]
    assert second["description"] == "The input is plain text."


def test_a_choice_is_that_of_a_chat() -> None:
    def choice(wire: Any) -> Any:
        return asked(tools=[TOOL, CUSTOM, WEB], tool_choice=wire).tool_choice

    named = {"type": "function", "function": {"name": "f"}}
    custom = {"type": "function", "function": {"name": "patch"}}
    assert [choice(word) for word in ("none", "auto", "required")] == ["none", "auto", "required"]
    assert choice({"type": "function", "name": "f"}) == named
    assert choice({"type": "custom", "name": "patch"}) == custom
    assert choice({"type": "allowed_tools", "mode": "required", "tools": [WEB, TOOL, CUSTOM]}) == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [named, custom]},
    }


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"model": 7}, "model", "invalid_type"),
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": 5}, "input", "invalid_type"),
        ({"input": []}, "input", "empty_array"),
        ({"input": ["hi"]}, "input[0]", "invalid_type"),
        ({"input": [None]}, "input[0]", "invalid_type"),
        ({"input": [{"type": "x"}]}, "input", "invalid_value"),
        ({"input": [{"type": 5}]}, "input[0].type", "invalid_type"),
        ({"input": [{"content": "a"}]}, "input[0].role", "missing_required_parameter"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role", "invalid_value"),
        ({"input": [{"role": "user", "content": 5}]}, "input[0].content", "invalid_type"),
        (
            {"input": [{"role": "user", "content": [{"text": "a"}]}]},
            "input[0].content[0].type",
            "missing_required_parameter",
        ),
        ({"input": [{"role": "user", "content": [{"type": "x"}]}]}, "input[0].content[0].type", "invalid_value"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id", "missing_required_parameter"),
        ({"input": [{"type": "function_call_output"}]}, "input[0].call_id", "missing_required_parameter"),
        ({"max_output_tokens": 0}, "max_output_tokens", "integer_below_min_value"),
        ({"previous_response_id": "resp_x"}, "previous_response_id", "previous_response_not_found"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"messages": []}, "messages", "unsupported_parameter"),
        ({"response_format": {"type": "text"}}, "response_format", "unsupported_parameter"),
        ({"n": 2}, "n", "unsupported_parameter"),
        ({"temperature": 3}, "temperature", "decimal_above_max_value"),
        ({"top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
        ({"stream": "true"}, "stream", "invalid_type"),
        ({"stream": False, "stream_options": {}}, "stream_options", None),
        ({"metadata": {"a": 5}}, "metadata", "invalid_type"),
        ({"store": 1}, "store", "invalid_type"),
        ({"service_tier": "gold"}, "service_tier", "invalid_value"),
        ({"reasoning": {"context": "some"}}, "reasoning.context", "invalid_value"),
        (
            {"tools": [{"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark"}}]},
            "tools[0].format.definition",
            "missing_required_parameter",
        ),
        (
            {"tools": [{"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "ebnf"}}]},
            "tools[0].format.syntax",
            "invalid_value",
        ),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", "invalid_value"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity", "invalid_value"),
        ({"text": {"format": {}}}, "text.format.type", "missing_required_parameter"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_value"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.name", "missing_required_parameter"),
        (
            {"text": {"format": {"type": "json_schema", "name": "n"}}},
            "text.format.schema",
            "missing_required_parameter",
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": []}}},
            "text.format.schema",
            "invalid_json_schema",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].name", "missing_required_parameter"),
        ({"tools": [WEB, {**TOOL, "name": "has space"}]}, "tools[1].name", "invalid_value"),
        ({"tools": [{**TOOL, "parameters": "x"}]}, "tools[0].parameters", "invalid_type"),
        ({"tools": [{"type": {"name": "x"}}]}, "tools[0].type", "invalid_type"),
        ({"tools": ["x"]}, "tools[0]", "invalid_type"),
        ({"tools": [{"type": "custom"}]}, "tools[0].name", "missing_required_parameter"),
        ({"tool_choice": "required"}, "tool_choice", None),
        ({"tools": [WEB], "tool_choice": "required"}, "tool_choice", None),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": {"name": "f"}}, "tool_choice.type", "missing_required_parameter"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.name", "missing_required_parameter"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": 5}}, "tool_choice.name", "invalid_type"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": {"type": "mcp"}}, "tool_choice.type", "unsupported_value"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.mode", "invalid_value"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": ["f"]}},
            "tool_choice.tools[0]",
            "invalid_type",
        ),
    ],
)
def test_what_is_wrong_is_told_in_openais_words(change: dict[str, Any], param: str, code: str | None) -> None:
    for stream in (False, True):
        told = fault(**{"stream": stream, **change})
        assert (told.param, told.code) == (param, code)


def test_the_names_of_a_chat_are_refused_with_a_hint() -> None:
    assert "Use 'input' instead." in fault(messages=[]).message
    assert "Use 'text.format' instead." in fault(response_format={"type": "text"}).message


def test_the_values_of_a_client_are_repeated_only_in_part() -> None:
    assert len(fault(previous_response_id="r" * 10_000).message) < 400


def test_a_backends_words_become_those_of_this_route() -> None:
    def told(param: str | None, code: str | None = None) -> tuple[str | None, str | None, str]:
        error = in_words_of_responses(InvalidRequest(f"Invalid '{param}': no.", param=param, code=code))
        return error.param, error.code, error.message

    schema = ("text.format.schema", "invalid_json_schema", "Invalid 'text.format.schema': no.")
    assert told("response_format") == schema
    assert told("response_format.type", "c") == ("text.format.type", "c", "Invalid 'text.format.type': no.")
    assert told("messages[3].content", "c") == ("input", "c", "Invalid 'input': no.")
    assert told("max_tokens", "c") == ("max_output_tokens", "c", "Invalid 'max_output_tokens': no.")
    assert told("temperature") == ("temperature", None, "Invalid 'temperature': no.")
    assert told(None)[0] is None
    refused = in_words_of_responses(UnsupportedParameter("response_format is not there.", param="response_format"))
    assert (refused.param, refused.code) == ("text.format", "unsupported_parameter")
    assert refused.message == "text.format is not there."


def test_what_is_counted_is_the_prompt_of_the_response() -> None:
    body = msgspec.json.encode({"input": [{"role": "user", "content": "a"}], "instructions": "b", "tools": [WEB]})

    counted = decode_input_tokens(body)

    assert (counted.model, counted.messages) == ("", (said("system", "b"), said("user", "a")))
    assert not counted.add_special_tokens
    with pytest.raises(InvalidBody, match="tools"):
        decode_input_tokens(msgspec.json.encode({"input": "a", "tools": [TOOL]}))
