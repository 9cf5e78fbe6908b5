"""Messages and formats: what clients put into a history, and what they want the answer to look like."""

from __future__ import annotations

import json
from typing import Any

from gateway.conformance.case import Group, Need
from gateway.conformance.probe import Probe
from gateway.conformance.reply import expect, same
from gateway.conformance.vectors import CHAT, USER

messages = Group("messages")
PARTS = [{"type": "text", "text": "say "}, {"type": "text", "text": "hi"}]
SCHEMA = {"type": "object", "required": ["k"], "properties": {"k": {"type": "integer"}}}


def call(arguments: str = "{}") -> dict[str, Any]:
    """An assistant's message that is only a call."""
    function = {"name": "lookup", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


def result(content: Any = "42") -> dict[str, Any]:
    """The tool's answer to it."""
    return {"role": "tool", "tool_call_id": "c1", "content": content}


def said(text: str) -> dict[str, Any]:
    """A message of the user."""
    return {"role": "user", "content": text}


def json_schema(schema: Any) -> dict[str, Any]:
    """A format of that schema."""
    return {"type": "json_schema", "json_schema": {"name": "t", "schema": schema}}


async def check_formats_refused(probe: Probe, *formats: Any) -> list[dict[str, Any]]:
    """Each is a 400 that names the field; the errors."""
    errors = []
    for given in formats:
        error = (await probe.send(CHAT, probe.chat_body("hi", response_format=given))).error(400)
        expect(str(error["param"]).startswith("response_format"), "param is response_format, or a part of it", error)
        errors.append(error)
    return errors


@messages.case(
    "B50",
    "Content may be a list of text parts, for every role",
    "ggml-org/llama.cpp#8367",
    "huggingface/transformers#39829",
    "huggingface/transformers#39791",
)
async def content_parts(probe: Probe) -> None:
    reply = await probe.chat([{"role": "user", "content": PARTS}])
    if probe.scripted:  # without a script it repeats what it read
        same(reply.text().split(), ["say", "hi"], "the words that the model read")
    await probe.chat([{"role": "system", "content": PARTS}, USER])
    await probe.chat([USER, call(), result(PARTS)])


@messages.case(
    "B51",
    "An assistant's content may be empty, or null beside calls",
    "vllm-project/vllm#21089",
    "ollama/ollama#14181",
    "pydantic/pydantic-ai#5206",
)
async def empty_content(probe: Probe) -> None:
    await probe.chat([USER, {"role": "assistant", "content": ""}, said("go on")])
    await probe.chat([USER, call(), result()])


@messages.case("B52", "A call in the history may have the arguments `null`", "vllm-project/vllm#43851")
async def null_arguments(probe: Probe) -> None:
    await probe.chat([USER, call("null"), result(), said("go on")])


@messages.case("B53", "response_format text is a plain answer", "lmstudio-ai/lmstudio-bug-tracker#307")
async def text_format(probe: Probe) -> None:
    await probe.chat("hi", response_format={"type": "text"})


@messages.case(
    "B54",
    "response_format json_object gives a JSON object",
    "lmstudio-ai/lmstudio-bug-tracker#189",
    needs=(Need.FORMATS,),
)
async def json_object(probe: Probe) -> None:
    script = {"tokens": ['{"a"', ": 1}"]}
    asked = {"response_format": {"type": "json_object"}, "max_tokens": 64}
    reply = await probe.chat("give a as 1 in json", script=script, **asked)
    if reply.finish() == "stop":
        expect(isinstance(parsed(reply.text()), dict), "the text is a JSON object", reply.text())


@messages.case("B55", "A response_format that makes no sense is a 400 that names it", "vllm-project/vllm#35438")
async def odd_formats(probe: Probe) -> None:
    await check_formats_refused(probe, {"type": "json_schema"}, json_schema([1]), "json")


@messages.case(
    "B56",
    "A schema that cannot be compiled is a 400 that names the keyword",
    "ggml-org/llama.cpp#23463",
    needs=(Need.FORMATS,),
)
async def broken_pattern(probe: Probe) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "([a-z"}}}
    (error,) = await check_formats_refused(probe, json_schema(schema))
    expect("pattern" in error["message"], "the message names the keyword, pattern", error)


@messages.case(
    "B57",
    "guided_json is obeyed, or refused with the name of what to use",
    "vllm-project/vllm#53975",
    "vllm-project/vllm#12692",
    needs=(Need.EXTENSIONS,),
)
async def guided_json(probe: Probe) -> None:
    script = {"tokens": ['{"k"', ": 1}"]}
    reply = await probe.send(CHAT, probe.chat_body("hi", guided_json=SCHEMA, max_tokens=64, script=script))
    if reply.status != 200:
        reply.error(400)
    elif reply.finish() == "stop":
        expect(isinstance(parsed(reply.text()), dict), "the text obeys the schema", reply.text())
    reply = await probe.send(CHAT, probe.chat_body("hi", guided_json={"type": "invalid_kind"}))
    reply.error(400)


@messages.case("B58", "A schema of a type that there is not is refused", "ai-dynamo/dynamo#15065")
async def unknown_type(probe: Probe) -> None:
    await check_formats_refused(probe, json_schema({"type": "invalid_kind"}))


def parsed(text: str) -> Any:
    """The text as JSON; None when it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return None
