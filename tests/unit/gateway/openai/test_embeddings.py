"""The body of `/v1/embeddings` becomes the request that backends read, and vectors become the answer."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import msgspec
import pytest

from backends.types import Chunk, EmbedRequest, FinishReason, SamplingParams, Usage
from gateway.openai.caller import Caller
from gateway.openai.embeddings import EmbeddingsRequest, decode_embeddings

CALLER = Caller(request_id="r", tenant="acme", lane="batch", weight=2.0, deadline_at=5.0)
NUMBERS = (0.1, -2.5, 3e-8)
VECTOR = struct.pack("<3f", *NUMBERS)


def request(**members: Any) -> EmbeddingsRequest:
    return decode_embeddings(msgspec.json.encode({"model": "m", "input": "abc", **members}))


def chunk(index: int, vector: bytes = VECTOR, tokens: int = 3) -> Chunk:
    usage = Usage(prompt_tokens=tokens)
    return Chunk(usage=usage, index=index, vector=vector, finish_reason=FinishReason.STOP)


def test_a_plain_request_has_every_default_and_makes_no_token() -> None:
    assert request().to_generate(CALLER) == EmbedRequest(
        request_id="r",
        route="embeddings",
        model="m",
        prompts=("abc",),
        sampling=SamplingParams(max_tokens=0),
        tenant="acme",
        lane="batch",
        weight=2.0,
        deadline_at=5.0,
        body={"model": "m", "input": "abc"},
    )


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("a", ("a",)),
        ("", ("",)),
        (["a", ""], ("a", "")),
        ([1, 2], ((1, 2),)),
        ([[1, 2], [3]], ((1, 2), (3,))),
        (["a"] * 2048, ("a",) * 2048),
        (list(range(3000)), (tuple(range(3000)),)),
    ],
    ids=lambda value: str(value)[:30],
)
def test_an_input_comes_in_four_shapes(given: Any, prompts: tuple[Any, ...]) -> None:
    assert request(input=given).prompts == prompts


def test_what_a_client_asks_for_reaches_the_backend() -> None:
    asked = request(dimensions=64.0, truncate_prompt_tokens=-1, add_special_tokens=False, priority=5, user="u", zzz=1)

    generate = asked.to_generate(CALLER)

    assert (generate.dimensions, generate.truncate_to, generate.add_special_tokens) == (64, -1, False)
    assert (generate.extra, asked.lane_wish, asked.stream) == ({"zzz": 1}, "batch", False)


def test_null_is_the_same_as_absent() -> None:
    names = ("encoding_format", "dimensions", "user", "truncate_prompt_tokens", "add_special_tokens", "priority")
    nulls = dict.fromkeys([*names, "messages", "truncation_side", "embed_dtype"])

    assert (request(**nulls).fields, request(**nulls).extra) == (request().fields, {})


def test_vectors_are_listed_in_the_order_of_the_inputs_however_they_come() -> None:
    folder = request(input=["a", "b", "c"]).folder("r", 1)
    folder.add(Chunk(usage=Usage()))
    for index in (2, 0, 1):
        folder.add(chunk(index, struct.pack("<f", index), tokens=7))

    assert json.loads(folder.body()) == {
        "object": "list",
        "data": [{"object": "embedding", "index": index, "embedding": [float(index)]} for index in range(3)],
        "model": "m",
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }


def test_base64_is_the_float32s_and_says_the_same_as_the_numbers() -> None:
    """vllm-project/vllm#6744: twice the length, of float64; ollama/ollama#6934: numbers in spite of it."""
    shown = []
    for encoding in ("float", "base64"):
        folder = request(encoding_format=encoding).folder("r", 1)
        folder.add(chunk(0))
        shown.append(json.loads(folder.body())["data"][0]["embedding"])

    assert base64.b64decode(shown[1], validate=True) == VECTOR
    assert tuple(shown[0]) == struct.unpack("<3f", VECTOR)
    assert shown[0] == pytest.approx(NUMBERS)
