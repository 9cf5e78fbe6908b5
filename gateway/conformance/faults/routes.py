"""Responses and messages, keys, heads, and clients that leave."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from gateway.conformance.case import Group, Need
from gateway.conformance.probe import Probe
from gateway.conformance.reply import Reply, expect, same
from gateway.conformance.vectors import CHAT, EMBEDDINGS, MESSAGES, RESPONSES, USER

routes = Group("routes")
RESPONSE = (Need.RESPONSES,)
WORDS = {"tokens": ["one", " two", " three"]}
LOOKUP = {"type": "function", "name": "lookup", "parameters": {"type": "object", "properties": {}}}
OF_ITEMS = ("added", "delta", "done")  # how events of items and their parts end
STORY = "Write a very long story."
PATIENCE_S = 10.0
LOOKS_PER_S = 20
WORKING = ("/tokenize", "/detokenize", EMBEDDINGS, "/v1/completions", CHAT, RESPONSES, MESSAGES)
TELLING = ("/metrics", "/load", "/v1/models")


def events(reply: Reply) -> list[dict[str, Any]]:
    """The events of a response, whose numbers run on from 0."""
    same([event["sequence_number"] for event in reply.chunks], list(range(len(reply.chunks))), "the sequence numbers")
    return list(reply.chunks)


@routes.case("B87", "Every event of an item says which it is", "ggml-org/llama.cpp#20607", needs=RESPONSE)
async def events_name_their_item(probe: Probe) -> None:
    for event in events(await probe.respond(stream=True, script=WORDS)):
        if event["type"].rpartition(".")[2] in OF_ITEMS:
            expect("output_index" in event, "the event has output_index", event)
            expect("item_id" in event or "id" in event["item"], "the event has the id of its item", event)


@routes.case(
    "B88", "Items, their parts and their deltas fit together", "vllm-project/vllm#45742", needs=(*RESPONSE, Need.SCRIPT)
)
async def events_fit_together(probe: Probe) -> None:
    calls = [{"name": "lookup", "arguments": ["{", "}"]}]
    script = {"reasoning": ["r1", " r2"], "tokens": ["one", " two"], "tool_calls": calls}
    told = events(await probe.respond(stream=True, tools=[LOOKUP], script=script))
    items: dict[int, dict[str, Any]] = {}
    parts: set[tuple[int, int]] = set()
    for event in told:
        at = event.get("output_index")
        if event["type"] == "response.output_item.added":
            expect(at not in items, "an item is added once", event)
            items[event["output_index"]] = event["item"]
        elif at is not None:
            expect(at in items, "an item is added before anything is said of it", event)
            same(event.get("item_id", event.get("item", {}).get("id")), items[at]["id"], "the id of the item")
        if event["type"] == "response.content_part.added":
            parts.add((event["output_index"], event["content_index"]))
        elif "content_index" in event:
            expect((at, event["content_index"]) in parts, "a part is added before anything is said of it", event)
    same([item["type"] for item in items.values()], ["reasoning", "message", "function_call"], "the kinds of items")
    final = [item["id"] for item in told[-1]["response"]["output"]]
    same(final, [item["id"] for item in items.values()], "the items of the last event")


@routes.case(
    "B89",
    "Tokens of reasoning are counted among the output",
    "sgl-project/sglang#10012",
    "sgl-project/sglang#15875",
    needs=(*RESPONSE, Need.SCRIPT),
)
async def reasoning_is_counted(probe: Probe) -> None:
    script = {"reasoning": ["a", "b", "c", "d"], "tokens": ["x", "y", "z"], "eos": False}
    usage = (await probe.respond(max_output_tokens=7, script=script)).json["usage"]
    chat = (await probe.chat("hi", max_tokens=7, script=script)).usage
    counts = (usage["output_tokens"], usage["output_tokens_details"]["reasoning_tokens"])
    same(counts, (7, 4), "output_tokens and reasoning_tokens")
    same(usage["total_tokens"], usage["input_tokens"] + 7, "total_tokens")
    counts = (chat["completion_tokens"], chat["completion_tokens_details"]["reasoning_tokens"])
    same(counts, (7, 4), "the same two counts of a chat")


@routes.case(
    "B90",
    "A response with an empty list of tools begins with response.created",
    "sgl-project/sglang#22980",
    "sgl-project/sglang#9963",
    needs=RESPONSE,
)
async def begins_with_created(probe: Probe) -> None:
    first = events(await probe.respond(stream=True, tools=[], script=WORDS))[0]
    same(first["type"], "response.created", "the first event")
    expect(type(first["response"]["created_at"]) is int, "created_at is whole seconds", first["response"]["created_at"])


@routes.case("B91", "A text of a response has annotations", "lmstudio-ai/lmstudio-bug-tracker#1089", needs=RESPONSE)
async def texts_have_annotations(probe: Probe) -> None:
    output = (await probe.respond(script=WORDS)).json["output"]
    texts = [part for item in output if item["type"] == "message" for part in item["content"]]
    expect(bool(texts), "the output has a text", output)
    for part in texts:
        same(part["annotations"], [], "the annotations")


@routes.case(
    "B92",
    "text.format is obeyed, and may be absent",
    "lmstudio-ai/lmstudio-bug-tracker#1576",
    "lmstudio-ai/lmstudio-bug-tracker#2403",
    needs=(*RESPONSE, Need.FORMATS),
)
async def text_format(probe: Probe) -> None:
    await probe.respond(text={"verbosity": "low"}, script=WORDS)
    schema = {
        "type": "object",
        "properties": {"k": {"type": "integer"}},
        "required": ["k"],
        "additionalProperties": False,
    }
    asked = {"format": {"type": "json_schema", "name": "t", "schema": schema, "strict": True}}
    reply = await probe.respond("k is 1", text=asked, max_output_tokens=64, script={"tokens": ['{"k"', ": 1}"]})
    if reply.json["status"] == "completed":
        message = next(item for item in reply.json["output"] if item["type"] == "message")
        text = message["content"][0]["text"]
        same(sorted(json.loads(text)), ["k"], "the members of the object")


@routes.case("B93", "The tokens of messages are counted", "BerriAI/litellm#13252", needs=(Need.MESSAGES,))
async def count_tokens(probe: Probe) -> None:
    reply = await probe.send(f"{MESSAGES}/count_tokens?beta=true", {"model": probe.model, "messages": [USER]})
    same(reply.status, 200, "the status")
    expect(type(reply.json.get("input_tokens")) is int, "input_tokens is a count", reply.json)


@routes.case("B94", "A key guards every route that works or tells", "vllm-project/vllm#18893", needs=(Need.KEY,))
async def keys_guard(probe: Probe) -> None:
    asked = [("POST", route) for route in WORKING] + [("GET", route) for route in TELLING]
    for method, route in asked:
        body: dict[str, Any] | None = {} if method == "POST" else None
        reply = await probe.send(route, body, method=method, headers={"authorization": None})
        expect(reply.status in (401, 404), f"{method} {route} without a key is 401", reply.status)


@routes.case(
    "B95", "HEAD tells that the server lives", "headroomlabs-ai/headroom#2032", "router-for-me/CLIProxyAPI#5905"
)
async def heads(probe: Probe) -> None:
    for route in ("/", "/api/hello"):
        reply = await probe.send(route, method="HEAD", headers={"authorization": None})
        expect(reply.status in (200, 204), f"HEAD {route} is 200 or 204", reply.status)
        same(reply.body, b"", "the body")


async def load(probe: Probe) -> int:
    """How many requests the server works on."""
    return int((await probe.send("/load", method="GET")).json["server_load"])


async def check_given_up(probe: Probe, body: dict[str, Any], after_s: float) -> None:
    """The work ends when the client leaves: nothing is worked on soon after."""
    before = await load(probe)
    await probe.leave(CHAT, body, after_s=after_s)
    for _ in range(int(PATIENCE_S * LOOKS_PER_S)):
        if await load(probe) <= before:
            return
        await asyncio.sleep(1 / LOOKS_PER_S)
    expect(False, f"nothing is worked on {PATIENCE_S:g} s after the client has left", await load(probe))


@routes.case(
    "B96",
    "Work on a stream ends when the client leaves",
    "vllm-project/vllm#54947",
    "vllm-project/vllm#9428",
    "ggml-org/llama.cpp#24496",
    "ggml-org/llama.cpp#11720",
    needs=(Need.LOAD,),
)
async def streams_are_left(probe: Probe) -> None:
    script = {"tokens": ["word "], "eos": False, "delay_s": 0.05}
    for stream in (True, False):
        body = probe.chat_body(STORY, stream=stream, max_tokens=2000, script=script)
        await check_given_up(probe, body, probe.target.pause_s)


@routes.case(
    "B97",
    "Work ends when the client does not wait for the first token",
    "BerriAI/litellm#37140",
    needs=(Need.LOAD, Need.SCRIPT),
)
async def waits_are_left(probe: Probe) -> None:
    body = probe.chat_body("hi", script={"tokens": ["late"], "first_delay_s": 30})
    await check_given_up(probe, body, probe.target.pause_s)


@routes.case(
    "B98",
    "Reasoning has both its names",
    "vllm-project/vllm#50624",
    "BerriAI/litellm#26501",
    needs=(Need.SCRIPT,),
)
async def reasoning_names(probe: Probe) -> None:
    for stream in (False, True):
        reply = await probe.chat("hi", stream=stream, script={"reasoning": ["r"], "tokens": ["a"]})
        for name in ("reasoning_content", "reasoning"):
            same(reply.joined(name), "r", name)
