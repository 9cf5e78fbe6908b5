"""Embeddings: the same vectors in both encodings, of the length that was asked for."""

from __future__ import annotations

import base64
import binascii
import math
import struct
from typing import Any

from gateway.conformance.case import Group, Need
from gateway.conformance.probe import Probe
from gateway.conformance.reply import Mismatch, Reply, expect, same
from gateway.conformance.vectors import EMBEDDINGS

embeddings = Group("embeddings")
VECTORS = (Need.EMBEDDINGS,)
TEXTS = ["one text", "another text"]


def vectors(reply: Reply) -> list[Any]:
    """The vectors, in their order."""
    data = reply.json["data"]
    same([item["index"] for item in data], list(range(len(data))), "the indexes")
    return [item["embedding"] for item in data]


def numbers(encoded: Any) -> list[float]:
    """The numbers of a vector in base64: float32, little-endian."""
    expect(isinstance(encoded, str), "the vector is a text in base64", encoded)
    try:
        data = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        raise Mismatch("the vector is a text in base64", encoded) from None
    expect(len(data) % 4 == 0, "the vector has four bytes a number", len(data))
    return list(struct.unpack(f"<{len(data) // 4}f", data))


@embeddings.case(
    "B83",
    "base64 and float are the same vectors",
    "vllm-project/vllm#6744",
    "vllm-project/vllm#6174",
    "vllm-project/vllm#5734",
    needs=VECTORS,
)
async def same_vectors(probe: Probe) -> None:
    packed = [numbers(vector) for vector in vectors(await probe.embed(TEXTS, encoding_format="base64"))]
    plain = vectors(await probe.embed(TEXTS, encoding_format="float"))
    same(len(packed), len(plain), "the number of vectors")
    for one, other in zip(packed, plain, strict=True):
        same(len(one), len(other), "the length of a packed vector")
        near = all(math.isclose(a, b, rel_tol=1e-3, abs_tol=1e-5) for a, b in zip(one, other, strict=True))
        expect(near, "the numbers of both are equal", (one[:4], other[:4]))


@embeddings.case(
    "B84",
    "base64 is a text of four bytes a number",
    "ollama/ollama#6934",
    "lmstudio-ai/lmstudio-bug-tracker#756",
    "sgl-project/sglang#28803",
    needs=VECTORS,
)
async def base64_is_a_text(probe: Probe) -> None:
    (packed,) = vectors(await probe.embed("one text", encoding_format="base64"))
    (plain,) = vectors(await probe.embed("one text", encoding_format="float"))
    same(len(numbers(packed)), len(plain), "the number of numbers")


@embeddings.case("B85", "A vector that is no number is told", "vllm-project/vllm#19661", needs=(*VECTORS, Need.SCRIPT))
async def no_number(probe: Probe) -> None:
    body = probe.embedding_body("one text", script={"vectors": [["nan", 1.0]]})
    error = (await probe.send(EMBEDDINGS, body)).error(500)
    expect(len(error["message"]) > 20, "the message says what went wrong", error)
    await probe.embed("one text")


@embeddings.case("B86", "dimensions are obeyed, or refused", "BerriAI/litellm#28239", needs=VECTORS)
async def dimensions(probe: Probe) -> None:
    size = len(vectors(await probe.embed("one text", encoding_format="float"))[0])
    reply = await probe.send(EMBEDDINGS, probe.embedding_body("one text", dimensions=4 * size))
    same(reply.error(400)["param"], "dimensions", "param")
    body = probe.embedding_body("one text", dimensions=size // 4, encoding_format="float")
    reply = await probe.send(EMBEDDINGS, body)
    if reply.status == 400:  # a model whose vectors cannot be cut
        same(reply.error(400)["param"], "dimensions", "param")
        return
    (vector,) = vectors(reply)
    same(len(vector), size // 4, "the number of numbers")
    expect(math.isclose(math.hypot(*vector), 1, rel_tol=1e-3), "the vector has length 1", math.hypot(*vector))
