"""The field `script`: what is refused, and the tokens a choice gets out of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from backends.errors import InvalidRequest
from backends.script import Script, part_of, prompt_logprob, read_script


def _read(script: object) -> Script:
    made = read_script({"script": script})
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ([], "script: an array of 0 does not fit"),
        ({"tokens": ["a", "b", "c", 5]}, "script.tokens[3]: 5 does not fit"),
        ({"tokens": [{"bytes": [1, 256]}]}, "script.tokens[0].bytes[1]: 256 is out of range; allowed: >= 0 and <= 255"),
        ({"tokens": [{"byte": [1]}]}, "script.tokens[0].byte: unknown option"),
        ({"tokens": "abc"}, 'script.tokens: "abc" does not fit'),
        ({"eos": 1}, "script.eos: 1 does not fit; allowed: true or false"),
        ({"logprobs": ["inf"]}, 'script.logprobs[0]: "inf" does not fit'),
        ({"top": [{"a": "b"}]}, 'script.top[0].a: "b" does not fit'),
        ({"choices": [{}, {"tokens": [None]}]}, "script.choices[1].tokens[0]: null does not fit"),
        ({"tool_calls": [{"arguments": []}]}, "script.tool_calls[0].name: missing"),
        ({"delay_s": -1}, "script.delay_s: -1 is out of range; allowed: >= 0"),
        ({"fail": {"after_tokens": 1}}, "script.fail.kind: missing"),
        ({"fail": {"kind": "explode"}}, 'script.fail.kind: "explode" does not fit; allowed: "bad_request"'),
        ({"cached_tokens": -1}, "script.cached_tokens: -1 is out of range"),
        ({"token": []}, "script.token: unknown option"),
    ],
)
def test_a_bad_script_is_refused_by_place(script: object, problem: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read_script({"script": script})

    assert caught.value.message.startswith(problem)
    assert caught.value.param == "script"


@pytest.mark.parametrize("extra", [{}, {"script": None}, {"other": 1}])
def test_no_script_is_no_script(extra: dict[str, Any]) -> None:
    assert read_script(extra) is None


def test_a_part_is_reasoning_then_text_then_calls() -> None:
    script = _read(
        {
            "tool_calls": [{"name": "f", "arguments": ["{", "}"]}, {"name": "g"}],
            "tokens": ["a", {"bytes": [195]}],
            "reasoning": ["hm"],
        }
    )

    tokens = part_of(script, 0, 100).tokens

    assert [(token.kind, token.data, token.call, token.name) for token in tokens] == [
        ("reasoning", b"hm", 0, None),
        ("text", b"a", 0, None),
        ("text", b"\xc3", 0, None),
        ("call", b"{", 0, "f"),
        ("call", b"}", 0, None),
        ("call", b"", 1, "g"),
    ]


def test_logprobs_go_with_the_text_tokens_by_position() -> None:
    script = _read(
        {
            "reasoning": ["hm"],
            "tokens": ["a", "b", "c"],
            "logprobs": ["-inf", "nan"],
            "top": [{"x": -2, "a": -1, "n": "nan", "i": "-inf"}],
        }
    )

    _, first, second, third = part_of(script, 0, 100).tokens

    assert (first.logprob, math.isnan(second.logprob), third.logprob) == (-math.inf, True, -0.5)
    assert [row.token for row in first.top] == ["a", "x", "i", "n"]
    assert second.top == ()


def test_a_choice_overrides_what_it_names_and_keeps_the_rest() -> None:
    script = _read({"tokens": ["a"], "logprobs": [-3], "choices": [{}, {"tokens": ["x", "y"], "eos": False}]})

    first, second, third = (part_of(script, choice, 100) for choice in range(3))

    assert first == third
    assert [token.data for token in second.tokens] == [b"x", b"y"]
    assert [token.logprob for token in second.tokens] == [-3, -0.5]
    assert (first.eos, second.eos) == (True, False)


def test_no_more_tokens_are_made_than_can_be_generated() -> None:
    assert len(part_of(_read({"tokens": ["a"] * 50}), 0, 7).tokens) == 7


def test_the_first_token_of_a_prompt_has_no_logprob() -> None:
    script = _read({"prompt_logprobs": [None, -2.5]})

    assert [prompt_logprob(script, at) for at in range(3)] == [None, -2.5, -1.0]
    assert [prompt_logprob(None, at) for at in range(2)] == [None, -1.0]
