"""Limits and sampling: caps that hold, and ids that no vocabulary has."""

from __future__ import annotations

from gateway.conformance.case import Group, Need
from gateway.conformance.faults.errors import check_alive
from gateway.conformance.probe import Probe
from gateway.conformance.reply import expect, same
from gateway.conformance.vectors import CHAT

sampling = Group("sampling")
LONG = "Write a long story about the sea."
TWENTY = {"tokens": [f" w{number}" for number in range(20)]}


async def check_refused(probe: Probe, route: str = CHAT, **fields: object) -> None:
    """A change that is refused with 400, naming its first field, and after which the server lives on."""
    body = probe.chat_body("hi") if route == CHAT else probe.body("max_tokens", {"prompt": "hi"})
    error = (await probe.send(route, body | fields)).error(400)
    field = next(iter(fields))
    expect(str(error["param"]).partition("[")[0] == field, f"param names {field}", error)
    await check_alive(probe)


@sampling.case("B38", "max_completion_tokens ends an answer", "ggml-org/llama.cpp#13700")
async def newer_cap(probe: Probe) -> None:
    for stream in (False, True):
        more = {"stream_options": {"include_usage": True}} if stream else {}
        reply = await probe.chat(LONG, max_completion_tokens=3, stream=stream, script=TWENTY, **more)
        same((reply.finish(), reply.usage["completion_tokens"]), ("length", 3), "finish_reason and completion_tokens")


@sampling.case("B39", "max_tokens ends a completion", "ggml-org/llama.cpp#8634", needs=(Need.COMPLETIONS,))
async def cap_of_completions(probe: Probe) -> None:
    reply = await probe.complete("a b c", max_tokens=2, script=TWENTY)
    same((reply.finish(), reply.usage["completion_tokens"]), ("length", 2), "finish_reason and completion_tokens")


@sampling.case("B40", "max_tokens null is the default of 16", "vllm-project/vllm#19862", needs=(Need.COMPLETIONS,))
async def null_cap(probe: Probe) -> None:
    reply = await probe.complete("x", max_tokens=None, script=TWENTY)
    expect(reply.usage["completion_tokens"] <= 16, "completion_tokens is at most 16", reply.usage)
    if probe.scripted:
        same((reply.finish(), reply.usage["completion_tokens"]), ("length", 16), "finish_reason and completion_tokens")


@sampling.case("B41", "A cap beyond the context is cut to what is left", "vllm-project/vllm#42474")
async def cap_beyond_the_window(probe: Probe) -> None:
    if probe.target.strict:
        reply = await probe.send(CHAT, probe.chat_body("hi", max_tokens=10_000_000))
        reply.error(400, param="max_tokens")
        return
    reply = await probe.chat("Say hi.", max_tokens=10_000_000, stop=["."], script={"tokens": ["hi", "."]})
    expect(reply.finish() in ("stop", "length"), "finish_reason is stop or length")


@sampling.case("B42", "max_tokens -1 is refused, or means no cap", "abetlen/llama-cpp-python#1645")
async def negative_cap(probe: Probe) -> None:
    reply = await probe.send(CHAT, probe.chat_body("Say hi.", max_tokens=-1, script={"tokens": ["hi"]}))
    if reply.status == 200:
        same(reply.finish(), "stop", "finish_reason where -1 is allowed")
    else:
        reply.error(400, param="max_tokens", code="integer_below_min_value")


@sampling.case("B43", "logit_bias of an id beyond the vocabulary is refused", "vllm-project/vllm#16529")
async def bias_beyond_the_vocabulary(probe: Probe) -> None:
    await check_refused(probe, logit_bias={"99999999": 5})


@sampling.case("B44", "logit_bias of what is no id is refused", "vllm-project/vllm#5963")
async def bias_of_a_word(probe: Probe) -> None:
    await check_refused(probe, logit_bias={"cat": 5})


@sampling.case("B45", "logit_bias of a negative id is refused", "sgl-project/sglang#7670")
async def bias_of_a_negative_id(probe: Probe) -> None:
    await check_refused(probe, logit_bias={"-1": 1})


@sampling.case("B46", "A stop id beyond the vocabulary is refused", "vllm-project/vllm#54196", needs=(Need.EXTENSIONS,))
async def stop_beyond_the_vocabulary(probe: Probe) -> None:
    await check_refused(probe, stop_token_ids=[2147483648], min_tokens=2)


@sampling.case("B47", "top_k may be 20.0, but not 2.5", "vllm-project/vllm#3341", needs=(Need.EXTENSIONS,))
async def top_k_is_whole(probe: Probe) -> None:
    await probe.chat("hi", top_k=20.0, script={"tokens": ["hi"]})
    reply = await probe.send(CHAT, probe.chat_body("hi", top_k=2.5))
    reply.error(400, param="top_k", code="invalid_type")
    await check_alive(probe)


@sampling.case("B48", "best_of equal to n streams both choices", "vllm-project/vllm#10743", needs=(Need.COMPLETIONS,))
async def best_of_as_many(probe: Probe) -> None:
    reply = await probe.complete("a b", n=2, best_of=2, stream=True, script={"tokens": ["c"]})
    for index in (0, 1):
        expect(reply.finish(index) in ("stop", "length"), f"choice {index} ends in stop or length")


@sampling.case("B49", "Optional fields may be null", "sgl-project/sglang#4589")
async def nulls(probe: Probe) -> None:
    fields = dict.fromkeys(("response_format", "tools", "tool_choice", "stop"))
    reply = await probe.chat("hi", script={"tokens": ["hi"]}, **fields)
    expect(reply.finish() in ("stop", "length"), "finish_reason is stop or length")
