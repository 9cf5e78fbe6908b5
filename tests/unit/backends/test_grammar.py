"""Schemas, regexes, choices and grammars as checked llguidance grammars."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from backends.errors import InvalidRequest, UnsupportedParameter
from backends.grammar import (
    MAX_CHARS,
    check_tools,
    grammar_for,
    grammar_from_choice,
    grammar_from_regex,
    grammar_from_schema,
    grammar_from_text,
)
from backends.types import GenerateRequest

BYTES = LLTokenizer("byte")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "integer"}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}


def _accepts(grammar: str, text: str) -> bool:
    matcher = LLMatcher(BYTES, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


def _request(**fields: Any) -> GenerateRequest:
    return GenerateRequest(request_id="r", route="chat", model="m", **fields)


def test_a_schema_accepts_one_space_after_colon_and_comma_and_no_other_white_space() -> None:
    grammar = grammar_from_schema(PERSON, "response_format")
    value = {"name": "Zoë", "tags": [1, 2]}

    assert _accepts(grammar, json.dumps(value, ensure_ascii=False))
    assert not _accepts(grammar, json.dumps(value, indent=1, ensure_ascii=False))
    assert not _accepts(grammar, '{"name":  "Zoe", "tags": []}')
    assert not _accepts(grammar, '{"name": "Zoe"}')


def test_a_schema_cannot_bring_back_free_white_space() -> None:
    grammar = grammar_from_schema(PERSON | {"x-guidance": {"whitespace_flexible": True}}, "response_format")

    assert not _accepts(grammar, '{"name":\n"Zoe", "tags": []}')


def test_one_of_is_taken_as_any_of() -> None:
    grammar = grammar_from_schema({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, "response_format")

    assert _accepts(grammar, "12")
    assert _accepts(grammar, "true")


@pytest.mark.parametrize("schema", [True, {}, "{}", '{"type": "object"}'])
def test_open_schemas_and_schemas_as_text_compile(schema: object) -> None:
    assert _accepts(grammar_from_schema(schema, "structured_outputs.json"), '{"a": [1, null]}')


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "banana"}, "banana"),
        ({"$ref": "#/$defs/none"}, "does not exist"),
        ({"not": {"type": "string"}}, "not"),
        ({"properties": {"a": {"items": [{"pattern": "("}]}}}, r"pattern '\(': unclosed group"),
        ([], "object"),
        (False, "object"),
        ("{", "not JSON"),
        ({"description": "x" * MAX_CHARS}, "too many"),
    ],
)
def test_a_schema_that_cannot_be_compiled_is_a_bad_request_with_a_short_reason(schema: object, reason: str) -> None:
    with pytest.raises(InvalidRequest, match=reason) as caught:
        grammar_from_schema(schema, "response_format")

    assert caught.value.param == "response_format"
    assert len(caught.value.message) < 400


def test_a_schema_nested_without_end_is_refused_and_not_a_crash() -> None:
    with pytest.raises(InvalidRequest):
        grammar_from_schema('{"items":' * 5000 + "{}" + "}" * 5000, "response_format")


def test_a_regex_is_matched_whole() -> None:
    grammar = grammar_from_regex(r"[a-c]{2}\d", "structured_outputs.regex")

    assert _accepts(grammar, "ab1")
    assert not _accepts(grammar, "ab12")


@pytest.mark.parametrize("regex", ["(", "(?<=a)b", "a" * 20_000, 5])
def test_a_bad_regex_is_a_bad_request(regex: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammar_from_regex(regex, "structured_outputs.regex")

    assert (caught.value.param, caught.value.code) == ("structured_outputs.regex", "invalid_value")


@pytest.mark.parametrize("choice", ["yes", 'a "b" \\ c', "é\n\t🎉", "a/b | c", ""])
def test_a_choice_is_taken_letter_by_letter(choice: str) -> None:
    grammar = grammar_from_choice([choice, "other"], "structured_outputs.choice")

    assert _accepts(grammar, choice)
    assert _accepts(grammar, "other")
    assert not _accepts(grammar, choice + "x")


@pytest.mark.parametrize("choices", [[], "yes", ["a", 1], ["a"] * 5000])
def test_bad_choices_are_a_bad_request(choices: object) -> None:
    with pytest.raises(InvalidRequest):
        grammar_from_choice(choices, "structured_outputs.choice")


@pytest.mark.parametrize("grammar", ['start: "a" | "b"', 'root ::= "a" | "b"'])
def test_grammars_may_be_written_as_lark_or_as_gbnf(grammar: str) -> None:
    checked = grammar_from_text(grammar, "structured_outputs.grammar")

    assert _accepts(checked, "b")
    assert not _accepts(checked, "c")


@pytest.mark.parametrize("grammar", ["start: missing", "nonsense", 'root ::= "a', ""])
def test_a_bad_grammar_is_a_bad_request(grammar: str) -> None:
    with pytest.raises(InvalidRequest):
        grammar_from_text(grammar, "structured_outputs.grammar")


def test_a_request_without_a_format_has_no_grammar() -> None:
    assert grammar_for(_request()) is None
    assert grammar_for(_request(response_format={"type": "text"})) is None


def test_formats_of_a_request_become_grammars() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}

    assert _accepts(grammar_for(_request(response_format={"type": "json_object"})) or "", '{"a": 1}')
    assert not _accepts(grammar_for(_request(response_format={"type": "json_object"})) or "", "1")
    assert _accepts(grammar_for(_request(response_format=schema)) or "", '{"name": "a", "tags": []}')
    assert _accepts(grammar_for(_request(structured_outputs={"choice": ["a", "b"], "regex": None})) or "", "b")
    assert _accepts(grammar_for(_request(structured_outputs={"json_object": True})) or "", "{}")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_what_is_wrong_with_a_format_is_named(fields: Mapping[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        grammar_for(_request(**fields))

    assert caught.value.param == param


def test_a_kind_that_is_not_built_in_is_refused_and_not_ignored() -> None:
    with pytest.raises(UnsupportedParameter):
        grammar_for(_request(structured_outputs={"structural_tag": "{}"}))


@pytest.mark.parametrize(
    ("strict", "choice", "is_bad"), [(True, None, True), (None, "required", True), (None, "auto", False)]
)
def test_parameters_of_tools_are_compiled_only_where_calls_are_constrained(
    strict: bool | None, choice: str | None, is_bad: bool
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "banana"}, "strict": strict}}]
    if not is_bad:
        check_tools(tools, choice)
        return

    with pytest.raises(InvalidRequest) as caught:
        check_tools(tools, choice)

    assert (caught.value.param, caught.value.code) == ("tools[0].function.parameters", None)
