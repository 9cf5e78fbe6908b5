"""Vectors on their way from a backend through lane and bill: what cannot be sent fails, and nothing stays."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import cast

import pytest

from backends.base import Backend
from backends.errors import BackendFailed, NotFinite, UnsupportedParameter
from backends.types import Chunk, EmbedRequest, FinishReason, Usage
from gateway.embedding import is_finite, vectors
from gateway.lanes import estimate_tokens

REQUEST = EmbedRequest(request_id="r", model="m", prompts=("a",))


class Embedder:
    """A backend that gives these vectors, and knows whether it was closed."""

    def __init__(self, *given: bytes | None) -> None:
        self._given = given
        self.is_closed = False

    async def embed(self, request: EmbedRequest) -> AsyncGenerator[Chunk, None]:
        try:
            for index, vector in enumerate(self._given):
                yield Chunk(usage=Usage(), index=index, vector=vector, finish_reason=FinishReason.STOP)
        finally:
            self.is_closed = True


def ask(backend: object) -> list[Chunk]:
    async def collect() -> list[Chunk]:
        async with aclosing(vectors(REQUEST, cast(Backend, backend))) as chunks:
            return [chunk async for chunk in chunks]

    return asyncio.run(collect())


def pack(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def test_vectors_come_through_as_they_are() -> None:
    assert [chunk.vector for chunk in ask(Embedder(pack(1, 2), pack(0, 0)))] == [pack(1, 2), pack(0, 0)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_vector_that_json_cannot_carry_fails_with_the_number_of_its_input(bad: float) -> None:
    """vllm-project/vllm#19661: a serializer's trace."""
    backend = Embedder(pack(1, 2), pack(1, bad))

    with pytest.raises(NotFinite, match=r"input 1 .*NaN or infinity"):
        ask(backend)

    assert backend.is_closed


@pytest.mark.parametrize("nothing", [None, b""])
def test_an_input_that_ends_without_a_vector_is_the_backends_failure(nothing: bytes | None) -> None:
    with pytest.raises(BackendFailed):
        ask(Embedder(nothing))


def test_a_backend_without_vectors_is_told_from_the_parameter_model() -> None:
    with pytest.raises(UnsupportedParameter) as caught:
        ask(object())

    assert (caught.value.param, "'m'" in caught.value.message) == ("model", True)


def test_the_size_of_a_request_in_its_lane_is_what_is_read() -> None:
    assert estimate_tokens(EmbedRequest(request_id="r", model="m", prompts=("a" * 40, (1, 2)))) == 1 + 10 + 2


def test_the_largest_float32s_and_infinities_that_cancel_are_told_apart() -> None:
    largest = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]

    assert is_finite(pack(*[largest] * 10_000))
    assert not is_finite(pack(math.inf, -math.inf))
