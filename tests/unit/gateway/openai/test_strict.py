"""Strict mode: what OpenAI refuses is refused, in OpenAI's order, and what its own clients send is accepted."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.errors import InvalidBody
from gateway.openai.chat import decode_chat
from gateway.openai.completions import decode_completion
from gateway.openai.wire import LENIENT, WireOptions

STRICT = WireOptions(strict=True)
REJECT = WireOptions(unknown_fields="reject")
USER = {"role": "user", "content": "hi"}
ODD_PART = {"type": "text", "text": "x", "zzz": 1}
TOOL = {"type": "function", "function": {"name": "f"}}


def call(name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def answer(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": "x"}


def calling(*names: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [call(name) for name in names]}


def body(**change: Any) -> bytes:
    return msgspec.json.encode({"model": "m", "messages": [USER], **change})


def fault(options: WireOptions, **change: Any) -> InvalidBody:
    with pytest.raises(InvalidBody) as caught:
        decode_chat(body(**change), options)
    return caught.value


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"zzz": None}, "zzz"),
        ({"stream": True, "stream_options": {"zzz": 1}}, "stream_options.zzz"),
        ({"messages": [USER, {**USER, "zzz": 1}]}, "messages[1].zzz"),
        ({"messages": [{"role": "user", "content": [ODD_PART]}]}, "messages[0].content[0].zzz"),
        ({"messages": [{**calling("c"), "tool_calls": [{**call("c"), "zzz": 1}]}]}, "messages[0].tool_calls[0].zzz"),
        ({"tools": [{**TOOL, "zzz": 1}]}, "tools[0].zzz"),
        ({"response_format": {"type": "text", "zzz": 1}}, "response_format.zzz"),
    ],
    ids=str,
)
def test_unknown_members_are_named_by_their_path_and_passed_over_by_default(change: dict[str, Any], param: str) -> None:
    for options in (STRICT, REJECT):
        found = fault(options, **change)
        assert (found.param, found.code) == (param, "unknown_parameter")
        assert found.message == f"Unknown parameter: '{param}'."

    decode_chat(body(**change), LENIENT)


def test_objects_whose_names_are_the_clients_own_are_not_looked_into() -> None:
    schema = {"type": "object", "properties": {"a": {"zzz": 1}}}
    whole = body(
        metadata={"zzz": "v"},
        tools=[{"type": "function", "function": {"name": "f", "parameters": schema}}],
        tool_choice={"type": "function", "function": {"name": "f"}},
        response_format={"type": "json_schema", "json_schema": {"name": "t", "schema": schema}},
        chat_template_kwargs={"zzz": 1},
    )

    assert decode_chat(whole, STRICT).extra == {}


def test_an_answer_of_ours_may_be_sent_back_in_strict_mode() -> None:
    said: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "annotations": [],
        "reasoning_content": "y",
    }

    decode_chat(body(messages=[USER, said, {**said, "reasoning": "y", "reasoning_content": "y"}, USER]), STRICT)


def test_calls_that_are_all_answered_are_accepted_in_any_order() -> None:
    decode_chat(body(messages=[USER, calling("a", "b"), answer("b"), answer("a"), calling("c"), answer("c")]), STRICT)


@pytest.mark.parametrize(
    ("messages", "at"),
    [
        ([USER, answer("a")], 1),
        ([USER, calling("a"), answer("b")], 2),
        ([USER, calling("a"), answer("a"), answer("a")], 3),
        ([USER, calling("a", "b"), answer("a"), USER], 3),
        ([USER, calling("a")], 1),
        ([USER, calling("a"), calling("b"), answer("b")], 2),
    ],
)
def test_answers_without_calls_and_calls_without_answers_are_refused(messages: list[Any], at: int) -> None:
    found = fault(STRICT, messages=messages)

    assert (found.param, found.code) == (f"messages.[{at}].role", None)
    decode_chat(body(messages=messages), REJECT)


def test_dots_in_names_are_for_lenient_servers_only() -> None:
    for change, param in (
        ({"tools": [{"type": "function", "function": {"name": "a.b"}}]}, "tools[0].function.name"),
        ({"functions": [{"name": "a.b"}]}, "functions[0].name"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a.b", "schema": {}}}},
            "response_format.json_schema.name",
        ),
    ):
        found = fault(STRICT, **change)
        assert (found.param, found.code) == (param, "invalid_value")
        decode_chat(body(**change))


def test_the_first_fault_is_told_in_openais_order() -> None:
    assert fault(STRICT, messages=None, zzz=1).param == "messages"
    assert fault(STRICT, n=0, zzz=1).param == "zzz"
    assert fault(STRICT, messages=[{**USER, "zzz": 1}], n=0).param == "messages[0].zzz"
    assert fault(STRICT, max_tokens=1, max_completion_tokens=1, n=0).param == "n"


def test_a_cap_is_exact_under_the_name_that_was_sent_and_a_default_is_not() -> None:
    for field in ("max_tokens", "max_completion_tokens"):
        assert decode_chat(body(**{field: 9}), STRICT).exact_cap == field
        assert decode_chat(body(**{field: 9})).exact_cap is None
    whole = {"model": "m", "prompt": "x"}
    assert decode_completion(msgspec.json.encode(whole), STRICT).exact_cap is None
    assert decode_completion(msgspec.json.encode({**whole, "max_tokens": 9}), STRICT).exact_cap == "max_tokens"


def test_completions_are_strict_too() -> None:
    for change, code in (({"zzz": 1}, "unknown_parameter"), ({"stop": list("abcde")}, "array_above_max_length")):
        whole = msgspec.json.encode({"model": "m", "prompt": "x", **change})
        with pytest.raises(InvalidBody) as caught:
            decode_completion(whole, STRICT)
        assert caught.value.code == code
        decode_completion(whole)
