"""The table of validation: one change to a good request, and the status, param and code that it must be answered with.

Rows of one number belong together. 79 and 80 are about what is no JSON object, no route and no method of one. 78 is
answered in the envelope of its own route.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from msgspec import Struct

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, EMBEDDINGS, MESSAGES = "/v1/responses", "/v1/embeddings", "/v1/messages"
TYPE = "invalid_request_error"

LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
ABSENT = object()  # as a value of a change: the member is left out
USER = {"role": "user", "content": "hi"}
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {}}}
TOOL = {"type": "function", "function": FUNCTION}


class Vector(Struct, frozen=True, kw_only=True):
    """A request and its answer. `param` and `code` are those of the refusal, in whichever mode it is refused.

    `change` replaces members of the route's good body; `body` replaces all of it. `strict_status` is the status in
    strict mode where it differs. `finish_reason` is that of an accepted request, where it matters.
    """

    number: int
    route: str = CHAT
    method: str = "POST"
    change: Mapping[str, Any] = {}
    body: bytes | None = None
    status: int = 400
    strict_status: int | None = None
    param: str | None = None
    code: str | None = None
    finish_reason: str | None = None

    @property
    def name(self) -> str:
        """Number and change, short enough for a line."""
        what = self.change or self.body or f"{self.method} {self.route}"
        text = str(what).replace(repr(ABSENT), "absent")
        return f"{self.number} {text if len(text) <= 70 else f'{text[:70]}…'}"

    @property
    def may_stream(self) -> bool:
        """Whether the same must be said when the answer is to be streamed: the change is not itself about streams."""
        is_change = self.body is None and self.method == "POST" and self.route != EMBEDDINGS
        return is_change and not {"stream", "stream_options"} & set(self.change)

    def expected_status(self, *, strict: bool) -> int:
        """The status in a mode."""
        return self.strict_status if strict and self.strict_status is not None else self.status

    def payload(self, model: str, *, stream: bool = False, strict: bool = False, cap: int | None = None) -> bytes:
        """The body to send to a server of `model`. Where it is accepted the answer is held to `cap` tokens, unless the
        row itself is about that."""
        if self.body is not None:
            return self.body
        capped = self.expected_status(strict=strict) == 200 and not set(LIMITS) & set(self.change)
        base = capped_body(self.route, model, cap) if capped else good_body(self.route, model)
        whole = {**base, **({"stream": True} if stream else {}), **self.change}
        return json.dumps({name: value for name, value in whole.items() if value is not ABSENT}).encode()


def good_body(route: str, model: str) -> dict[str, Any]:
    """A body that every server of `model` accepts; one of a chat where the route is none."""
    match route:
        case "/v1/completions":
            return {"model": model, "prompt": "abc"}
        case "/v1/embeddings":
            return {"model": model, "input": "abc"}
        case "/v1/responses":
            return {"model": model, "input": "hi"}
        case "/v1/messages":
            return {"model": model, "messages": [USER], "max_tokens": 16}
        case _:
            return {"model": model, "messages": [USER]}


def capped_body(route: str, model: str, cap: int | None) -> dict[str, Any]:
    """A good body whose answer is held to `cap` tokens, where there is a cap and the answer has tokens."""
    field = {RESPONSES: "max_output_tokens", EMBEDDINGS: None}.get(route, "max_tokens")
    whole = good_body(route, model)
    return whole if cap is None or field is None else {**whole, field: cap}


def vectors(window: int) -> Iterator[Vector]:
    """The whole table, for a model whose context holds `window` tokens."""
    yield from _messages()
    yield from _sampling()
    yield from _limits(window)
    yield from _tools()
    yield from _formats()
    yield from _others()
    yield from _vllm()
    yield from _completions()
    yield from _embeddings()
    yield from _responses()
    yield Vector(number=78, route=MESSAGES, change={"max_tokens": ABSENT})
    yield from _transport()


def _refused(
    number: int, param: str | None, code: str | None, *changes: Mapping[str, Any], route: str = CHAT
) -> Iterator[Vector]:
    for change in changes:
        yield Vector(number=number, route=route, change=change, param=param, code=code)


def _strict(number: int, param: str, code: str | None, *changes: Mapping[str, Any]) -> Iterator[Vector]:
    """Accepted by default, refused in strict mode."""
    for change in changes:
        yield Vector(number=number, change=change, status=200, strict_status=400, param=param, code=code)


def _message(**members: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi", **members}]}


def _function(**members: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {**FUNCTION, **members}}]}


def _messages() -> Iterator[Vector]:
    missing, wrong = "missing_required_parameter", "invalid_type"
    nameless = {"id": "c", "type": "function", "function": {"arguments": "{}"}}
    orphan = {"role": "tool", "tool_call_id": "c", "content": "x"}
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    yield from _refused(1, None, None, {"model": ABSENT})
    for name in ("", "nope"):
        yield Vector(number=2, change={"model": name}, status=404, param="model", code="model_not_found")
    yield from _refused(3, "model", wrong, {"model": 7})
    yield from _refused(4, "messages", missing, {"messages": ABSENT})
    yield from _refused(5, "messages", "empty_array", {"messages": []})
    yield from _refused(6, "messages", wrong, {"messages": "hi"})
    yield from _refused(7, "messages[0]", wrong, {"messages": ["hi"]})
    yield from _refused(8, "messages[0].role", missing, {"messages": [{"content": "hi"}]})
    yield from _refused(9, "messages[0].role", "invalid_value", _message(role="robot"))
    yield from _refused(10, "messages[0].content", wrong, _message(content=5))
    yield from _strict(11, "messages[0].content", "empty_array", _message(content=[]))
    yield from _refused(12, "messages[0].content[0].type", missing, _message(content=[{"text": "hi"}]))
    yield from _refused(13, "messages[0].content[0].type", "invalid_value", _message(content=[{"type": "hologram"}]))
    untied = [USER, {"role": "tool", "content": "x"}]
    yield from _refused(14, "messages[1].tool_call_id", missing, {"messages": untied})
    called = [USER, {"role": "assistant", "tool_calls": [nameless]}]
    yield from _refused(15, "messages[1].tool_calls[0].function.name", missing, {"messages": called})
    told = [USER, {"role": "assistant", "content": "hi"}, USER, orphan]
    unanswered = [USER, {"role": "assistant", "tool_calls": [call]}, USER]
    yield from _strict(81, "messages.[3].role", None, {"messages": told})
    yield from _strict(81, "messages.[2].role", None, {"messages": unanswered})


def _sampling() -> Iterator[Vector]:
    low, high, wrong = "integer_below_min_value", "integer_above_max_value", "invalid_type"
    under, over = "decimal_below_min_value", "decimal_above_max_value"
    yield from _refused(16, "n", low, {"n": 0})
    yield from _refused(16, "n", high, {"n": 129})
    yield from _refused(16, "n", wrong, {"n": "2"}, {"n": 1.5}, {"n": True})
    yield from _refused(17, "temperature", under, {"temperature": -0.1})
    yield from _refused(17, "temperature", over, {"temperature": 2.1})
    yield from _refused(17, "temperature", wrong, {"temperature": "hot"}, {"temperature": True})
    yield from _refused(18, "top_p", over, {"top_p": 1.01})
    yield from _refused(19, "presence_penalty", over, {"presence_penalty": 3})
    yield from _refused(19, "frequency_penalty", under, {"frequency_penalty": -3})
    yield from _refused(19, "frequency_penalty", under, {"presence_penalty": 3, "frequency_penalty": -3})
    yield from _refused(25, "stop", "string_below_min_length", {"stop": [""]}, {"stop": ""})
    yield from _strict(24, "stop", "array_above_max_length", {"stop": ["v", "w", "x", "y", "z"]})
    yield from _refused(26, "stop[0]", wrong, {"stop": [1]})
    yield from _refused(27, "logit_bias", "invalid_value", {"logit_bias": {"abc": 1}})
    yield from _refused(28, "logit_bias", over, {"logit_bias": {"5": 101}})
    yield from _refused(29, "logit_bias", "invalid_value", {"logit_bias": {"99999999": 1}})
    yield from _refused(30, "top_logprobs", None, {"top_logprobs": 2})
    yield from _refused(31, "top_logprobs", high, {"logprobs": True, "top_logprobs": 21})
    yield from _refused(31, "top_logprobs", low, {"logprobs": True, "top_logprobs": -1})
    yield from _refused(32, "logprobs", wrong, {"logprobs": 5})
    yield from _refused(33, "seed", high, {"seed": 1e30}, {"seed": 2**63})
    yield from _refused(34, "stream", wrong, {"stream": "true"})
    yield from _refused(35, "stream_options", None, {"stream_options": {"include_usage": True}})


def _limits(window: int) -> Iterator[Vector]:
    low = "integer_below_min_value"
    yield from _refused(20, "max_tokens", low, {"max_tokens": 0}, {"max_tokens": -1})
    yield from _refused(20, "max_completion_tokens", low, {"max_completion_tokens": 0})
    both = {"max_tokens": 2, "max_completion_tokens": 2}
    yield from _strict(21, "max_tokens", "invalid_parameter_combination", both)
    yield from _strict(22, "max_tokens", None, {"max_tokens": window + 1})
    yield from _refused(23, "messages", "context_length_exceeded", _message(content="word " * (window + 1)))


def _tools() -> Iterator[Vector]:
    missing, wrong, value = "missing_required_parameter", "invalid_type", "invalid_value"
    name, parameters = "tools[0].function.name", "tools[0].function.parameters"
    banana = {"type": "banana"}
    yield from _refused(36, "tools[0].function", missing, {"tools": [{"type": "function"}]})
    yield from _refused(37, name, value, _function(name="has space"))
    yield from _refused(37, name, "string_above_max_length", _function(name="x" * 65))
    yield from _refused(38, parameters, wrong, _function(parameters="x"))
    yield from _refused(39, parameters, None, _function(parameters=banana, strict=True))
    yield from _refused(39, parameters, None, {**_function(parameters=banana), "tool_choice": "required"})
    yield from _refused(40, "tool_choice", value, {"tools": [TOOL], "tool_choice": "sometimes"})
    yield from _refused(41, "tool_choice", None, {"tool_choice": "required"})
    absent = {"type": "function", "function": {"name": "g"}}
    yield from _refused(42, "tool_choice", value, {"tools": [TOOL], "tool_choice": absent})
    yield from _refused(43, "tool_choice.function", missing, {"tools": [TOOL], "tool_choice": {"type": "function"}})
    yield from _strict(44, "tools", "empty_array", {"tools": []})


def _formats() -> Iterator[Vector]:
    missing = "missing_required_parameter"
    path = "response_format.json_schema"

    def schema(**members: Any) -> dict[str, Any]:
        return {"response_format": {"type": "json_schema", "json_schema": members}}

    yield from _refused(45, "response_format", "invalid_type", {"response_format": "json"})
    yield from _refused(46, "response_format.type", missing, {"response_format": {}})
    yield from _refused(47, "response_format.type", "invalid_value", {"response_format": {"type": "xml"}})
    yield from _refused(48, path, missing, {"response_format": {"type": "json_schema"}})
    yield from _refused(49, f"{path}.name", missing, schema(schema={}))
    broken = {"$ref": "#/$defs/nowhere"}
    yield from _refused(50, "response_format", None, schema(name="t", schema=[1]), schema(name="t", schema=broken))


def _others() -> Iterator[Vector]:
    many = {str(key): "v" for key in range(17)}
    yield from _refused(51, "metadata", "object_above_max_properties", {"metadata": many})
    yield from _refused(51, "metadata", "string_above_max_length", {"metadata": {"k": "v" * 513}})
    yield from _refused(51, "metadata", "invalid_type", {"metadata": {"k": 5}})
    for field, word in (("service_tier", "gold"), ("reasoning_effort", "huge"), ("verbosity", "loud")):
        yield from _refused(52, field, "invalid_value", {field: word})
    yield from _refused(53, "user", "invalid_type", {"user": 5})
    yield from _refused(54, "modalities", "unsupported_value", {"modalities": ["audio"]})
    yield from _strict(55, "zzz", "unknown_parameter", {"zzz": 1})
    yield from _strict(55, "messages[0].zzz", "unknown_parameter", _message(zzz=1))
    yield from _strict(55, "tools[0].function.zzz", "unknown_parameter", _function(zzz=1))
    nulls = dict.fromkeys(OPTIONAL)
    yield Vector(number=56, change=nulls, status=200)


def _vllm() -> Iterator[Vector]:
    combination = "invalid_parameter_combination"
    yield from _refused(57, "min_tokens", "invalid_value", {"min_tokens": 10, "max_tokens": 5})
    yield from _refused(58, "top_k", "integer_below_min_value", {"top_k": -2})
    yield from _refused(58, "min_p", "decimal_above_max_value", {"min_p": 1.5})
    yield from _refused(58, "repetition_penalty", "decimal_below_min_value", {"repetition_penalty": 0})
    two = {"json": {"type": "object"}, "regex": "a"}
    yield from _refused(59, "structured_outputs", combination, {"structured_outputs": two})
    yield from _refused(60, "structured_outputs.regex", "invalid_value", {"structured_outputs": {"regex": "("}})
    both = {"continue_final_message": True, "add_generation_prompt": True}
    yield from _refused(61, "continue_final_message", combination, both)
    yield from _refused(62, "prompt_logprobs", combination, {"prompt_logprobs": 1, "stream": True})
    yield from _refused(63, "cache_salt", "string_below_min_length", {"cache_salt": ""})


def _completions() -> Iterator[Vector]:
    refused, wrong = partial(_refused, route=COMPLETIONS), "invalid_type"
    yield from refused(64, "prompt", "empty_array", {"prompt": []})
    yield from refused(64, "prompt[0]", "empty_array", {"prompt": [[]]})
    yield from refused(65, "prompt", wrong, {"prompt": [1, "a"]}, {"prompt": [1.5]}, {"prompt": [True]})
    yield from refused(65, "prompt", "invalid_value", {"prompt": [-1]}, {"prompt": [10**9]})
    yield from refused(66, "prompt", wrong, {"prompt": {}})
    yield from refused(67, "logprobs", "integer_above_max_value", {"logprobs": 6})
    yield from refused(67, "logprobs", "integer_below_min_value", {"logprobs": -1})
    yield from refused(67, "logprobs", wrong, {"logprobs": True})
    yield from refused(68, "best_of", "invalid_value", {"best_of": 1, "n": 2})
    yield from refused(69, "best_of", "invalid_parameter_combination", {"best_of": 3, "stream": True})
    empty = {"max_tokens": 0, "echo": False}
    yield Vector(number=70, route=COMPLETIONS, change=empty, status=200, finish_reason="length")
    yield from refused(71, "suffix", "unsupported_parameter", {"suffix": "x"})


def _embeddings() -> Iterator[Vector]:
    refused, value = partial(_refused, route=EMBEDDINGS), "invalid_value"
    yield from refused(72, "input", "missing_required_parameter", {"input": ABSENT})
    yield from refused(72, "input", "empty_array", {"input": []})
    yield from refused(72, "input", "array_above_max_length", {"input": ["a"] * 2049})
    yield from refused(73, "encoding_format", value, {"encoding_format": "hex"})
    yield from refused(74, "dimensions", "integer_below_min_value", {"dimensions": 0})
    yield from refused(74, "dimensions", value, {"dimensions": 1_000_000})


def _responses() -> Iterator[Vector]:
    refused, missing = partial(_refused, route=RESPONSES), "missing_required_parameter"
    yield from refused(75, "model", missing, {"model": ABSENT})
    yield from refused(75, "input", missing, {"input": ABSENT})
    yield from refused(76, "max_output_tokens", "integer_below_min_value", {"max_output_tokens": 0})
    yield from refused(77, "previous_response_id", "previous_response_not_found", {"previous_response_id": "resp_x"})


def _transport() -> Iterator[Vector]:
    for route in (CHAT, COMPLETIONS):
        for body in (b"[]", b"null", b"1", b'"x"', b"{", b""):
            yield Vector(number=79, route=route, body=body)
    yield Vector(number=80, route="/v1/nope", body=b"{}", status=404)
    yield Vector(number=80, route=CHAT, method="GET", body=b"", status=405, code="method_not_supported")


# Every member of a chat that may be left out, and so may be null.
OPTIONAL = (
    *("stream", "stream_options", "max_completion_tokens", "max_tokens", "temperature", "top_p", "n", "stop", "seed"),
    *("frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "response_format", "tools"),
    *("tool_choice", "parallel_tool_calls", "functions", "function_call", "user", "safety_identifier"),
    *("prompt_cache_key", "prompt_cache_retention", "metadata", "store", "service_tier", "reasoning_effort"),
    *("verbosity", "prediction", "modalities", "audio", "web_search_options", "moderation", "top_k", "min_p"),
    *("repetition_penalty", "min_tokens", "ignore_eos", "stop_token_ids", "skip_special_tokens", "prompt_logprobs"),
    *("echo", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "structured_outputs"),
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "priority", "cache_salt"),
)
