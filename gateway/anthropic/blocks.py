"""The messages of a request and their content blocks as clients send them, and their translation to those of a chat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from backends.types import MediaPart, Message, TextPart, ToolCall
from gateway.openai import faults
from gateway.openai.decoding import read

Json: TypeAlias = dict[str, Any]
Part: TypeAlias = TextPart | MediaPart
Role: TypeAlias = Literal["user", "assistant", "system"]

# Claude Code's first line of all: it differs from request to request, and would make every prompt a new one.
BILLING = "x-anthropic-billing-header:"
ERROR = "Error: "  # before what a tool says that failed


class TextBlock(Struct, frozen=True, kw_only=True):
    """A piece of text."""

    text: str


class ImageBlock(Struct, frozen=True, kw_only=True):
    """A picture, inline, by URL or by id."""

    source: Json


class Source(Struct, frozen=True, kw_only=True):
    """Where a document is: text in `data`, text or blocks in `content`, or where only a model that sees can read it."""

    type: str
    data: str = ""
    content: str | list[Any] = ""


class DocumentBlock(Struct, frozen=True, kw_only=True):
    """A document; its text is read."""

    source: Source
    title: str = ""
    context: str = ""


class SearchResultBlock(Struct, frozen=True, kw_only=True):
    """What a search found."""

    title: str
    source: str
    content: list[Any]


class ThinkingBlock(Struct, frozen=True, kw_only=True):
    """What the model thought. The signature proves nothing here."""

    thinking: str


class ToolUseBlock(Struct, frozen=True, kw_only=True):
    """A tool that the model used."""

    id: str
    name: str
    input: Json = {}


class ToolResultBlock(Struct, frozen=True, kw_only=True):
    """What came of it."""

    tool_use_id: str
    content: str | list[Any] = ""
    is_error: bool = False


class WireMessage(Struct, frozen=True, kw_only=True):
    """One message. A block's shape depends on its `type`."""

    role: Role
    content: str | list[Any]


_SHOWN: dict[str, type[Struct]] = {
    "text": TextBlock,
    "image": ImageBlock,
    "document": DocumentBlock,
    "search_result": SearchResultBlock,
}
_KINDS: dict[Role, dict[str, type[Struct]]] = {
    "user": {**_SHOWN, "tool_result": ToolResultBlock},
    "assistant": {**_SHOWN, "thinking": ThinkingBlock, "tool_use": ToolUseBlock},
    "system": {"text": TextBlock},
}
_ALL = frozenset(kind for kinds in _KINDS.values() for kind in kinds)


class Translated(Struct, frozen=True, kw_only=True):
    """Messages as backends read them. `skipped` are the kinds of blocks that nothing here knows."""

    messages: tuple[Message, ...]
    skipped: tuple[str, ...] = ()


def translate(wire: Sequence[WireMessage], system: str | Sequence[Any]) -> Translated:
    """The messages after the system prompt. Raises `InvalidBody`."""
    reader = _Reader()
    messages = list(reader.system(system))
    for number, message in enumerate(wire):
        messages += reader.message(message, f"messages[{number}]")
    return Translated(messages=tuple(messages), skipped=tuple(reader.skipped))


class _Reader:
    """Reads blocks, and notes those it does not know."""

    def __init__(self) -> None:
        self.skipped: dict[str, None] = {}

    def system(self, wire: str | Sequence[Any]) -> Iterator[Message]:
        if isinstance(wire, str):
            text = _without_billing(wire)
            if text:
                yield Message(role="system", content=text)
            return
        texts = [block.text for _, block in self._blocks(wire, "system", "system") if isinstance(block, TextBlock)]
        if texts:
            texts[0] = _without_billing(texts[0])
        parts = tuple(TextPart(text) for text in texts if text)
        if parts:
            yield Message(role="system", content=parts)

    def message(self, wire: WireMessage, path: str) -> Iterator[Message]:
        if isinstance(wire.content, str):
            yield Message(role=wire.role, content=wire.content)
        elif wire.role == "assistant":
            yield self._turn(wire.content, f"{path}.content")
        else:
            yield from self._said(wire.role, wire.content, f"{path}.content")

    def _turn(self, wire: Sequence[Any], path: str) -> Message:
        """What the assistant thought, said and called is one message."""
        blocks = list(self._blocks(wire, "assistant", path))
        thoughts = [block.thinking for _, block in blocks if isinstance(block, ThinkingBlock)]
        parts = [part for place, block in blocks for part in self._parts(block, place)]
        return Message(
            role="assistant",
            content=tuple(parts) or None,
            reasoning="\n".join(thoughts) or None,
            tool_calls=tuple(_call(block) for _, block in blocks if isinstance(block, ToolUseBlock)),
        )

    def _said(self, role: Role, wire: Sequence[Any], path: str) -> Iterator[Message]:
        """A message for each result of a tool, and one for what stands between them."""
        parts: list[Part] = []
        has_results = False
        for place, block in self._blocks(wire, role, path):
            if isinstance(block, ToolResultBlock):
                if parts:
                    yield Message(role=role, content=tuple(parts))
                parts, has_results = [], True
                yield Message(role="tool", content=self._result(block, place), tool_call_id=block.tool_use_id)
            else:
                parts += self._parts(block, place)
        if parts or not has_results:
            yield Message(role=role, content=tuple(parts))

    def _result(self, block: ToolResultBlock, path: str) -> str | tuple[Part, ...]:
        if isinstance(block.content, str):
            return ERROR + block.content if block.is_error else block.content
        parts = list(self._all_parts(block.content, f"{path}.content"))
        if block.is_error:
            parts.insert(0, TextPart(ERROR.rstrip()))
        return tuple(parts)

    def _all_parts(self, wire: Sequence[Any], path: str) -> Iterator[Part]:
        for place, block in self._blocks(wire, "user", path):
            if isinstance(block, ToolResultBlock):
                raise faults.not_one_of(f"{place}.type", "tool_result", _SHOWN)
            yield from self._parts(block, place)

    def _parts(self, block: Struct, path: str) -> Iterator[Part]:
        match block:
            case TextBlock():
                yield TextPart(block.text)
            case ImageBlock():
                yield MediaPart("image")
            case DocumentBlock(source=Source(type="text")):
                yield TextPart(_titled(block.source.data, block.title, block.context))
            case DocumentBlock(source=Source(type="content")):
                yield from self._document(block, path)
            case DocumentBlock():
                yield MediaPart("document")
            case SearchResultBlock():
                yield TextPart(_titled("", block.title, block.source))
                yield from self._all_parts(block.content, f"{path}.content")

    def _document(self, block: DocumentBlock, path: str) -> Iterator[Part]:
        content = block.source.content
        if isinstance(content, str):
            yield TextPart(_titled(content, block.title, block.context))
            return
        head = _titled("", block.title, block.context)
        if head:
            yield TextPart(head)
        yield from self._all_parts(content, f"{path}.source.content")

    def _blocks(self, wire: Sequence[Any], role: Role, path: str) -> Iterator[tuple[str, Struct]]:
        """Each block with its place."""
        kinds = _KINDS[role]
        for number, block in enumerate(wire):
            place = f"{path}[{number}]"
            if not isinstance(block, dict):
                raise faults.wrong_type(place, "an object", block)
            kind = block.get("type")
            if kind is None:
                raise faults.missing(f"{place}.type")
            if not isinstance(kind, str):
                raise faults.wrong_type(f"{place}.type", "a string", kind)
            if kind in kinds:
                yield place, read(block, kinds[kind], place)
            elif kind in _ALL:
                raise faults.not_one_of(f"{place}.type", kind, kinds)
            else:
                self.skipped[kind] = None


def _call(block: ToolUseBlock) -> ToolCall:
    return ToolCall(id=block.id, name=block.name, arguments=msgspec.json.encode(block.input).decode())


def _titled(text: str, *heads: str) -> str:
    return "\n".join(filter(None, (*heads, text)))


def _without_billing(text: str) -> str:
    """Without its first line where that is the client's bill."""
    return text.partition("\n")[2] if text.startswith(BILLING) else text
