"""Streams: their shape, their usage, and the text in them."""

from __future__ import annotations

import itertools
from typing import Any

from gateway.conformance.case import Group, Need
from gateway.conformance.probe import Probe
from gateway.conformance.reply import DONE, Reply, expect, same

streaming = Group("streaming")
USAGE = {"include_usage": True}
FIVE = {"tokens": ["one", " two", " three", " four", " five"]}
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object", "properties": {}}}}
CALL = {"name": "lookup", "arguments": ['{"a"', ": 1", "}"]}


def check_usage_at_the_end(reply: Reply) -> dict[str, Any]:
    """The one usage of a stream is in the last chunk, which has no choices; returns it."""
    last = reply.chunks[-1]
    expect(last.get("choices") == [], "the last chunk before [DONE] has `choices: []`", last)
    expect(isinstance(last.get("usage"), dict), "the last chunk before [DONE] has the usage", last)
    others = [chunk for chunk in reply.chunks[:-1] if chunk.get("usage") is not None]
    expect(not others, "no chunk but the last has a usage", others)
    usage: dict[str, Any] = last["usage"]
    total = usage["prompt_tokens"] + usage["completion_tokens"]
    same(usage["total_tokens"], total, "total_tokens")
    return usage


@streaming.case("B01", "The usage of a stream is null on every chunk but the last", "vllm-project/vllm#7262")
async def usage_comes_once(probe: Probe) -> None:
    reply = await probe.chat(stream=True, stream_options=USAGE, script=FIVE)
    usage = check_usage_at_the_end(reply)
    if probe.scripted:
        same(usage["completion_tokens"], 6, "completion_tokens")


@streaming.case(
    "B02", "A streamed completion tells its usage once", "vllm-project/vllm#6371", needs=(Need.COMPLETIONS,)
)
async def completions_tell_usage(probe: Probe) -> None:
    reply = await probe.complete("red, green,", stream=True, stream_options=USAGE, script=FIVE)
    check_usage_at_the_end(reply)
    same(reply.data[-1], DONE, "the last event")


@streaming.case(
    "B03",
    "The usage of several choices is their sum, the prompt counted once",
    "sgl-project/sglang#954",
    "sgl-project/sglang#3743",
)
async def usage_is_the_sum(probe: Probe) -> None:
    one = await probe.chat(stream=True, stream_options=USAGE, script=FIVE)
    two = await probe.chat(stream=True, stream_options=USAGE, script=FIVE, n=2)
    alone, both = check_usage_at_the_end(one), check_usage_at_the_end(two)
    same(both["prompt_tokens"], alone["prompt_tokens"], "prompt_tokens of n=2")
    if probe.scripted:
        same(both["completion_tokens"], 2 * alone["completion_tokens"], "completion_tokens of n=2")
    expect(both["completion_tokens"] > 1, "completion_tokens counts both choices", both)


@streaming.case(
    "B04", "The key usage is there with null when it was asked for, and absent when not", "BerriAI/litellm#9657"
)
async def usage_is_null_or_absent(probe: Probe) -> None:
    asked = await probe.chat(stream=True, stream_options=USAGE, script=FIVE)
    without = [chunk for chunk in asked.chunks if "usage" not in chunk]
    expect(not without, "with include_usage every chunk has the key usage", without)
    plain = await probe.chat(stream=True, script=FIVE)
    found = [chunk for chunk in plain.chunks if "usage" in chunk]
    expect(not found, "without include_usage no chunk has the key usage", found)


@streaming.case(
    "B05", "stream_options is obeyed, and null is the same as absent", "ollama/ollama#5200", "ollama/ollama#4448"
)
async def stream_options_may_be_null(probe: Probe) -> None:
    check_usage_at_the_end(await probe.chat(stream=True, stream_options=USAGE, script=FIVE))
    reply = await probe.chat(stream=True, stream_options=None, script=FIVE)
    expect(not [chunk for chunk in reply.chunks if chunk.get("usage")], "stream_options null asks for no usage")


@streaming.case("B06", "The first delta of a stream has the role assistant", "ggml-org/llama.cpp#13634")
async def role_comes_first(probe: Probe) -> None:
    reply = await probe.chat("hi", stream=True, script=FIVE)
    deltas = reply.deltas()
    same(deltas[0].get("role"), "assistant", "the role in the first delta")
    same(sum("role" in delta for delta in deltas), 1, "how many deltas have a role")


@streaming.case("B07", "The role comes once: pieces added up say assistant", "ollama/ollama#7626")
async def role_is_not_repeated(probe: Probe) -> None:
    reply = await probe.chat("three words", stream=True, script={"tokens": ["a", " b", " c"]})
    same(reply.joined("role"), "assistant", "the role, all deltas added up")


@streaming.case("B08", "Later deltas have no role, not even null", "sgl-project/sglang#18335")
async def role_is_absent_later(probe: Probe) -> None:
    reply = await probe.chat("x", stream=True, script=FIVE)
    nulls = [delta for delta in reply.deltas()[1:] if "role" in delta]
    expect(not nulls, "no delta after the first has the key role", nulls)


@streaming.case(
    "B09", "finish_reason is null until the last chunk, never empty", "ollama/ollama#4357", "sgl-project/sglang#3912"
)
async def finish_is_null_before_the_end(probe: Probe) -> None:
    reply = await probe.chat(stream=True, script=FIVE)
    reasons = [choice["finish_reason"] for choice in reply.choices()]
    expect(all(reason is None for reason in reasons[:-1]), "finish_reason is null before the last chunk", reasons)
    expect(reasons[-1] in ("stop", "length"), "the last finish_reason is stop or length", reasons)


@streaming.case(
    "B10",
    "Every choice of every chunk has the key finish_reason, of tool calls too",
    "vllm-project/vllm#19650",
    "vllm-project/vllm#19662",
    needs=(Need.TOOLS,),
)
async def finish_is_always_a_key(probe: Probe) -> None:
    reply = await probe.chat(stream=True, tools=[TOOL], tool_choice="auto", script={"tool_calls": [CALL]})
    without = [choice for chunk in reply.chunks for choice in chunk["choices"] if "finish_reason" not in choice]
    expect(not without, "every choice has the key finish_reason", without)


@streaming.case(
    "B11", "A stream with tools ends with exactly one finish_reason", "vllm-project/vllm#27572", needs=(Need.TOOLS,)
)
async def finish_comes_once_with_tools(probe: Probe) -> None:
    reply = await probe.chat(stream=True, tools=[TOOL], tool_choice="auto", script={"tool_calls": [CALL]})
    reason = reply.finish()
    if probe.scripted:
        same(reason, "tool_calls", "finish_reason")


@streaming.case("B12", "The chunk with the finish_reason has an empty delta", "vllm-project/vllm#35705")
async def finish_has_no_content(probe: Probe) -> None:
    reply = await probe.chat("one two", stream=True, script=FIVE)
    last = [choice for choice in reply.choices() if choice["finish_reason"] is not None]
    expect(bool(last) and not any(last[-1]["delta"].values()), "the delta that comes with the finish is empty", last)


@streaming.case(
    "B13",
    "One id, one created and one model over the whole stream",
    "ggml-org/llama.cpp#5876",
    "BerriAI/litellm#1571",
    "BerriAI/litellm#38106",
)
async def one_id_a_stream(probe: Probe) -> None:
    reply = await probe.chat(stream=True, stream_options=USAGE, script=FIVE)
    heads = sorted({(chunk["id"], chunk["created"], chunk["model"]) for chunk in reply.chunks})
    expect(len(heads) == 1, "id, created and model are the same on all chunks", heads)
    expect(isinstance(heads[0][1], int), "created is a whole number", heads)


@streaming.case("B14", "All choices of a stream have the same id and created", "sgl-project/sglang#39864")
async def one_id_for_all_choices(probe: Probe) -> None:
    reply = await probe.chat(stream=True, n=3, script=FIVE)
    heads = sorted({(chunk["id"], chunk["created"]) for chunk in reply.chunks})
    expect(len(heads) == 1, "id and created are the same for all choices", heads)
    found = [choice["index"] for chunk in reply.chunks for choice in chunk["choices"]]
    same(list(dict.fromkeys(found)), [0, 1, 2], "the order in which the choices appear")


@streaming.case(
    "B15",
    "A stream ends with [DONE], and nothing comes after it",
    "huggingface/text-generation-inference#1896",
    "huggingface/text-generation-inference#2221",
)
async def done_is_last(probe: Probe) -> None:
    reply = await probe.chat(stream=True, script=FIVE)
    end = reply.body.replace(b"\r\n", b"\n")[-20:]
    expect(end.endswith(b"data: [DONE]\n\n"), "the last line is `data: [DONE]`", end.decode("utf-8", "replace"))
    same(reply.data.count(DONE), 1, "how many [DONE] there are")


@streaming.case(
    "B16",
    "The usage has a chunk of its own, with an empty list of choices",
    "huggingface/text-generation-inference#3003",
)
async def usage_has_its_own_chunk(probe: Probe) -> None:
    reply = await probe.chat(stream=True, stream_options=USAGE, script=FIVE)
    check_usage_at_the_end(reply)
    before = reply.chunks[-2]["choices"]
    expect(bool(before) and before[0]["finish_reason"] is not None, "the finish comes in the chunk before it", before)


@streaming.case(
    "B17", "No empty chunks while a stop string may be coming", "vllm-project/vllm#13087", needs=(Need.SCRIPT,)
)
async def no_empty_chunks(probe: Probe) -> None:
    reply = await probe.chat(stream=True, stop=["ZQ"], script={"tokens": ["a", "Z", "b"]})
    same(reply.text(), "aZb", "the text")
    between = [choice for choice in reply.choices()[1:] if choice["delta"] == {"content": ""}]
    expect(not between, "no chunk after the first has only an empty text", between)


@streaming.case("B18", "Nothing of a stop string is ever sent", "vllm-project/vllm#3574", needs=(Need.SCRIPT,))
async def stop_strings_do_not_leak(probe: Probe) -> None:
    for stream in (False, True):
        script = {"tokens": ["ok ", "EN", "D", "!", " more"]}
        reply = await probe.chat(stream=stream, stop=["END!"], script=script)
        same((reply.text(), reply.finish()), ("ok ", "stop"), f"text and finish_reason with stream {stream}")


@streaming.case(
    "B19",
    "Stop strings do not act on the reasoning",
    "vllm-project/vllm#14399",
    "vllm-project/vllm#14170",
    needs=(Need.SCRIPT,),
)
async def reasoning_has_no_stops(probe: Probe) -> None:
    for stream in (False, True):
        script = {"reasoning": ["a", "\n\n", "b"], "tokens": ["c"]}
        reply = await probe.chat(stream=stream, stop=["\n\n"], script=script)
        same((reply.joined("reasoning_content"), reply.text()), ("a\n\nb", "c"), "reasoning and text")


@streaming.case(
    "B20",
    "A character that is split over tokens arrives whole",
    "mlc-ai/mlc-llm#1142",
    "Blaizzy/mlx-vlm#1076",
    needs=(Need.SCRIPT,),
)
async def characters_are_whole(probe: Probe) -> None:
    script = {"tokens": [{"bytes": [0xF0, 0x9F]}, {"bytes": [0x8E, 0xAD]}, "!"]}
    reply = await probe.chat(stream=True, script=script)
    pieces = [piece for delta in reply.deltas() if (piece := delta.get("content"))]
    same(pieces, ["🎭", "!"], "the pieces of text")


@streaming.case(
    "B21", "An answer that the model ends is whole, and one that a limit ends says length", "ModelTC/LightLLM#130"
)
async def the_end_is_told(probe: Probe) -> None:
    for stream in (False, True):
        if probe.scripted:
            reply = await probe.chat(stream=stream, script={"tokens": ["yes"]})
            same((reply.text(), reply.finish()), ("yes", "stop"), "text and finish_reason")
        reply = await probe.chat(stream=stream, max_tokens=1, script={"tokens": ["yes"]})
        same(reply.finish(), "length", "finish_reason with max_tokens 1")
        expect("<|" not in reply.text(), "the text has no end token in it", reply.text())


@streaming.case("B22", "A stream has comments and data, and no line id, event or retry", "openai/openai-python#2722")
async def only_data_and_comments(probe: Probe) -> None:
    reply = await probe.chat(stream=True, script={"tokens": ["one", " two"], "delay_s": probe.target.pause_s})
    lines = reply.body.decode().replace("\r\n", "\n").split("\n")
    odd = [line for line in lines if line and not line.startswith(("data: ", ":"))]
    expect(not odd, "every line of the stream is `data: …`, a comment or empty", odd)
    lonely = [line for line, after in itertools.pairwise(lines) if line.startswith(":") and after]
    expect(not lonely, "a blank line follows every comment", lonely)
    same(reply.data[-1], DONE, "the last event")
