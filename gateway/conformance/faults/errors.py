"""Errors: inside streams and before them, from backends, and of bodies that cannot be read."""

from __future__ import annotations

import gzip
import json
import zlib
from typing import Any

import zstandard

from gateway.conformance.case import Group, Need
from gateway.conformance.probe import Probe
from gateway.conformance.reply import Reply, expect, same
from gateway.conformance.vectors import CHAT, COMPLETIONS, RESPONSES

errors = Group("errors")
FOUR = ["one", " two", " three", " four"]
JSON = {"content-type": "application/json"}
MIB = 1 << 20
BOMB_MIB = 1024


def failing(kind: str, after_tokens: int, **more: Any) -> dict[str, Any]:
    """A script that breaks after some tokens."""
    return {"tokens": FOUR, "fail": {"kind": kind, "after_tokens": after_tokens, **more}}


def bomb(num_mib: int) -> bytes:
    """So many MiB of zeros, packed with gzip: the same small block over and over."""
    packer = zlib.compressobj(9, wbits=31)
    first = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(MIB)) + packer.flush(zlib.Z_FULL_FLUSH)
    return first + block * (num_mib - 1)


async def check_alive(probe: Probe) -> None:
    """A plain request comes through."""
    reply = await probe.send(CHAT, probe.chat_body("hi"))
    expect(reply.status == 200, "the next plain request is answered with 200")


async def too_long(probe: Probe, route: str, **more: Any) -> Reply:
    """A prompt of one token more than the model's whole context, or of some more."""
    text = "word " * ((probe.target.window or 0) + 1)
    given: dict[str, dict[str, Any]] = {
        CHAT: {"messages": [{"role": "user", "content": text}]},
        COMPLETIONS: {"prompt": text},
    }
    return await probe.send(route, {"model": probe.model, **given.get(route, {"input": text}), **more})


@errors.case(
    "B23",
    "A failure inside a stream is an event with the error, not a good end",
    "ggml-org/llama.cpp#14566",
    needs=(Need.SCRIPT,),
)
async def failures_are_events(probe: Probe) -> None:
    reply = await probe.chat(stream=True, script=failing("crash", 3))
    reply.failure()
    same(reply.text(), "one two three", "the text before the failure")


@errors.case(
    "B24",
    "A failure inside a streamed completion has the four keys of an error",
    "huggingface/text-generation-inference#2668",
    needs=(Need.SCRIPT, Need.COMPLETIONS),
)
async def completions_fail_in_the_envelope(probe: Probe) -> None:
    reply = await probe.complete(stream=True, script=failing("crash", 3))
    reply.failure()
    same(reply.text(), "one two three", "the text before the failure")


@errors.case(
    "B25",
    "A stream whose backend just stops ends with an error",
    "huggingface/transformers#38443",
    needs=(Need.SCRIPT,),
)
async def no_silent_end(probe: Probe) -> None:
    (await probe.chat(stream=True, script=failing("end", 3))).failure()


@errors.case(
    "B26",
    "A prompt beyond the context is refused with a status, also when it asks for a stream",
    "BerriAI/litellm#6629",
    needs=(Need.WINDOW,),
)
async def overflow_before_the_stream(probe: Probe) -> None:
    (await too_long(probe, CHAT, stream=True)).error(400, code="context_length_exceeded")


@errors.case(
    "B27",
    "What a backend says in the middle of a stream is passed on in the envelope",
    "BerriAI/litellm#40578",
    needs=(Need.SCRIPT,),
)
async def backend_errors_are_passed_on(probe: Probe) -> None:
    reply = await probe.chat(stream=True, script=failing("unavailable", 2, message="gpu lost"))
    error = reply.failure()
    expect("gpu lost" in error["message"], "the message has the backend's words, gpu lost", error)
    same(reply.text(), "one two", "the text before the failure")


@errors.case(
    "B28",
    "A backend's 429 stays a 429, with its time to come back",
    "BerriAI/litellm#23901",
    "BerriAI/litellm#4259",
    needs=(Need.SCRIPT,),
)
async def rate_limits_are_passed_on(probe: Probe) -> None:
    for stream in (False, True):
        script = failing("rate_limited", 0, retry_after_s=7)
        reply = await probe.send(CHAT, probe.chat_body(stream=stream, script=script))
        reply.error(429, code="rate_limit_exceeded")
        same(reply.headers.get("retry-after"), "7", "the header retry-after")


@errors.case(
    "B29",
    "The code of an error is a text, and all is under `error`",
    "BerriAI/litellm#4970",
    "vllm-project/vllm#12886",
    "sgl-project/sglang#33504",
)
async def codes_are_texts(probe: Probe) -> None:
    (await probe.send(CHAT, {**probe.chat_body("hi"), "model": "nope"})).error(404, code="model_not_found")


@errors.case("B30", "A wrong key is refused in the same envelope", "BerriAI/litellm#1554", needs=(Need.KEY,))
async def wrong_keys_are_told(probe: Probe) -> None:
    wrong = {"authorization": "Bearer sk-wrong-0123456789"}
    reply = await probe.send(CHAT, probe.chat_body("hi"), headers=wrong)
    reply.error(401, code="invalid_api_key")


@errors.case("B31", "No default backend answers for a model that is not there", "BerriAI/litellm#27030")
async def unknown_models_are_refused(probe: Probe) -> None:
    for stream in (False, True):
        body = {**probe.chat_body("hi"), "model": "gpt-does-not-exist", "stream": stream}
        (await probe.send(CHAT, body)).error(404, code="model_not_found")


@errors.case("B32", "Broken JSON is a 400 in the envelope", "sgl-project/sglang#3805")
async def broken_json(probe: Probe) -> None:
    body = f'{{"model":{json.dumps(probe.model)},"messages":[}}'.encode()
    (await probe.send(CHAT, body, headers=JSON)).error(400)


@errors.case("B33", "A body without a content type is read, or refused with 415", "vllm-project/vllm#11171")
async def content_types(probe: Probe) -> None:
    body = json.dumps(probe.chat_body("hi")).encode()
    for content_type in (None, "text/plain"):
        reply = await probe.send(CHAT, body, headers={"content-type": content_type})
        if reply.status != 200:
            reply.error(415)


@errors.case(
    "B34",
    "A prompt beyond the context is told with its code, the limit and the count",
    "vllm-project/vllm#37011",
    needs=(Need.WINDOW,),
)
async def overflow_has_its_code(probe: Probe) -> None:
    error = (await too_long(probe, CHAT)).error(400, code="context_length_exceeded")
    expect(error["param"] is not None, "param names the field", error)
    window = str(probe.target.window)
    numbers = "".join(char if char.isdigit() else " " for char in error["message"].replace(",", "")).split()
    expect(window in numbers and len(set(numbers)) > 1, f"the message has the limit, {window}, and the count", error)
    expect("maximum context length" in error["message"], "the message has the words maximum context length", error)


@errors.case(
    "B35",
    "A prompt beyond the context is told alike on every route",
    "ggml-org/llama.cpp#19774",
    needs=(Need.WINDOW, Need.COMPLETIONS, Need.RESPONSES),
)
async def overflow_is_the_same_everywhere(probe: Probe) -> None:
    for route in (CHAT, COMPLETIONS, RESPONSES):
        (await too_long(probe, route)).error(400, code="context_length_exceeded")


@errors.case("B36", "Half a surrogate pair kills nothing", "raullenchai/Rapid-MLX#730", "JustVugg/colibri#1589")
async def lone_surrogates(probe: Probe) -> None:
    reply = await probe.send(CHAT, probe.chat_body("\ud83d"))
    if reply.status != 200:
        reply.error(400)
    await check_alive(probe)


@errors.case(
    "B37",
    "Packed bodies are read, and a small one that unpacks to a gigabyte is refused",
    "QuantumNous/new-api#4913",
    "ollama/ollama#12386",
)
async def packed_bodies(probe: Probe) -> None:
    body = json.dumps(probe.chat_body("hi")).encode()
    for coding, packed in (("gzip", gzip.compress(body)), ("zstd", zstandard.compress(body))):
        reply = await probe.send(CHAT, packed, headers=JSON | {"content-encoding": coding})
        expect(reply.status == 200, f"a body packed with {coding} is answered with 200")
    reply = await probe.send(CHAT, bomb(BOMB_MIB), headers=JSON | {"content-encoding": "gzip"})
    reply.error(413)
    await check_alive(probe)
