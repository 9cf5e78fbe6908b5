"""What OpenAI refuses and most servers let pass: the rules of strict mode. Unknown members are in `unknown.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import InvalidBody
from gateway.openai import faults
from gateway.openai.formats import FormatFields
from gateway.openai.messages import ChatMessage
from gateway.openai.sampling import SamplingFields
from gateway.openai.tools import ToolFields

MOST_STOPS = 4
NAME = "^[a-zA-Z0-9_-]+$"


def check_shared(sampling: SamplingFields, formats: FormatFields) -> None:
    """The fields that chat and completions share. Raises `InvalidBody`, as everything here."""
    if isinstance(sampling.stop, list) and len(sampling.stop) > MOST_STOPS:
        raise faults.too_long("stop", "array", MOST_STOPS, len(sampling.stop))
    if formats.response_format is not None and formats.response_format.json_schema is not None:
        _check_name("response_format.json_schema.name", formats.response_format.json_schema.name)


def check_tools(tools: ToolFields, body: Mapping[str, Any]) -> None:
    """Lists of tools have something in them, and names no dots."""
    for field in ("tools", "functions"):
        if body.get(field) == []:
            raise faults.too_short(field, "array", 1, 0)
    for position, tool in enumerate(tools.tools):
        if tool.function is not None:
            _check_name(f"tools[{position}].function.name", tool.function.name)
    for position, function in enumerate(tools.functions):
        _check_name(f"functions[{position}].name", function.name)


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """Content is a text, or parts."""
    for position, message in enumerate(messages):
        if message.content == []:
            raise faults.too_short(f"messages[{position}].content", "array", 1, 0)


def check_calls(messages: Sequence[ChatMessage]) -> None:
    """Answers of tools follow the message that called them, and every call has its answer."""
    open_calls: list[str] = []
    for position, message in enumerate(messages):
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise _orphan(position)
            open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            raise _unanswered(position, open_calls)
        open_calls = [call.id for call in message.tool_calls] if message.role == "assistant" else []
    if open_calls:
        raise _unanswered(len(messages) - 1, open_calls)


def check_limits(max_tokens: int | None, max_completion_tokens: int | None) -> None:
    """The old name and the new one exclude each other."""
    if max_tokens is not None and max_completion_tokens is not None:
        raise faults.combination(
            "max_tokens", "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        )


def _check_name(path: str, name: str) -> None:
    if "." in name:
        raise faults.no_match(path, NAME)


def _orphan(position: int) -> InvalidBody:
    return faults.broken_rule(
        f"messages.[{position}].role",
        "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'.",
    )


def _unanswered(position: int, calls: Sequence[str]) -> InvalidBody:
    """Blamed on the message that stands where the next answer should, or on the last."""
    shown = faults.cut(", ".join(calls))
    return faults.broken_rule(
        f"messages.[{position}].role",
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
        f"The following tool_call_ids did not have response messages: {shown}",
    )
