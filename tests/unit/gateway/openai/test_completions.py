"""A completion's body becomes the request that backends read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backends.types import GenerateRequest, SamplingParams
from gateway.openai.caller import Caller
from gateway.openai.completions import decode_completion


def generate(**members: Any) -> GenerateRequest:
    return decode_completion(msgspec.json.encode({"model": "m", **members})).to_generate(Caller(request_id="r"))


def test_a_plain_completion_has_every_default() -> None:
    assert generate(prompt="abc") == GenerateRequest(
        request_id="r",
        route="completions",
        model="m",
        prompts=("abc",),
        sampling=SamplingParams(max_tokens=16),
        body={"model": "m", "prompt": "abc"},
    )


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        (None, ("",)),
        ("", ("",)),
        ("a", ("a",)),
        (["a", ""], ("a", "")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
    ],
    ids=str,
)
def test_a_prompt_comes_in_four_shapes_or_not_at_all(prompt: Any, prompts: tuple[Any, ...]) -> None:
    assert generate(prompt=prompt).prompts == prompts


def test_scoring_asks_for_the_prompts_logprobs_too() -> None:
    sampling = generate(prompt=[1, 2], max_tokens=0, echo=True, logprobs=1).sampling

    assert (sampling.max_tokens, sampling.echo, sampling.logprobs, sampling.prompt_logprobs) == (0, True, 1, 1)


def test_best_of_reaches_the_backend_only_where_it_means_something() -> None:
    assert generate(best_of=2, n=2).sampling.best_of is None
    assert generate(best_of=3, n=2).sampling.best_of == 3


def test_special_tokens_are_added_unless_the_client_says_otherwise() -> None:
    assert generate(prompt="x").add_special_tokens
    assert not generate(prompt="x", add_special_tokens=False).add_special_tokens


def test_formats_bind_completions_too_and_unknown_fields_are_kept() -> None:
    request = generate(prompt="x", guided_regex="a+", response_format={"type": "json_object"}, script={})

    assert request.structured_outputs == {"regex": "a+"}
    assert request.response_format == {"type": "json_object"}
    assert request.extra == {"script": {}}
