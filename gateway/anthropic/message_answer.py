"""Chunks → a message, as a stream of events or as one body. Both come from the events of one `Content`."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import msgspec

from backends.types import Chunk, ToolCallDelta, Usage
from gateway.anthropic.shapes import (
    BlockDelta,
    ContentBlock,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    Ending,
    InputJsonDelta,
    Message,
    MessageDeltaEvent,
    MessageEvent,
    MessageStart,
    MessageStop,
    MessageTokensDetails,
    MessageUsage,
    SignatureDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from gateway.openai.chat_answer import ChatAnswer, ChatChoice, Piece
from gateway.openai.text import to_json

PING = b'event: ping\ndata: {"type":"ping"}\n\n'
BROKEN_INPUT = "INVALID_JSON"  # Anthropic's own name for what a model wrote in place of an object

_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
}


class Growing(ABC):
    """A block while it is made: `add` takes text in, `flow` shows what was taken in, `close` ends it."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        self._held: list[str] = []
        self._has_begun = False

    @property
    def text(self) -> str:
        """All of it that was shown."""
        return "".join(self._shown)

    @property
    def is_whole(self) -> bool:
        """Whether nothing can be missing, once another block follows."""
        return True

    @abstractmethod
    def block(self, text: str) -> ContentBlock:
        """The block with `text` in it."""

    @abstractmethod
    def delta(self, text: str) -> BlockDelta:
        """More of it."""

    def add(self, text: str) -> None:
        """More of it, which may have to wait for its turn to be shown."""
        if text:
            self._held.append(text)

    def whole(self) -> ContentBlock:
        """The block with all that was shown."""
        return self.block(self.text)

    def flow(self, index: int) -> Iterator[MessageEvent]:
        """Its beginning, if it has not begun, and what is new."""
        if not self._has_begun:
            self._has_begun = True
            yield ContentBlockStart(index=index, content_block=self.block(""))
        if self._held:
            held, self._held = self._held, []
            self._shown += held
            yield ContentBlockDelta(index=index, delta=self.delta("".join(held)))

    def close(self, index: int) -> Iterator[MessageEvent]:
        """Its end."""
        yield ContentBlockStop(index=index)


class Text(Growing):
    """What the model says."""

    def block(self, text: str) -> TextBlock:
        """See `Growing`."""
        return TextBlock(text=text)

    def delta(self, text: str) -> TextDelta:
        """See `Growing`."""
        return TextDelta(text=text)


class Thought(Growing):
    """What the model thinks. Its signature comes last."""

    def block(self, text: str) -> ThinkingBlock:
        """See `Growing`."""
        return ThinkingBlock(thinking=text, signature=_signature(text))

    def delta(self, text: str) -> ThinkingDelta:
        """See `Growing`."""
        return ThinkingDelta(thinking=text)

    def close(self, index: int) -> Iterator[MessageEvent]:
        """The signature, then the end."""
        yield ContentBlockDelta(index=index, delta=SignatureDelta(signature=_signature(self.text)))
        yield from super().close(index)


class Call(Growing):
    """A tool that the model uses. Its input is there when the JSON text is whole."""

    def __init__(self, begun: ToolCallDelta) -> None:
        super().__init__()
        self.id, self.name = begun.id or "", begun.name or ""

    @property
    def is_whole(self) -> bool:
        """Whether its JSON text is, which the pieces of another call do not tell: they may come mixed."""
        return _object(self.text) is not None

    def block(self, text: str) -> ToolUseBlock:
        """With what the model wrote under another name where it is no object."""
        value = _object(text) if text else {}
        return ToolUseBlock(id=self.id, name=self.name, input={BROKEN_INPUT: text} if value is None else value)

    def delta(self, text: str) -> InputJsonDelta:
        """See `Growing`."""
        return InputJsonDelta(partial_json=text)


class Content:
    """The content of a message while it is made.

    Blocks are shown one after the other, as Anthropic does: what comes for a later one waits until the one before it is
    whole, or until the answer ends.
    """

    def __init__(self, answer: ChatAnswer) -> None:
        self._reply = answer.reply
        self._choice = ChatChoice(answer)
        self._blocks: list[Growing] = []
        self._calls: dict[int, Call] = {}
        self._at = 0  # the block that is shown now
        self._last: Piece | None = None
        self._usage = Usage()

    def take(self, chunk: Chunk) -> Iterator[MessageEvent]:
        """The events that show `chunk`."""
        self._usage = chunk.usage
        piece = self._choice.take(chunk)
        if piece is None:
            return
        if piece.reasoning:
            self._tail(Thought).add(piece.reasoning)
        if piece.text:
            self._tail(Text).add(piece.text)
        for call in piece.calls:
            self._call(call)
        if piece.finish_reason is not None:
            self._end(piece)
        yield from self._flow()

    def message(self) -> Message:
        """The message so far."""
        return self._message([growing.whole() for growing in self._blocks], self.ending())

    def empty(self) -> Message:
        """The message as it begins, with what was used by then."""
        return self._message([], Ending())

    def ending(self) -> Ending:
        """Why it ended; nothing of that while it has not."""
        last = self._last
        if last is None or last.finish_reason is None:
            return Ending()
        if last.finish_reason == "stop" and isinstance(last.stop_reason, str):
            return Ending(stop_reason="stop_sequence", stop_sequence=last.stop_reason)
        return Ending(stop_reason=_REASONS[last.finish_reason])

    def usage(self) -> MessageUsage:
        """What it used so far."""
        return _usage(self._usage)

    def _message(self, content: list[ContentBlock], ending: Ending) -> Message:
        return Message(
            id=self._reply.id,
            model=self._reply.model,
            content=content,
            stop_reason=ending.stop_reason,
            stop_sequence=ending.stop_sequence,
            usage=self.usage(),
        )

    def _tail(self, kind: type[Text] | type[Thought]) -> Growing:
        """The last block, a new one unless it is of this kind."""
        if not self._blocks or not isinstance(self._blocks[-1], kind):
            self._blocks.append(kind())
        return self._blocks[-1]

    def _call(self, delta: ToolCallDelta) -> None:
        call = self._calls.get(delta.index)
        if call is None:
            call = self._calls[delta.index] = Call(delta)
            self._blocks.append(call)
        call.add(delta.arguments)

    def _end(self, last: Piece) -> None:
        """Every answer has a text or a call; the text may be empty."""
        self._last = last
        if all(isinstance(growing, Thought) for growing in self._blocks):
            self._blocks.append(Text())

    def _flow(self) -> Iterator[MessageEvent]:
        while self._at < len(self._blocks):
            growing = self._blocks[self._at]
            yield from growing.flow(self._at)
            is_over = self._last is not None or (growing is not self._blocks[-1] and growing.is_whole)
            if not is_over:
                return
            yield from growing.close(self._at)
            self._at += 1


class MessageStream:
    """Chunks → events. There is no end mark beside the last of them."""

    def __init__(self, answer: ChatAnswer) -> None:
        self._content = Content(answer)
        self._has_begun = False

    def encode(self, chunk: Chunk) -> bytes:
        """The events that show `chunk`; before the first of them the message itself."""
        events = b"".join(map(_event, self._content.take(chunk)))
        if not events or self._has_begun:
            return events
        self._has_begun = True
        return _event(MessageStart(message=self._content.empty())) + PING + events

    def finish(self) -> bytes:
        """Why the message ended, and its usage, which is all of it and not only what is new."""
        delta = MessageDeltaEvent(delta=self._content.ending(), usage=self._content.usage())
        return _event(delta) + _event(MessageStop())

    def fail(self, envelope: bytes) -> bytes:
        """The error alone."""
        return b"event: error\ndata: " + envelope + b"\n\n"


class MessageFolder:
    """Chunks → one message."""

    def __init__(self, answer: ChatAnswer) -> None:
        self._content = Content(answer)

    def add(self, chunk: Chunk) -> None:
        """Take in the next chunk."""
        for _ in self._content.take(chunk):
            pass

    def body(self) -> bytes:
        """The message."""
        return to_json(self._content.message())


def _event(event: MessageEvent) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(event.__struct_config__.tag).encode(), to_json(event))


def _signature(thought: str) -> str:
    return hashlib.sha256(thought.encode()).hexdigest() if thought else ""


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object that `text` is, None when it is none."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _usage(usage: Usage) -> MessageUsage:
    """Cached tokens stand beside the other ones of the prompt, not among them."""
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        cache_creation_input_tokens=0,
        cache_read_input_tokens=usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        output_tokens_details=MessageTokensDetails(thinking_tokens=usage.reasoning_tokens),
    )
