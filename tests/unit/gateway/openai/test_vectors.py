"""One change to a good body, and what must be said about it: OpenAI's codes and params, row by row."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gateway.errors import InvalidBody
from gateway.openai.chat import decode_chat
from gateway.openai.completions import decode_completion
from gateway.openai.embeddings import decode_embeddings

USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "f"}}
LONG = "x" * 65


def message(**members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi", **members}]}


def function(**members: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "f", **members}}]}


def text_format(**members: Any) -> dict[str, Any]:
    return {"response_format": members}


CHAT_FAULTS: list[tuple[dict[str, Any], str | None, str | None]] = [
    ({"model": None}, None, None),
    ({"model": 7}, "model", "invalid_type"),
    ({"messages": None}, "messages", "missing_required_parameter"),
    ({"messages": []}, "messages", "empty_array"),
    ({"messages": "hi"}, "messages", "invalid_type"),
    ({"messages": ["hi"]}, "messages[0]", "invalid_type"),
    ({"messages": [USER, None]}, "messages[1]", "invalid_type"),
    ({"messages": [{"content": "hi"}]}, "messages[0].role", "missing_required_parameter"),
    (message(role="robot"), "messages[0].role", "invalid_value"),
    (message(role=5), "messages[0].role", "invalid_type"),
    (message(content=5), "messages[0].content", "invalid_type"),
    (message(content={}), "messages[0].content", "invalid_type"),
    (message(content=["hi"]), "messages[0].content[0]", "invalid_type"),
    (message(content=[{"text": "hi"}]), "messages[0].content[0].type", "missing_required_parameter"),
    (message(content=[{"type": "hologram"}]), "messages[0].content[0].type", "invalid_value"),
    (message(content=[{"type": "text"}]), "messages[0].content[0].text", "missing_required_parameter"),
    (message(content=[{"type": "text", "text": 1}]), "messages[0].content[0].text", "invalid_type"),
    (message(content=[{"type": "image_url"}]), "messages[0].content[0].image_url", "missing_required_parameter"),
    (message(name=5), "messages[0].name", "invalid_type"),
    ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id", "missing_required_parameter"),
    ({"messages": [{"role": "function", "content": "x"}]}, "messages[0].name", "missing_required_parameter"),
    (
        {"messages": [USER, {"role": "assistant", "tool_calls": [{**CALL, "function": {"arguments": "{}"}}]}]},
        "messages[1].tool_calls[0].function.name",
        "missing_required_parameter",
    ),
    (
        {"messages": [USER, {"role": "assistant", "tool_calls": [{"id": "c", "type": "function"}]}]},
        "messages[1].tool_calls[0].function",
        "missing_required_parameter",
    ),
    ({"n": 0}, "n", "integer_below_min_value"),
    ({"n": 129}, "n", "integer_above_max_value"),
    ({"n": "2"}, "n", "invalid_type"),
    ({"n": 1.5}, "n", "invalid_type"),
    ({"n": True}, "n", "invalid_type"),
    ({"temperature": -0.1}, "temperature", "decimal_below_min_value"),
    ({"temperature": 2.1}, "temperature", "decimal_above_max_value"),
    ({"temperature": "hot"}, "temperature", "invalid_type"),
    ({"temperature": True}, "temperature", "invalid_type"),
    ({"temperature": 10**100}, "temperature", "decimal_above_max_value"),
    ({"top_p": 1.01}, "top_p", "decimal_above_max_value"),
    ({"presence_penalty": 3}, "presence_penalty", "decimal_above_max_value"),
    ({"frequency_penalty": -3}, "frequency_penalty", "decimal_below_min_value"),
    ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
    ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
    ({"max_tokens": 2**64}, "max_tokens", "integer_above_max_value"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "integer_below_min_value"),
    ({"stop": ""}, "stop", "string_below_min_length"),
    ({"stop": [""]}, "stop", "string_below_min_length"),
    ({"stop": [1]}, "stop[0]", "invalid_type"),
    ({"stop": [None]}, "stop[0]", "invalid_type"),
    ({"stop": 1}, "stop", "invalid_type"),
    ({"logit_bias": {"abc": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "invalid_value"),
    ({"logit_bias": {"5": 101}}, "logit_bias", "decimal_above_max_value"),
    ({"logit_bias": {"5": "x"}}, "logit_bias", "invalid_type"),
    ({"logit_bias": []}, "logit_bias", "invalid_type"),
    ({"top_logprobs": 2}, "top_logprobs", None),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs", "integer_below_min_value"),
    ({"logprobs": 5}, "logprobs", "invalid_type"),
    ({"seed": 1e30}, "seed", "integer_above_max_value"),
    ({"seed": 2**63}, "seed", "integer_above_max_value"),
    ({"seed": -(2**63) - 1}, "seed", "integer_below_min_value"),
    ({"stream": "true"}, "stream", "invalid_type"),
    ({"stream_options": {}}, "stream_options", None),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
    ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type", "unsupported_value"),
    (function(name="has space"), "tools[0].function.name", "invalid_value"),
    (function(name="line\n"), "tools[0].function.name", "invalid_value"),
    (function(name=LONG), "tools[0].function.name", "string_above_max_length"),
    (function(parameters="x"), "tools[0].function.parameters", "invalid_type"),
    ({"tools": [TOOL] * 129}, "tools", "array_above_max_length"),
    ({"tools": [TOOL], "tool_choice": "sometimes"}, "tool_choice", "invalid_value"),
    ({"tools": [TOOL], "tool_choice": 5}, "tool_choice", "invalid_type"),
    ({"tool_choice": "required"}, "tool_choice", None),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", None),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "tool_choice",
        "invalid_value",
    ),
    ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function", "missing_required_parameter"),
    ({"tools": [TOOL], "tool_choice": {"type": "any"}}, "tool_choice.type", "invalid_value"),
    ({"tools": [TOOL], "functions": [{"name": "f"}]}, "functions", "invalid_parameter_combination"),
    ({"functions": [{"name": "f"}], "function_call": "always"}, "function_call", "invalid_value"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "invalid_type"),
    ({"response_format": "json"}, "response_format", "invalid_type"),
    ({"response_format": {}}, "response_format.type", "missing_required_parameter"),
    (text_format(type="xml"), "response_format.type", "invalid_value"),
    (text_format(type="json_schema"), "response_format.json_schema", "missing_required_parameter"),
    (
        text_format(type="json_schema", json_schema={"schema": {}}),
        "response_format.json_schema.name",
        "missing_required_parameter",
    ),
    (
        text_format(type="json_schema", json_schema={"name": "t"}),
        "response_format.json_schema.schema",
        "missing_required_parameter",
    ),
    (text_format(type="json_schema", json_schema={"name": "t", "schema": [1]}), "response_format", None),
    ({"metadata": {str(key): "v" for key in range(17)}}, "metadata", "object_above_max_properties"),
    ({"metadata": {"k": "v" * 513}}, "metadata", "string_above_max_length"),
    ({"metadata": {"k" * 65: "v"}}, "metadata", "property_name_above_max_length"),
    ({"metadata": {"k": 5}}, "metadata", "invalid_type"),
    ({"service_tier": "gold"}, "service_tier", "invalid_value"),
    ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
    ({"verbosity": "loud"}, "verbosity", "invalid_value"),
    ({"user": 5}, "user", "invalid_type"),
    ({"safety_identifier": "x" * 129}, "safety_identifier", "string_above_max_length"),
    ({"modalities": ["audio"]}, "modalities", "unsupported_value"),
    ({"prediction": {"type": "content"}}, "prediction.content", "missing_required_parameter"),
    ({"web_search_options": {}}, "web_search_options", "unsupported_parameter"),
    ({"min_tokens": 10, "max_tokens": 5}, "min_tokens", "invalid_value"),
    ({"top_k": -2}, "top_k", "integer_below_min_value"),
    ({"top_k": 2.5}, "top_k", "invalid_type"),
    ({"min_p": 1.5}, "min_p", "decimal_above_max_value"),
    ({"repetition_penalty": 0}, "repetition_penalty", "decimal_below_min_value"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "integer_below_min_value"),
    ({"stop_token_ids": [2**31]}, "stop_token_ids[0]", "integer_above_max_value"),
    (
        {"structured_outputs": {"json": {}, "regex": "a"}},
        "structured_outputs",
        "invalid_parameter_combination",
    ),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_json", "invalid_parameter_combination"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "empty_array"),
    (
        {"continue_final_message": True, "add_generation_prompt": True},
        "continue_final_message",
        "invalid_parameter_combination",
    ),
    ({"continue_final_message": True}, "continue_final_message", "invalid_value"),
    ({"chat_template_kwargs": {"tokenize": True}}, "chat_template_kwargs", "invalid_value"),
    ({"chat_template_kwargs": []}, "chat_template_kwargs", "invalid_type"),
    ({"chat_template": "{{ x }}"}, "chat_template", "unsupported_parameter"),
    ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "invalid_parameter_combination"),
    ({"prompt_logprobs": 1}, "prompt_logprobs", "unsupported_parameter"),
    ({"cache_salt": ""}, "cache_salt", "string_below_min_length"),
    ({"cache_salt": "a/b"}, "cache_salt", "invalid_value"),
    ({"use_beam_search": True}, "use_beam_search", "unsupported_parameter"),
    ({"bad_words": ["x"]}, "bad_words", "unsupported_parameter"),
    ({"allowed_token_ids": []}, "allowed_token_ids", "empty_array"),
    ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "unsupported_parameter"),
]

COMPLETION_FAULTS: list[tuple[dict[str, Any], str | None, str | None]] = [
    ({"model": None}, None, None),
    ({"prompt": []}, "prompt", "empty_array"),
    ({"prompt": [[]]}, "prompt[0]", "empty_array"),
    ({"prompt": [[1], []]}, "prompt[1]", "empty_array"),
    ({"prompt": [1, "a"]}, "prompt", "invalid_type"),
    ({"prompt": ["a", 1]}, "prompt", "invalid_type"),
    ({"prompt": ["a", None]}, "prompt", "invalid_type"),
    ({"prompt": [1.5]}, "prompt", "invalid_type"),
    ({"prompt": [True]}, "prompt", "invalid_type"),
    ({"prompt": [[1], [True]]}, "prompt", "invalid_type"),
    ({"prompt": [-1]}, "prompt", "invalid_value"),
    ({"prompt": [[2**40]]}, "prompt", "invalid_value"),
    ({"prompt": {}}, "prompt", "invalid_type"),
    ({"prompt": 5}, "prompt", "invalid_type"),
    ({"prompt": [{}]}, "prompt", "invalid_type"),
    ({"max_tokens": -1}, "max_tokens", "integer_below_min_value"),
    ({"logprobs": 6}, "logprobs", "integer_above_max_value"),
    ({"logprobs": -1}, "logprobs", "integer_below_min_value"),
    ({"logprobs": True}, "logprobs", "invalid_type"),
    ({"best_of": 1, "n": 2}, "best_of", "invalid_value"),
    ({"best_of": 3, "stream": True}, "best_of", "invalid_parameter_combination"),
    ({"best_of": 21}, "best_of", "integer_above_max_value"),
    ({"suffix": "x"}, "suffix", "unsupported_parameter"),
    ({"prompt_embeds": "x"}, "prompt_embeds", "unsupported_parameter"),
    ({"echo": "yes"}, "echo", "invalid_type"),
    ({"temperature": 3}, "temperature", "decimal_above_max_value"),
    ({"min_tokens": 17}, "min_tokens", "invalid_value"),
    ({"user": 5}, "user", "invalid_type"),
]

EMBEDDINGS_FAULTS: list[tuple[dict[str, Any], str | None, str | None]] = [
    ({"model": None}, None, None),
    ({"model": 7}, "model", "invalid_type"),
    ({"input": None}, "input", "missing_required_parameter"),
    ({"input": None, "encoding_format": None, "messages": []}, "input", "missing_required_parameter"),
    ({"input": []}, "input", "empty_array"),
    ({"input": ["a"] * 2049}, "input", "array_above_max_length"),
    ({"input": [[1]] * 2049}, "input", "array_above_max_length"),
    ({"input": [[]]}, "input[0]", "empty_array"),
    ({"input": [[1], []]}, "input[1]", "empty_array"),
    ({"input": [1, "a"]}, "input", "invalid_type"),
    ({"input": ["a", 1]}, "input", "invalid_type"),
    ({"input": ["a", None]}, "input", "invalid_type"),
    ({"input": ["a", [1]]}, "input", "invalid_type"),
    ({"input": [[1], ["a"]]}, "input", "invalid_type"),
    ({"input": [1.5]}, "input", "invalid_type"),
    ({"input": [True]}, "input", "invalid_type"),
    ({"input": [-1]}, "input", "invalid_value"),
    ({"input": [[2**31]]}, "input", "invalid_value"),
    ({"input": [10**50]}, "input", "invalid_value"),
    ({"input": {}}, "input", "invalid_type"),
    ({"input": 5}, "input", "invalid_type"),
    ({"encoding_format": "hex"}, "encoding_format", "invalid_value"),
    ({"encoding_format": 5}, "encoding_format", "invalid_type"),
    ({"dimensions": 0}, "dimensions", "integer_below_min_value"),
    ({"dimensions": 1.5}, "dimensions", "invalid_type"),
    ({"dimensions": True}, "dimensions", "invalid_type"),
    ({"dimensions": 2**31}, "dimensions", "integer_above_max_value"),
    ({"user": 5}, "user", "invalid_type"),
    ({"priority": "high"}, "priority", "invalid_type"),
    ({"add_special_tokens": 1}, "add_special_tokens", "invalid_type"),
    ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", "integer_below_min_value"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
    ({"truncation_side": "right"}, "truncation_side", "unsupported_parameter"),
    ({"messages": [USER]}, "messages", "unsupported_parameter"),
    ({"embed_dtype": "float16"}, "embed_dtype", "unsupported_parameter"),
    ({"endianness": "big"}, "endianness", "invalid_value"),
]


def chat_body(change: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"model": "m", "messages": [USER], **change})


def completion_body(change: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"model": "m", "prompt": "abc", **change})


@pytest.mark.parametrize(("change", "param", "code"), CHAT_FAULTS, ids=str)
def test_a_wrong_chat_is_refused_with_openais_param_and_code(
    change: dict[str, Any], param: str | None, code: str | None
) -> None:
    with pytest.raises(InvalidBody) as caught:
        decode_chat(chat_body(change))

    assert (caught.value.param, caught.value.code) == (param, code)
    assert len(caught.value.message) < 600


@pytest.mark.parametrize(("change", "param", "code"), COMPLETION_FAULTS, ids=str)
def test_a_wrong_completion_is_refused_with_openais_param_and_code(
    change: dict[str, Any], param: str | None, code: str | None
) -> None:
    with pytest.raises(InvalidBody) as caught:
        decode_completion(completion_body(change))

    assert (caught.value.param, caught.value.code) == (param, code)


@pytest.mark.parametrize(("change", "param", "code"), EMBEDDINGS_FAULTS, ids=lambda value: str(value)[:60])
def test_wrong_embeddings_are_refused_with_openais_param_and_code(
    change: dict[str, Any], param: str | None, code: str | None
) -> None:
    with pytest.raises(InvalidBody) as caught:
        decode_embeddings(msgspec.json.encode({"model": "m", "input": "abc", **change}))

    assert (caught.value.param, caught.value.code) == (param, code)
    assert len(caught.value.message) < 600


ABOUT_STREAMS = {"stream", "stream_options", "prompt_logprobs"}


@pytest.mark.parametrize("change", [change for change, _, _ in CHAT_FAULTS if not ABOUT_STREAMS & set(change)], ids=str)
def test_a_wrong_chat_is_refused_alike_when_it_is_to_be_streamed(change: dict[str, Any]) -> None:
    plain, streamed = _fault(change), _fault({**change, "stream": True})

    assert (plain.message, plain.param, plain.code) == (streamed.message, streamed.param, streamed.code)


def _fault(change: dict[str, Any]) -> InvalidBody:
    with pytest.raises(InvalidBody) as caught:
        decode_chat(chat_body(change))
    return caught.value


@pytest.mark.parametrize(
    "change",
    [
        {"max_tokens": 5, "max_completion_tokens": 3},
        {"max_tokens": 10_000_000},
        {"stop": list("abcde")},
        {"stop": []},
        {"stop": None, "tools": None, "tool_choice": None, "response_format": None},
        {"tools": []},
        {"tools": [], "tool_choice": "auto"},
        {"tool_choice": "none"},
        {"tools": [{"function": {"name": "mcp.tool"}}], "tool_choice": "required"},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}},
        {"top_k": 20.0},
        {"top_k": -1},
        {"n": 1.0},
        {"seed": 2**63 - 1},
        {"top_p": 0},
        {"temperature": 0},
        {"top_logprobs": 0},
        {"stream": True, "stream_options": {"include_usage": True, "new_option": 1}},
        {"store": True},
        {"zzz": 1},
        {"suffix": "x"},
        {"modalities": ["text"]},
        {"service_tier": "fast"},
        {"prediction": {"type": "content", "content": "x"}},
        {"metadata": {"k": "v"}},
        {"use_beam_search": False, "bad_words": [], "documents": None},
        {"min_tokens": 5},
        {"messages": [{"role": "user", "content": []}]},
        {"messages": [{"role": "user", "content": ""}, {"role": "user"}, {"role": "system", "content": None}]},
        {"messages": [{"role": "tool", "tool_call_id": "orphan", "content": "x"}]},
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [CALL], "audio": None}]},
        {"messages": [{"role": "user", "content": "nul \0 and 😀"}]},
    ],
    ids=str,
)
def test_what_clients_send_is_accepted(change: dict[str, Any]) -> None:
    decode_chat(chat_body(change))


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": None},
        {"prompt": ""},
        {"prompt": ["a", ""]},
        {"max_tokens": 0},
        {"max_tokens": None},
        {"suffix": ""},
        {"suffix": None},
        {"logprobs": 0},
        {"n": 2, "best_of": 2, "stream": True},
        {"best_of": 3},
    ],
    ids=str,
)
def test_what_clients_of_completions_send_is_accepted(change: dict[str, Any]) -> None:
    decode_completion(completion_body(change))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"model": None}, "you must provide a model parameter"),
        ({"messages": [{"content": "x"}]}, "Missing required parameter: 'messages[0].role'."),
        ({"n": "2"}, "Invalid type for 'n': expected an integer, but got a string instead."),
        ({"n": 0}, "Invalid 'n': integer below minimum value. Expected a value >= 1, but got 0 instead."),
        (
            {"temperature": 2.5},
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 2.5 instead.",
        ),
        (
            {"messages": []},
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        ),
        (
            {"tools": [TOOL] * 129},
            "Invalid 'tools': array too long. "
            "Expected an array with maximum length 128, but got an array with length 129 instead.",
        ),
        (
            {"stop": [""]},
            "Invalid 'stop': empty string. Expected a string with minimum length 1, but got an empty string instead.",
        ),
        (
            {"verbosity": "loud"},
            "Invalid value: 'loud'. Supported values are: 'high', 'low', and 'medium'.",
        ),
        (
            {"messages": [{"role": "user", "content": 5}]},
            "Invalid type for 'messages[0].content': "
            "expected one of a string or array of objects, but got an integer instead.",
        ),
    ],
)
def test_faults_are_told_in_openais_words(change: dict[str, Any], text: str) -> None:
    assert _fault(change).message == text


def test_the_values_of_a_client_are_repeated_only_in_part() -> None:
    fault = _fault({"messages": [{"role": "r" * 10_000, "content": "x"}]})

    assert len(fault.message) < 400


def test_the_first_fault_is_told_and_required_fields_come_before_others() -> None:
    assert _fault({"messages": None, "n": 0, "zzz": 1}).param == "messages"
    assert _fault({"messages": 5, "temperature": "hot"}).param == "messages"
    assert _fault({"n": 0, "top_logprobs": 3}).param == "n"
