"""What a body of /v1/messages asks of a backend, and what is said of one that is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.errors import InvalidRequest, UnsupportedParameter
from backends.types import GenerateRequest, MediaPart, Message, SamplingParams, TextPart, ToolCall
from gateway.anthropic.messages import (
    MessagesRequest,
    decode_count,
    decode_messages,
    in_words_of_messages,
)
from gateway.errors import InvalidBody
from gateway.openai.caller import Caller
from gateway.openai.sampling import SMALLEST_NUCLEUS
from tests.integration.front.claude_code import turn

TOOL = {"name": "f", "description": "Does it.", "input_schema": {"type": "object"}}
WEB = {"type": "web_search_20250305", "name": "web_search"}
PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
HI = {"role": "user", "content": "hi"}


def decoded(**members: Any) -> MessagesRequest:
    return decode_messages(msgspec.json.encode({"model": "m", "max_tokens": 9, "messages": [HI], **members}))


def asked(**members: Any) -> GenerateRequest:
    return decoded(**members).to_generate(Caller(request_id="r"))


def said(*content: Any, role: str = "user", **members: Any) -> list[Message]:
    """What one message of these blocks becomes."""
    return list(asked(messages=[{"role": role, "content": list(content)}], **members).messages or ())


def fault(**members: Any) -> InvalidBody:
    with pytest.raises(InvalidBody) as caught:
        decoded(**members)
    return caught.value


def text(words: str, **members: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **members}


def result(content: Any = None, **members: Any) -> dict[str, Any]:
    given = {} if content is None else {"content": content}
    return {"type": "tool_result", "tool_use_id": "toolu_1", **given, **members}


def test_a_body_becomes_a_chat() -> None:
    request = asked(
        system="Be short.",
        stop_sequences=["END"],
        temperature=0.5,
        top_p=0.9,
        top_k=7,
        metadata={"user_id": "u"},
        stream=True,
    )

    assert (request.route, request.model, request.stream, request.prompts) == ("messages", "m", True, ())
    assert request.messages == (Message(role="system", content="Be short."), Message(role="user", content="hi"))
    assert request.sampling == SamplingParams(max_tokens=9, temperature=0.5, top_p=0.9, top_k=7, stop=("END",))
    assert (request.add_special_tokens, request.tools, request.tool_choice) == (False, (), None)
    assert request.extra == {}


def test_what_is_not_said_is_not_asked_for() -> None:
    request = asked(top_p=0, system=None, tools=None)

    assert request.sampling == SamplingParams(max_tokens=9, top_p=SMALLEST_NUCLEUS)
    assert (request.response_format, request.lane) == (None, "standard")


def test_the_system_prompt_is_one_message_of_blocks_without_the_clients_bill() -> None:
    bill = text("x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;")
    blocks = [bill, text("You are an agent.", cache_control={"type": "ephemeral"}), text("Be short.")]

    (first, _) = asked(system=blocks).messages or ()

    assert first == Message(role="system", content=(TextPart("You are an agent."), TextPart("Be short.")))
    assert [message.role for message in asked(system=[bill]).messages or ()] == ["user"]
    (joined, _) = asked(system=f"{bill['text']}\nYou are an agent.").messages or ()
    assert joined == Message(role="system", content="You are an agent.")


def test_a_system_message_keeps_its_place_among_the_others() -> None:
    reminder = {"role": "system", "content": [text("Ten tokens left.")]}

    messages = asked(messages=[HI, reminder, HI], system="Be short.").messages or ()

    assert [message.role for message in messages] == ["system", "user", "system", "user"]


def test_blocks_of_text_pictures_and_documents_become_parts() -> None:
    plain = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "b"}, "title": "T"}
    whole = {"type": "document", "source": {"type": "content", "content": [text("c"), PICTURE]}, "context": "C"}
    short = {"type": "document", "source": {"type": "content", "content": "d"}}
    pdf = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}}
    found = {"type": "search_result", "title": "S", "source": "https://x", "content": [text("e")]}

    (message,) = said(text("a", cache_control={"type": "ephemeral"}), PICTURE, plain, whole, short, pdf, found)

    assert message.content == (
        TextPart("a"),
        MediaPart("image"),
        TextPart("T\nb"),
        TextPart("C"),
        TextPart("c"),
        MediaPart("image"),
        TextPart("d"),
        MediaPart("document"),
        TextPart("S\nhttps://x"),
        TextPart("e"),
    )


def test_an_assistants_blocks_are_one_message_with_what_it_thought_and_called() -> None:
    (message,) = said(
        {"type": "thinking", "thinking": "Look.", "signature": "x"},
        {"type": "redacted_thinking", "data": "gAAAA"},
        text("Looking."),
        {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {"path": "/src"}},
        {"type": "tool_use", "id": "toolu_2", "name": "pwd", "input": {}},
        role="assistant",
    )

    assert message == Message(
        role="assistant",
        content=(TextPart("Looking."),),
        reasoning="Look.",
        tool_calls=(
            ToolCall(id="toolu_1", name="ls", arguments='{"path":"/src"}'),
            ToolCall(id="toolu_2", name="pwd", arguments="{}"),
        ),
    )


@pytest.mark.parametrize(
    ("block", "content"),
    [
        (result(), ""),
        (result("a.py"), "a.py"),
        (result([text("a"), PICTURE]), (TextPart("a"), MediaPart("image"))),
        (result([]), ()),
        (result("no", is_error=True), "Error: no"),
        (result(is_error=True), "Error: "),
        (result([text("no"), text("more")], is_error=True), (TextPart("Error:"), TextPart("no"), TextPart("more"))),
        (result("a", is_error=False, cache_control={"type": "ephemeral"}), "a"),
    ],
)
def test_the_result_of_a_tool_is_a_message_of_its_own(block: dict[str, Any], content: Any) -> None:
    assert said(block) == [Message(role="tool", content=content, tool_call_id="toolu_1")]


def test_what_stands_beside_results_is_said_in_its_place() -> None:
    messages = said(result("a"), text("b"), text("c"), result("d"))

    assert [(message.role, message.text) for message in messages] == [("tool", "a"), ("user", "b\nc"), ("tool", "d")]


def test_an_empty_list_of_blocks_is_an_empty_message() -> None:
    assert said() == [Message(role="user", content=())]


def test_kinds_of_blocks_and_tools_that_are_unknown_are_left_out_and_named() -> None:
    request = decoded(
        messages=[
            {"role": "user", "content": [text("a"), {"type": "container_upload", "file_id": "x"}]},
            {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "web_search"}, text("b")]},
            HI,
        ],
        tools=[TOOL, WEB, {"type": "bash_20250124", "name": "bash"}, WEB],
        mcp_servers=[{"type": "url", "url": "https://x"}],
    )

    assert request.left_out == (
        "container_upload",
        "server_tool_use",
        "web_search_20250305",
        "bash_20250124",
        "mcp_servers",
    )
    assert [message.text for message in request.prompt.messages] == ["a", "b", "hi"]
    assert [tool["function"]["name"] for tool in request.tools.tools.definitions] == ["f"]


def test_tools_become_those_of_a_chat() -> None:
    bare = {"type": "custom", "name": "g" * 128, "input_schema": {}, "strict": True}

    request = asked(tools=[TOOL, bare])

    assert request.tools == (
        {"type": "function", "function": {"name": "f", "description": "Does it.", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": "g" * 128, "parameters": {}, "strict": True}},
    )
    assert request.tool_choice == "auto"


def test_more_tools_than_openai_takes_are_taken() -> None:
    assert len(asked(tools=[{**TOOL, "name": f"mcp__{number}"} for number in range(200)]).tools) == 200


@pytest.mark.parametrize(
    ("choice", "told"),
    [
        ({"type": "auto"}, "auto"),
        ({"type": "any"}, "required"),
        ({"type": "none"}, "none"),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}),
    ],
)
def test_a_choice_becomes_that_of_a_chat(choice: dict[str, Any], told: Any) -> None:
    request = decoded(tools=[TOOL], tool_choice={**choice, "disable_parallel_tool_use": True})

    assert request.tools.tools.choice == told
    assert not request.tools.tools.is_parallel


def test_without_tools_there_is_no_choice() -> None:
    assert asked(tools=[WEB], tool_choice={"type": "auto"}).tool_choice is None


@pytest.mark.parametrize(
    ("thinking", "thinks", "is_shown"),
    [
        (None, False, False),
        ({"type": "disabled"}, False, False),
        ({"type": "enabled", "budget_tokens": 1024}, True, True),
        ({"type": "adaptive"}, True, True),
        ({"type": "adaptive", "display": "omitted"}, True, False),
    ],
)
def test_thinking_reaches_the_template_and_is_shown_when_it_was_asked_for(
    thinking: Any, thinks: bool, is_shown: bool
) -> None:
    request = decoded(thinking=thinking, output_config={"effort": "low"})

    assert request.fields.thinking.is_shown == is_shown
    assert request.to_generate(Caller(request_id="r")).template.kwargs == {
        "enable_thinking": thinks,
        "reasoning_effort": "low",
    }


@pytest.mark.parametrize(
    ("last", "goes_on"),
    [
        ("The answer is (", True),
        ([text("The answer is (")], True),
        ([text("a"), {"type": "tool_use", "id": "t", "name": "f", "input": {}}], False),
        ([{"type": "thinking", "thinking": "Hm."}], False),
        ("", False),
    ],
)
def test_the_assistants_last_message_goes_on(last: Any, goes_on: bool) -> None:
    template = asked(messages=[HI, {"role": "assistant", "content": last}]).template

    assert (template.continue_final_message, template.add_generation_prompt) == (goes_on, not goes_on)


@pytest.mark.parametrize("place", ["output_config", "output_format"])
def test_a_schema_for_the_answer_is_a_response_format(place: str) -> None:
    given = {"type": "json_schema", "schema": {"type": "object"}}

    request = asked(**{place: {"format": given} if place == "output_config" else given})

    assert request.response_format == {
        "type": "json_schema",
        "json_schema": {"name": "output", "schema": {"type": "object"}, "strict": True},
    }
    assert request.extra == {}


def test_what_is_unknown_is_kept_apart_and_what_is_ignored_is_not() -> None:
    request = asked(
        context_management={"edits": []},
        service_tier="auto",
        new_field={"a": 1},
        script={"tokens": ["x"]},
        metadata={"user_id": "u", "more": 1},
    )

    assert request.extra == {"new_field": {"a": 1}, "script": {"tokens": ["x"]}}
    assert request.body["context_management"] == {"edits": []}


@pytest.mark.parametrize(
    ("change", "param", "code"),
    [
        ({"model": None}, "model", "missing_required_parameter"),
        ({"max_tokens": None}, "max_tokens", "missing_required_parameter"),
        ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
        ({"max_tokens": "9"}, "max_tokens", "invalid_type"),
        ({"messages": []}, "messages", "empty_array"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content", "invalid_type"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]", "invalid_type"),
        (
            {"messages": [HI, {"role": "user", "content": [{"text": "a"}]}]},
            "messages[1].content[0].type",
            "missing_required_parameter",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": 1}]}]},
            "messages[0].content[0].type",
            "invalid_type",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "t", "name": "f"}]}]},
            "messages[0].content[0].type",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "user", "content": [result([result("a")])]}]},
            "messages[0].content[0].content[0].type",
            "invalid_value",
        ),
        ({"system": [PICTURE]}, "system[0].type", "invalid_value"),
        ({"system": [{"type": "text"}]}, "system[0].text", "missing_required_parameter"),
        ({"temperature": 1.5}, "temperature", "decimal_above_max_value"),
        ({"top_k": -1}, "top_k", "integer_below_min_value"),
        ({"stop_sequences": [""]}, "stop_sequences[0]", "string_below_min_length"),
        ({"metadata": {"user_id": 1}}, "metadata.user_id", "invalid_type"),
        ({"thinking": {}}, "thinking.type", "missing_required_parameter"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema", None),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "missing_required_parameter"),
        ({"tools": [{**TOOL, "name": "a b"}]}, "tools[0].name", "invalid_value"),
        ({"tools": [{**TOOL, "type": 1}]}, "tools[0].type", "invalid_type"),
        ({"tools": [TOOL], "tool_choice": {"type": "some"}}, "tool_choice.type", "invalid_value"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name", "missing_required_parameter"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name", "invalid_value"),
        ({"tool_choice": {"type": "any"}}, "tool_choice", "invalid_value"),
        ({"tools": [WEB], "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice", "invalid_value"),
    ],
)
def test_a_fault_names_its_field(change: dict[str, Any], param: str, code: str | None) -> None:
    error = fault(**change)

    assert (error.param, error.code) == (param, code or "missing_required_parameter")


def test_what_is_counted_is_the_chat_and_the_text_of_its_tools() -> None:
    body = {"model": "m", "system": "Be short.", "messages": [HI]}

    plain = decode_count(msgspec.json.encode(body))
    with_tools = decode_count(msgspec.json.encode({**body, "tools": [TOOL, WEB], "max_tokens": None}))

    assert [message.text for message in plain.chat.messages or ()] == ["Be short.", "hi"]
    assert plain.tools is None
    assert with_tools.chat == plain.chat
    assert with_tools.tools is not None and with_tools.tools.prompt is not None
    assert "Does it." in with_tools.tools.prompt and "web_search" not in with_tools.tools.prompt


@pytest.mark.parametrize(
    ("param", "own"),
    [
        ("stop", "stop_sequences"),
        ("response_format.json_schema.schema", "output_config.format.schema"),
        ("tools[1].function.parameters", "tools[1].input_schema"),
        ("messages[3].content[0]", "messages"),
        ("max_tokens", "max_tokens"),
    ],
)
def test_what_a_backend_says_of_a_field_is_told_under_its_name_here(param: str, own: str) -> None:
    told = in_words_of_messages(UnsupportedParameter(f"{param}: no.", param=param))

    assert (type(told), told.param, told.message, told.code) == (
        UnsupportedParameter,
        own,
        f"{own}: no.",
        "unsupported_parameter",
    )


def test_what_is_said_of_no_field_is_left_as_it_is() -> None:
    error = InvalidRequest("no")

    assert in_words_of_messages(error) is error


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a JSON value, with every key or index in it."""
    for key, member in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(member, dict | list):
            yield from places(member)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "text", "x"]), inner),
    max_leaves=5,
)
SMALL = turn()
SMALL["tools"] = SMALL["tools"][:2]


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(list(places(SMALL))) - 1), JSON)
def test_whatever_stands_anywhere_in_a_body_is_taken_or_refused(place: int, value: Any) -> None:
    body = deepcopy(SMALL)
    container, key = list(places(body))[place]
    container[key] = value
    sent = msgspec.json.encode(body)

    for read in (lambda: decode_messages(sent).to_generate(Caller(request_id="r")), lambda: decode_count(sent)):
        try:
            read()
        except InvalidBody as error:
            assert error.message
