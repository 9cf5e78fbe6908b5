"""The items of a response's input as clients send them, and their translation to the messages of a chat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from backends.types import MediaPart, Message, TextPart, ToolCall
from gateway.errors import ResponseNotFound
from gateway.openai.decoding import read
from gateway.openai.faults import cut, wrong_type

Content: TypeAlias = str | tuple[TextPart | MediaPart, ...]


class InputText(Struct, frozen=True, tag_field="type", tag="input_text"):
    """A piece of text."""

    text: str


class PlainText(Struct, frozen=True, tag_field="type", tag="text"):
    """A piece of text, by its name in a chat."""

    text: str


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text"):
    """A piece of an earlier answer."""

    text: str


class Refusal(Struct, frozen=True, tag_field="type", tag="refusal"):
    """An assistant's own refusal."""

    refusal: str


class InputImage(Struct, frozen=True, tag_field="type", tag="input_image"):
    """A picture, inline, by URL or by id."""


class InputFile(Struct, frozen=True, tag_field="type", tag="input_file"):
    """A document, inline, by URL or by id."""


class InputAudio(Struct, frozen=True, tag_field="type", tag="input_audio"):
    """A sound, inline."""


InputPart: TypeAlias = InputText | PlainText | OutputText | Refusal | InputImage | InputFile | InputAudio


class MessageInput(Struct, frozen=True, kw_only=True):
    """A message."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[InputPart] = ""


class FunctionCallInput(Struct, frozen=True, kw_only=True):
    """A call that the model made; `arguments` is JSON in a string."""

    call_id: str
    name: str
    arguments: str = ""


class CustomCallInput(Struct, frozen=True, kw_only=True):
    """A call of a custom tool that the model made."""

    call_id: str
    name: str
    input: str = ""


class CallOutputInput(Struct, frozen=True, kw_only=True):
    """What came of a call, of either kind."""

    call_id: str
    output: str | list[InputPart] = ""


class ThoughtText(Struct, frozen=True):
    """A piece of reasoning or of its summary."""

    text: str = ""


class ReasoningInput(Struct, frozen=True, kw_only=True):
    """What the model thought. What is encrypted was not encrypted here, and cannot be read."""

    content: list[ThoughtText] = []
    summary: list[ThoughtText] = []

    @property
    def text(self) -> str:
        """The reasoning, or what there is of a summary."""
        return "\n".join(piece.text for piece in self.content or self.summary)


class ItemReference(Struct, frozen=True, kw_only=True):
    """An item of an earlier response, by its id alone."""

    id: str


REFERENCE = "item_reference"
KINDS: dict[str, type[Struct]] = {
    "message": MessageInput,
    "function_call": FunctionCallInput,
    "function_call_output": CallOutputInput,
    "custom_tool_call": CustomCallInput,
    "custom_tool_call_output": CallOutputInput,
    "reasoning": ReasoningInput,
}


class Items(Struct, frozen=True, kw_only=True):
    """An input that was read. `skipped` are the kinds of items that nothing here knows."""

    messages: tuple[Message, ...]
    skipped: tuple[str, ...] = ()


def translate_input(wire: str | Sequence[Any], instructions: str | None) -> Items:
    """The input as backends read it, after the instructions. Raises `InvalidBody` and `ResponseNotFound`."""
    begin = () if instructions is None else (Message(role="system", content=instructions),)
    if isinstance(wire, str):
        return Items(messages=(*begin, Message(role="user", content=wire)))
    skipped: list[str] = []
    items = list(_read_items(wire, skipped))
    return Items(messages=(*begin, *_messages(items)), skipped=tuple(skipped))


def _read_items(wire: Sequence[Any], skipped: list[str]) -> Iterator[Struct]:
    """A message may lack its type."""
    for number, item in enumerate(wire):
        path = f"input[{number}]"
        if not isinstance(item, dict):
            raise wrong_type(path, "an object", item)
        kind = item.get("type") or "message"
        if not isinstance(kind, str):
            raise wrong_type(f"{path}.type", "a string", kind)
        if kind == REFERENCE:
            raise _not_stored(item, path)
        if kind in KINDS:
            yield read(item, KINDS[kind], path)
        else:
            skipped.append(kind)


class _Turn:
    """The assistant's turn while its items are gathered: what it thought, said and called is one message."""

    def __init__(self) -> None:
        self.reasoning: str | None = None
        self.content: Content | None = None
        self.calls: list[ToolCall] = []

    def takes(self, item: Struct) -> bool:
        """Whether `item` goes on with this turn: thoughts begin one, and it has one text, before its calls."""
        match item:
            case ReasoningInput():
                return self.is_empty
            case MessageInput(role="assistant"):
                return self.content is None and not self.calls
            case FunctionCallInput() | CustomCallInput():
                return True
        return False

    @property
    def is_empty(self) -> bool:
        return self.reasoning is None and self.content is None and not self.calls

    def add(self, item: Struct) -> None:
        match item:
            case ReasoningInput():
                self.reasoning = item.text or None
            case MessageInput():
                self.content = _content(item.content)
            case FunctionCallInput():
                self.calls.append(ToolCall(id=item.call_id, name=item.name, arguments=item.arguments))
            case CustomCallInput():
                self.calls.append(ToolCall(id=item.call_id, name=item.name, arguments=custom_arguments(item.input)))

    def message(self) -> Iterator[Message]:
        if not self.is_empty:
            calls = tuple(self.calls)
            yield Message(role="assistant", content=self.content, reasoning=self.reasoning, tool_calls=calls)


def _messages(items: Sequence[Struct]) -> Iterator[Message]:
    turn = _Turn()
    for item in items:
        if not turn.takes(item):
            yield from turn.message()
            turn = _Turn()
        if turn.takes(item):
            turn.add(item)
        elif isinstance(item, MessageInput):
            yield Message(role=item.role, content=_content(item.content))
        elif isinstance(item, CallOutputInput):
            yield Message(role="tool", content=_content(item.output), tool_call_id=item.call_id)
    yield from turn.message()


def _not_stored(item: dict[str, Any], path: str) -> ResponseNotFound:
    """What is only referred to would be missing from the history without a word, so it is no item to skip."""
    wanted = cut(read(item, ItemReference, path).id)
    return ResponseNotFound(
        f"Item with id '{wanted}' not found. Items are not stored here: send the item itself, "
        "as SDKs do that are told 'store': false.",
        param="input",
    )


def custom_arguments(text: str) -> str:
    """The arguments of a call of the function that a custom tool is to the model."""
    return msgspec.json.encode({"input": text}).decode()


def _content(wire: str | list[InputPart]) -> Content:
    return wire if isinstance(wire, str) else tuple(_part(part) for part in wire)


def _part(part: InputPart) -> TextPart | MediaPart:
    match part:
        case InputText() | PlainText() | OutputText():
            return TextPart(part.text)
        case Refusal():
            return TextPart(part.refusal)
    return MediaPart(str(part.__struct_config__.tag))
