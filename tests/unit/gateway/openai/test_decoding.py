"""Bodies of every kind: what is no JSON object, what is odd and fine, and what random clients may send."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec import inspect as mi

from gateway.errors import InvalidBody
from gateway.openai import decoding
from gateway.openai.chat import ChatFields, decode_chat
from gateway.openai.completions import CompletionFields, decode_completion
from gateway.openai.decoding import decode_object, names_of, read
from gateway.openai.formats import FormatFields
from gateway.openai.sampling import SamplingFields
from gateway.openai.template import TemplateFields
from gateway.openai.tokens import DetokenizeBody, TokenizeBody, decode_detokenize, decode_tokenize
from gateway.openai.tools import ToolFields
from gateway.openai.unused import IgnoredFields, RefusedFields

GROUPS: tuple[type[Struct], ...] = (
    ChatFields,
    CompletionFields,
    SamplingFields,
    FormatFields,
    TemplateFields,
    ToolFields,
    IgnoredFields,
    RefusedFields,
    TokenizeBody,
    DetokenizeBody,
)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b'"x"',
        b'{"model":"m","messages":[}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":1e400}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}",
        b'{"a":' + b'{"a":' * 100_000,
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":"\\ud83d"}',
        b'{"a":"\\udc00"}',
        b'{"\\ud800":1}',
        b"{}{}",
    ],
    ids=lambda body: repr(body[:24]),
)
@pytest.mark.parametrize("decode", [decode_chat, decode_completion, decode_tokenize, decode_detokenize])
def test_what_is_no_json_object_is_refused_without_param_and_code(decode: Any, body: bytes) -> None:
    with pytest.raises(InvalidBody) as caught:
        decode(body)

    assert caught.value.message.startswith("We could not parse the JSON body of your request.")
    assert (caught.value.param, caught.value.code) == (None, None)


def test_a_byte_order_mark_is_dropped_and_of_duplicate_keys_the_last_wins() -> None:
    assert decode_object(b'\xef\xbb\xbf{"a":1,"a":2}') == {"a": 2}


@pytest.mark.parametrize("group", GROUPS)
def test_null_is_the_same_as_absent_for_every_optional_field(group: type[Struct]) -> None:
    info = mi.type_info(group)
    assert isinstance(info, mi.StructType)
    required: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}], "tokens": [1]}
    given_values = {field.encode_name: required[field.encode_name] for field in info.fields if field.required}
    nulls = {field.encode_name: None for field in info.fields if not field.required}

    assert read({**given_values, **nulls}, group) == read(given_values, group)


@pytest.mark.parametrize("group", GROUPS)
def test_every_number_of_a_body_is_bounded_so_that_no_engine_sees_a_huge_one(group: type[Struct]) -> None:
    def numbers(kind: Any) -> list[Any]:
        match kind:
            case mi.IntType() | mi.FloatType():
                return [kind]
            case mi.ListType():
                return numbers(kind.item_type)
            case mi.DictType():
                return numbers(kind.value_type)
            case mi.UnionType():
                return [number for option in kind.types for number in numbers(option)]
            case mi.StructType():
                return [number for field in kind.fields for number in numbers(field.type)]
        return []

    for number in numbers(mi.type_info(group)):
        assert number.le is not None
        assert number.ge is not None or number.gt is not None


@pytest.mark.parametrize("group", GROUPS)
def test_there_is_a_reader_for_every_type_that_a_body_uses(group: type[Struct]) -> None:
    assert callable(decoding._struct_reader(group))


def test_a_decimal_without_a_fraction_is_an_integer() -> None:
    assert read({"model": "m", "n": 2.0, "top_k": 20.0, "stop_token_ids": [1.0]}, SamplingFields) == read(
        {"model": "m", "n": 2, "top_k": 20, "stop_token_ids": [1]}, SamplingFields
    )


# Values that resemble what fields take, so that random bodies come far.
names = st.sampled_from([*sorted({name for group in GROUPS for name in names_of(group)}), "zzz", "script"])
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 130),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["user", "assistant", "tool", "text", "function", "auto", "json_schema", "image_url", "custom"]),
)
keys = st.sampled_from(
    [
        "role",
        "content",
        "type",
        "text",
        "function",
        "name",
        "arguments",
        "tool_calls",
        "id",
        "json_schema",
        "schema",
        "5",
    ]
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
)
bodies = st.dictionaries(names, values, max_size=6)
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system", "robot"])},
        optional={"content": values, "tool_calls": values, "name": values, "tool_call_id": values},
    ),
    min_size=1,
    max_size=3,
)


@given(body=bodies, messages=messages)
@settings(max_examples=300, deadline=None)
def test_a_random_body_is_read_or_refused_and_nothing_else(body: dict[str, Any], messages: list[Any]) -> None:
    for decode in (decode_chat, decode_completion, decode_tokenize, decode_detokenize):
        for whole in (body, {**body, "model": "m", "messages": messages}, {"model": "m", "prompt": "x", **body}):
            try:
                decode(msgspec.json.encode(whole))
            except InvalidBody as fault:
                assert fault.message
                assert fault.message.encode()


@given(body=bodies, messages=messages)
@settings(max_examples=200, deadline=None)
def test_the_fast_way_accepts_nothing_that_the_careful_way_refuses(body: dict[str, Any], messages: list[Any]) -> None:
    present = {name: value for name, value in {"model": "m", "messages": messages, **body}.items() if value is not None}
    for group in GROUPS:
        try:
            fast = msgspec.convert(present, group)
        except msgspec.ValidationError:
            continue
        assert decoding._struct_reader(group)(present, "") == fast


@given(raw=st.binary(max_size=40))
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidBody):
        decode_chat(raw)
