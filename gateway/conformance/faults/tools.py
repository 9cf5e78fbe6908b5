"""Tool calls: whole in streams, alike in both modes, and ended by the right word."""

from __future__ import annotations

import json
from typing import Any

from gateway.conformance.case import Group, Need
from gateway.conformance.probe import Probe
from gateway.conformance.reply import Reply, expect, same

tools = Group("tools")
ASK = "Call the tool lookup."
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": PARAMETERS}}
BARE = {"type": "function", "function": {"name": "lookup"}}
NAMED = {"type": "function", "function": {"name": "lookup"}}
ARGUMENTS = ('{"a"', ": ", "1", "}")


def calls(num: int, **more: Any) -> dict[str, Any]:
    """A script of so many calls."""
    made = [{"name": "lookup", "arguments": ['{"a"', f": {number}", "}"]} for number in range(num)]
    return {"tool_calls": made, **more}


def starts(reply: Reply) -> list[dict[str, Any]]:
    """The first piece of each call of a stream."""
    pieces = [piece for delta in reply.deltas() for piece in delta.get("tool_calls") or []]
    first: dict[int, dict[str, Any]] = {}
    for piece in pieces:
        first.setdefault(piece["index"], piece)
    return [first[index] for index in sorted(first)]


def check_calls(reply: Reply, num: int) -> None:
    """So many calls, each with an id of its own, and arguments that are JSON."""
    found = reply.calls()
    same(len(found), num, "the number of calls")
    same(len({call["id"] for call in found} - {None, ""}), num, "the number of different ids")
    for number, call in enumerate(found):
        same((call["type"], call["function"]["name"]), ("function", "lookup"), "type and name of a call")
        same(json.loads(call["function"]["arguments"]), {"a": number}, "the arguments of a call")


@tools.case(
    "B59",
    "The first piece of a named call has index, id, type and name",
    "vllm-project/vllm#16340",
    needs=(Need.TOOLS,),
)
async def named_calls_are_typed(probe: Probe) -> None:
    reply = await probe.chat(ASK, stream=True, tools=[TOOL], tool_choice=NAMED, script=calls(1))
    first = starts(reply)[0]
    shown = (first.get("index"), first.get("type"), first["function"].get("name"))
    same(shown, (0, "function", "lookup"), "index, type and name")
    expect(isinstance(first.get("id"), str) and bool(first["id"]), "the first piece has an id", first)


@tools.case(
    "B60", "A streamed call has an id, of the same form as a whole one", "vllm-project/vllm#18412", needs=(Need.TOOLS,)
)
async def streamed_calls_have_ids(probe: Probe) -> None:
    asked: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "script": calls(1)}
    streamed = starts(await probe.chat(ASK, stream=True, **asked))[0]["id"]
    whole = (await probe.chat(ASK, **asked)).calls()[0]["id"]
    expect(isinstance(streamed, str) and bool(streamed), "the first piece has an id", streamed)
    form = [call_id.rstrip("0123456789abcdefABCDEF-") for call_id in (streamed, whole)]
    same(form[0], form[1], "how the id begins")


@tools.case("B61", "The arguments of a call are a text, never null", "vllm-project/vllm#9693", needs=(Need.TOOLS,))
async def arguments_are_texts(probe: Probe) -> None:
    script = {"tool_calls": [{"name": "lookup"}]}
    reply = await probe.chat(ASK, stream=True, tools=[BARE], tool_choice="required", script=script)
    pieces = [piece["function"] for delta in reply.deltas() for piece in delta.get("tool_calls") or []]
    odd = [piece for piece in pieces if not isinstance(piece.get("arguments", ""), str)]
    expect(bool(pieces) and not odd, "every arguments is a text", odd)


@tools.case(
    "B62",
    "A call ends alike, streamed and whole, required and named",
    "vllm-project/vllm#25054",
    "googleapis/python-genai#2868",
    needs=(Need.TOOLS, Need.SCRIPT),
)
async def finish_is_the_same(probe: Probe) -> None:
    for choice, right in (("required", "tool_calls"), (NAMED, "stop")):
        for stream in (False, True):
            reply = await probe.chat(ASK, stream=stream, tools=[TOOL], tool_choice=choice, script=calls(1))
            same(reply.finish(), right, f"finish_reason with tool_choice {choice} and stream {stream}")
            check_calls(reply, 1)


@tools.case(
    "B63",
    "A text that looks like a call ends in stop, without an empty list of calls",
    "vllm-project/vllm#53255",
    needs=(Need.TOOLS, Need.SCRIPT),
)
async def no_empty_calls(probe: Probe) -> None:
    for stream in (False, True):
        script = {"tokens": ['{"name"', ": well", ", no"]}
        reply = await probe.chat(ASK, stream=stream, tools=[TOOL], tool_choice="auto", script=script)
        same((reply.finish(), reply.text()), ("stop", '{"name": well, no'), "finish_reason and text")
        found = [delta for delta in reply.deltas() if "tool_calls" in delta]
        expect(not found, "there is no key tool_calls", found)


@tools.case(
    "B64",
    "parallel_tool_calls false gives one call",
    "vllm-project/vllm#9451",
    "vllm-project/vllm#26233",
    needs=(Need.TOOLS,),
)
async def one_call_at_most(probe: Probe) -> None:
    for stream in (False, True):
        reply = await probe.chat(ASK, stream=stream, tools=[TOOL], parallel_tool_calls=False, script=calls(2))
        if probe.scripted:
            check_calls(reply, 1)
        expect(len(reply.calls()) <= 1, "there is at most one call", reply.calls())


@tools.case(
    "B65",
    "A cap inside a call leaves the same piece of it in both modes",
    "vllm-project/vllm#9053",
    needs=(Need.TOOLS, Need.SCRIPT),
)
async def capped_calls(probe: Probe) -> None:
    script = {"tool_calls": [{"name": "lookup", "arguments": [*ARGUMENTS, " ", " "]}]}
    for stream in (False, True):
        asked: dict[str, Any] = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 3, "script": script}
        reply = await probe.chat(ASK, stream=stream, **asked)
        arguments = reply.calls()[0]["function"]["arguments"]
        same((reply.finish(), arguments), ("length", '{"a": 1'), f"finish_reason and arguments with stream {stream}")


@tools.case("B66", "Streamed calls have indexes of their own", "ollama/ollama#15457", needs=(Need.TOOLS, Need.SCRIPT))
async def calls_are_numbered(probe: Probe) -> None:
    reply = await probe.chat(ASK, stream=True, tools=[TOOL], script=calls(2))
    same([piece["index"] for piece in starts(reply)], [0, 1], "the indexes of the calls")
    check_calls(reply, 2)


@tools.case("B67", "A streamed call ends in tool_calls", "ollama/ollama#7963", needs=(Need.TOOLS, Need.SCRIPT))
async def calls_end_in_tool_calls(probe: Probe) -> None:
    reply = await probe.chat(ASK, stream=True, tools=[TOOL], script=calls(1))
    same(reply.finish(), "tool_calls", "finish_reason")


@tools.case(
    "B68",
    "A text and then a call ends in tool_calls, not in stop",
    "BerriAI/litellm#12862",
    needs=(Need.TOOLS, Need.SCRIPT),
)
async def text_then_call(probe: Probe) -> None:
    for stream in (False, True):
        reply = await probe.chat(ASK, stream=stream, tools=[TOOL], script=calls(1, tokens=["Let me", " look."]))
        same((reply.text(), reply.finish()), ("Let me look.", "tool_calls"), "text and finish_reason")
        check_calls(reply, 1)


@tools.case(
    "B69",
    "The role comes first, also when the answer is only a call",
    "lmstudio-ai/lmstudio-bug-tracker#445",
    needs=(Need.TOOLS, Need.SCRIPT),
)
async def role_before_calls(probe: Probe) -> None:
    deltas = (await probe.chat(ASK, stream=True, tools=[TOOL], script=calls(1))).deltas()
    with_role = [at for at, delta in enumerate(deltas) if delta.get("role") == "assistant"]
    with_call = [at for at, delta in enumerate(deltas) if delta.get("tool_calls")]
    expect(bool(with_role and with_call) and with_role[0] <= with_call[0], "the role comes with the call, or before")


@tools.case(
    "B70",
    "Three calls arrive whole, streamed and not",
    "lmstudio-ai/lmstudio-bug-tracker#723",
    "lmstudio-ai/lmstudio-bug-tracker#759",
    needs=(Need.TOOLS, Need.SCRIPT),
)
async def three_calls(probe: Probe) -> None:
    for stream in (False, True):
        check_calls(await probe.chat(ASK, stream=stream, tools=[TOOL], script=calls(3)), 3)
