"""The messages of a chat as clients send them, and their translation."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from backends.types import MediaPart, Message, TextPart, ToolCall
from gateway.openai import faults


class TextContent(Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text."""

    text: str
    prompt_cache_breakpoint: Any = None


class RefusalContent(Struct, frozen=True, tag_field="type", tag="refusal"):
    """An assistant's own refusal, sent back as history."""

    refusal: str


class ImageContent(Struct, frozen=True, tag_field="type", tag="image_url"):
    """A picture; older clients send the bare URL."""

    image_url: str | dict[str, Any]
    prompt_cache_breakpoint: Any = None


class SoundContent(Struct, frozen=True, tag_field="type", tag="input_audio"):
    """A sound, inline."""

    input_audio: dict[str, Any]
    prompt_cache_breakpoint: Any = None


class FileContent(Struct, frozen=True, tag_field="type", tag="file"):
    """A document, inline or by id."""

    file: dict[str, Any]
    prompt_cache_breakpoint: Any = None


class VideoUrlContent(Struct, frozen=True, tag_field="type", tag="video_url"):
    """A video; vLLM's addition."""

    video_url: str | dict[str, Any]


class AudioUrlContent(Struct, frozen=True, tag_field="type", tag="audio_url"):
    """A sound by URL; vLLM's addition."""

    audio_url: str | dict[str, Any]


class ImageEmbedsContent(Struct, frozen=True, tag_field="type", tag="image_embeds"):
    """A picture, already encoded; vLLM's addition."""

    image_embeds: str | dict[str, Any]


Part: TypeAlias = (
    TextContent
    | RefusalContent
    | ImageContent
    | SoundContent
    | FileContent
    | VideoUrlContent
    | AudioUrlContent
    | ImageEmbedsContent
)


class FunctionCall(Struct, frozen=True, kw_only=True):
    """A call of a function; `arguments` is JSON in a string, and models do not always get it right."""

    name: str
    arguments: str = ""


class ToolCallItem(Struct, frozen=True, kw_only=True):
    """A call in an assistant message of the history."""

    type: Literal["function", "custom"] = "function"
    function: FunctionCall | None = None
    custom: Any = None
    id: str


class ChatMessage(Struct, frozen=True, kw_only=True):
    """One message. Members that it does not know are passed over: clients add their own."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCallItem] = []
    tool_call_id: str | None = None
    function_call: FunctionCall | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    audio: Any = None  # this and the next are known, and passed over
    annotations: Any = None


def translate_message(wire: ChatMessage, position: int) -> Message:
    """`wire`, the message at `position` of its chat, as backends read it. Raises `InvalidBody`."""
    path = f"messages[{position}]"
    if wire.role == "tool" and wire.tool_call_id is None:
        raise faults.missing(f"{path}.tool_call_id")
    if wire.role == "function" and wire.name is None:
        raise faults.missing(f"{path}.name")
    return Message(
        role=wire.role,
        content=_content(wire),
        name=wire.name,
        reasoning=wire.reasoning_content if wire.reasoning_content is not None else wire.reasoning,
        tool_calls=_calls(wire, path) if wire.role == "assistant" else (),
        tool_call_id=wire.tool_call_id,
    )


def _content(wire: ChatMessage) -> str | tuple[TextPart | MediaPart, ...] | None:
    """A refusal stands for the content where there is no other."""
    if isinstance(wire.content, list):
        return tuple(_part(part) for part in wire.content)
    return wire.refusal if wire.content is None else wire.content


def _part(part: Part) -> TextPart | MediaPart:
    match part:
        case TextContent():
            return TextPart(part.text)
        case RefusalContent():
            return TextPart(part.refusal)
    return MediaPart(str(part.__struct_config__.tag))


def _calls(wire: ChatMessage, path: str) -> tuple[ToolCall, ...]:
    """The deprecated `function_call` becomes a call whose id is made from its place."""
    if wire.function_call is not None and not wire.tool_calls:
        call = wire.function_call
        return (ToolCall(id=f"call_{path}", name=call.name, arguments=call.arguments),)
    return tuple(_call(item, f"{path}.tool_calls[{number}]") for number, item in enumerate(wire.tool_calls))


def _call(item: ToolCallItem, path: str) -> ToolCall:
    if item.type == "custom":
        raise faults.unsupported_value(f"{path}.type", item.type)
    if item.function is None:
        raise faults.missing(f"{path}.function")
    return ToolCall(id=item.id, name=item.function.name, arguments=item.function.arguments)
