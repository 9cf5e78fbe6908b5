"""Finds out what a server has, by asking it: what it refuses outright is not tested, what it accepts must be right."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import httpx
from msgspec.structs import replace

from gateway.conformance.case import Need
from gateway.conformance.probe import Probe
from gateway.conformance.reply import Mismatch, Reply, short
from gateway.conformance.target import Target
from gateway.conformance.vectors import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RESPONSES, TOOL, USER

REASON_CHARS = 120
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "t", "schema": SCHEMA, "strict": True}}
WRONG_KEY = {"authorization": "Bearer sk-wrong-0123456789"}


class Unreachable(Exception):
    """The server does not answer at all, or not a single plain question; the message says which."""


async def survey(target: Target, scripted: bool | None = None) -> Target:
    """The target with what it has. `scripted` is what the caller knows; None asks the server for that too.

    Raises `Unreachable`.
    """
    async with Probe(target) as probe:
        try:
            target = replace(target, model=target.model or await _first_model(probe))
        except httpx.HTTPError as error:
            raise Unreachable(f"{target.address} does not answer: {type(error).__name__} {error}".strip()) from None
    async with Probe(target) as probe:
        await _check_plain(probe)
        is_scripted = await _obeys_scripts(probe) if scripted is None else scripted
        window = target.window or await _window(probe)
    target = replace(target, scripted=is_scripted, window=window)
    async with Probe(target) as probe:
        return replace(target, lacks=await _lacks(probe))


async def _first_model(probe: Probe) -> str:
    reply = await probe.send("/v1/models", method="GET")
    try:
        return str(reply.json["data"][0]["id"])
    except (Mismatch, LookupError, TypeError):
        raise Unreachable(f"/v1/models lists no model; name one with --model. It said: {short(str(reply))}") from None


async def _check_plain(probe: Probe) -> None:
    try:
        reply = await probe.send(CHAT, probe.chat_body("hi"))
    except httpx.HTTPError as error:
        raise Unreachable(f"no answer to a plain chat: {type(error).__name__} {error}".strip()) from None
    if reply.status != 200:
        raise Unreachable(f"a plain chat is not answered: {short(str(reply))}")


async def _obeys_scripts(probe: Probe) -> bool:
    word = secrets.token_hex(8)
    reply = await probe.send(CHAT, {**probe.chat_body("hi"), "script": {"tokens": [word]}})
    return reply.status == 200 and word in reply.body.decode("utf-8", "replace")


async def _window(probe: Probe) -> int | None:
    """As the model's card says it, where it does."""
    reply = await probe.send(f"/v1/models/{quote(probe.model)}", method="GET")
    try:
        window = reply.json["max_model_len"]
    except (Mismatch, LookupError, TypeError):
        return None
    return window if isinstance(window, int) else None


async def _lacks(probe: Probe) -> dict[str, str]:
    target, lacks = probe.target, {}
    if not target.scripted:
        lacks[Need.SCRIPT] = "it needs a scripted backend (docs/scripted.md)"
    if target.window is None:
        lacks[Need.WINDOW] = "the length of the context is not known; --window says it"
    reason = await _lacks_keys(probe)
    if reason is not None:
        lacks[Need.KEY] = reason
    if (await probe.send("/load", method="GET")).status != 200:
        lacks[Need.LOAD] = "the server has no /load, which would show what it works on"
    for need, (route, body) in _requests(probe).items():
        reply = await probe.send(route, body)
        if reply.status != 200:
            lacks[need] = f"the server refuses {need}: {_told(reply)}"
    return {str(need): reason for need, reason in lacks.items()}


async def _lacks_keys(probe: Probe) -> str | None:
    if probe.target.api_key is None:
        return "it needs a key, --api-key"
    reply = await probe.send(CHAT, probe.chat_body("hi"), headers=WRONG_KEY)
    return "the server takes any key" if reply.status == 200 else None


def _requests(probe: Probe) -> Mapping[Need, tuple[str, dict[str, Any]]]:
    """For each need the plainest request that has it."""

    def chat(**fields: Any) -> tuple[str, dict[str, Any]]:
        return CHAT, probe.chat_body("hi", max_tokens=1, **fields)

    text = {"model": probe.model, "prompt": "abc", "max_tokens": 1}
    return {
        Need.COMPLETIONS: (COMPLETIONS, text),
        Need.RESPONSES: (RESPONSES, {"model": probe.model, "input": "hi", "max_output_tokens": 16}),
        Need.MESSAGES: (MESSAGES, {"model": probe.model, "messages": [USER], "max_tokens": 1}),
        Need.EMBEDDINGS: (EMBEDDINGS, probe.embedding_body("abc")),
        Need.TOOLS: chat(tools=[TOOL], tool_choice="required"),
        Need.FORMATS: chat(response_format=FORMAT),
        Need.LOGPROBS: chat(logprobs=True, top_logprobs=1),
        Need.TEXT_LOGPROBS: (COMPLETIONS, {**text, "logprobs": 1}),
        Need.EXTENSIONS: chat(top_k=20, min_tokens=1, repetition_penalty=1.0),
    }


def _told(reply: Reply) -> str:
    """The server's own words for a refusal."""
    try:
        message = str(reply.json["error"]["message"])
    except (Mismatch, LookupError, TypeError):
        message = reply.body.decode("utf-8", "replace")
    return f"{reply.status} {message if len(message) <= REASON_CHARS else f'{message[:REASON_CHARS]}…'}"
