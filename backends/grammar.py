"""What an answer must look like (schema, regex, choice, grammar) as a checked llguidance grammar. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from llguidance import LLMatcher, grammar_from

from backends.errors import InvalidRequest, UnsupportedParameter
from backends.types import GenerateRequest

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions  # exists for type checkers only

MAX_CHARS = 128 * 1024
MAX_REGEX_CHARS = 16 * 1024
MAX_CHOICES = 4096
SHOWN_CHARS = 300

# One space after `:` and `,` and no other white space: what models write by themselves, and nothing to run away in.
JSON_STYLE: JsonCompileOptions = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
# Unions of models arrive as oneOf. llguidance can only take it as anyOf, which is the same where the arms differ.
JSON_DEFAULTS: JsonCompileOptions = {"coerce_one_of": True}


def grammar_for(request: GenerateRequest) -> str | None:
    """The grammar that the answer's text must follow; None when any text will do.

    Raises `InvalidRequest` for what cannot be compiled, with the field and a short reason; `UnsupportedParameter` for a
    kind that is not built in.
    """
    structured, wanted = request.structured_outputs, request.response_format
    if structured is not None:
        if wanted is not None and wanted.get("type") != "text":
            raise InvalidRequest(
                "Set either response_format or structured_outputs, not both.",
                param="structured_outputs",
                code="invalid_parameter_combination",
            )
        return _from_structured_outputs(structured)
    return None if wanted is None else _from_response_format(wanted)


def check_tools(tools: Sequence[Mapping[str, Any]], tool_choice: str | Mapping[str, Any] | None) -> None:
    """Compile the parameters of every tool whose calls would be constrained. Raises `InvalidRequest`."""
    is_forced = isinstance(tool_choice, Mapping) or tool_choice == "required"
    for at, tool in enumerate(tools):
        function = tool.get("function")
        if isinstance(function, Mapping) and (is_forced or function.get("strict")):
            parameters = function.get("parameters")
            grammar_from_schema({} if parameters is None else parameters, f"tools[{at}].function.parameters")


def grammar_from_schema(schema: object, param: str) -> str:
    """A JSON value that fits `schema`, an object, a boolean, or the text of one."""
    text = schema if isinstance(schema, str) else _dump(schema, param)
    _check_size(text, MAX_CHARS, param)
    try:
        decoded = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid(param, f"not JSON: {error}") from None
    decoded = {} if decoded is True else decoded
    if not isinstance(decoded, dict):
        raise _invalid(param, "a JSON schema is an object")
    try:
        grammar = LLMatcher.grammar_from_json_schema(decoded, defaults=JSON_DEFAULTS, overrides=JSON_STYLE)
    except (ValueError, RecursionError) as error:
        raise _invalid(param, str(error)) from None
    problem = LLMatcher.validate_grammar(grammar)
    if problem:
        raise _invalid(param, _broken_pattern(decoded) or problem)
    return grammar


def grammar_from_regex(regex: object, param: str) -> str:
    """A text that matches the whole of `regex`."""
    text = _text(regex, param)
    _check_size(text, MAX_REGEX_CHARS, param)
    return _checked(LLMatcher.grammar_from_regex(text), param)


def grammar_from_choice(choices: object, param: str) -> str:
    """One of several texts."""
    if not isinstance(choices, list | tuple) or not choices:
        raise _invalid(param, "expected an array of at least one string")
    if len(choices) > MAX_CHOICES:
        raise _invalid(param, f"{len(choices)} choices are too many; allowed: up to {MAX_CHOICES}")
    texts = [_text(choice, f"{param}[{at}]") for at, choice in enumerate(choices)]
    _check_size("".join(texts), MAX_CHARS, param)
    return _checked(LLMatcher.grammar_from_lark("start: " + " | ".join(_quoted(text) for text in texts)), param)


def grammar_from_text(grammar: object, param: str) -> str:
    """A text that a grammar describes, written as llguidance's Lark or llama.cpp's GBNF."""
    text = _text(grammar, param)
    _check_size(text, MAX_CHARS, param)
    try:
        return _checked(grammar_from("grammar", text), param)
    except (ValueError, RecursionError) as error:
        raise _invalid(param, str(error)) from None


def _from_response_format(wanted: Mapping[str, Any]) -> str | None:
    kind = wanted.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return grammar_from_schema({"type": "object"}, "response_format")
    described = wanted.get("json_schema")
    if kind == "json_schema" and isinstance(described, Mapping):
        if described.get("schema") is None:
            raise InvalidRequest(
                "Missing required parameter: 'response_format.json_schema.schema'.",
                param="response_format.json_schema.schema",
                code="missing_required_parameter",
            )
        return grammar_from_schema(described["schema"], "response_format")
    raise UnsupportedParameter("This kind of response_format is not supported.", param="response_format.type")


def _from_structured_outputs(structured: Mapping[str, Any]) -> str | None:
    given = {kind: value for kind, value in structured.items() if value is not None and value is not False}
    for kind in given:
        if kind not in BUILDERS and kind != "json_object":
            param = f"structured_outputs.{kind[:60]}"
            raise UnsupportedParameter(f"'{param}' is not supported.", param=param)
    if len(given) > 1:
        raise InvalidRequest(
            f"Set exactly one of structured_outputs' fields, not {' and '.join(sorted(given))}.",
            param="structured_outputs",
            code="invalid_parameter_combination",
        )
    for kind, value in given.items():
        if kind == "json_object":
            return grammar_from_schema({"type": "object"}, "structured_outputs.json_object")
        return BUILDERS[kind](value, f"structured_outputs.{kind}")
    return None


BUILDERS = {
    "json": grammar_from_schema,
    "regex": grammar_from_regex,
    "choice": grammar_from_choice,
    "grammar": grammar_from_text,
}


def _broken_pattern(schema: object) -> str | None:
    """The first `pattern` in a schema that is no regular expression, and why: the report of the whole names none."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            pattern = value.get("pattern")
            if isinstance(pattern, str):
                problem = LLMatcher.validate_grammar(LLMatcher.grammar_from_regex(pattern))
                if problem:
                    return f"pattern {pattern[:60]!r}: {_reason(problem)}"
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
    return None


def _checked(grammar: str, param: str) -> str:
    problem = LLMatcher.validate_grammar(grammar)
    if problem:
        raise _invalid(param, problem)
    return grammar


def _invalid(param: str, reason: str) -> InvalidRequest:
    """With a short reason: of a long report, the line that says what is wrong."""
    code = None if param == "response_format" or param.startswith("tools[") else "invalid_value"
    return InvalidRequest(f"Invalid '{param}': {_reason(reason)[:SHOWN_CHARS]}", param=param, code=code)


def _reason(report: str) -> str:
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    line = next((line for line in lines if line.startswith("error: ")), lines[0] if lines else "it cannot be compiled")
    return line.removeprefix("error: ")


def _check_size(text: str, limit: int, param: str) -> None:
    if len(text) > limit:
        raise _invalid(param, f"{len(text)} characters are too many; allowed: up to {limit}")


def _text(value: object, param: str) -> str:
    if not isinstance(value, str):
        raise _invalid(param, "expected a string")
    return value


def _dump(schema: object, param: str) -> str:
    try:
        return msgspec.json.encode(schema).decode()
    except (TypeError, RecursionError) as error:
        raise _invalid(param, str(error)) from None


def _quoted(text: str) -> str:
    """As a literal of the Lark dialect, which reads JSON's escapes."""
    return json.dumps(text, ensure_ascii=False)
