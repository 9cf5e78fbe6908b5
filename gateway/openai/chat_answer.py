"""Chunks → the answer of a chat, as a stream of events or as one body. Both take their pieces from `ChatChoice`."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from backends.types import Chunk, FinishReason, TokenLogprob, ToolCallDelta, Usage
from gateway.openai.answer import Events, Reply, usage_object
from gateway.openai.sse import error_event
from gateway.openai.text import clean, finite, to_json


class ChatAnswer(Struct, frozen=True, kw_only=True):
    """What of a chat's request shapes its answer.

    `top_logprobs` None shows no logprobs, 0 those of the chosen tokens alone. `prefix` is text that begins each
    choice. `calls_as_functions` shows a call in the deprecated way; `has_named_call` means that the client named the
    function.
    """

    reply: Reply
    num_choices: int = 1
    top_logprobs: int | None = None
    prefix: str = ""
    show_reasoning: bool = True
    one_call: bool = False
    calls_as_functions: bool = False
    has_named_call: bool = False


class Piece(Struct, frozen=True, kw_only=True):
    """What one chunk adds to a choice that a client may see. `logprobs` is None where there is nothing to tell."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCallDelta, ...] = ()
    logprobs: list[dict[str, Any]] | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class ChatChoice:
    """One choice while it is made: sees to it that ids and names come once, and that it ends once."""

    def __init__(self, answer: ChatAnswer) -> None:
        self._answer = answer
        self._calls: dict[int, int] = {}  # the backend's index of a call → ours, which have no gaps
        self._held: list[TokenLogprob] = []  # rows of tokens whose text is still to come
        self.finish_reason: str | None = None

    def take(self, chunk: Chunk) -> Piece | None:
        """What `chunk` adds, None when that is nothing to see yet."""
        if self.finish_reason is not None:
            return None
        reasoning = clean(chunk.reasoning) if self._answer.show_reasoning else ""
        if chunk.logprobs and self._answer.top_logprobs is not None and (reasoning or not chunk.reasoning):
            self._held.extend(chunk.logprobs)
        calls = self._own_calls(chunk.tool_calls) if chunk.tool_calls else ()
        if chunk.finish_reason is not None:
            self.finish_reason = self._finish(chunk.finish_reason)
        elif not (chunk.text or reasoning or calls):
            return None
        return Piece(
            text=clean(chunk.text),
            reasoning=reasoning,
            calls=calls,
            logprobs=self._release() if self._held else None,
            finish_reason=self.finish_reason,
            stop_reason=chunk.stop_reason,
        )

    def _own_calls(self, deltas: Iterable[ToolCallDelta]) -> tuple[ToolCallDelta, ...]:
        return tuple(own for delta in deltas if (own := self._own_call(delta)) is not None)

    def _own_call(self, delta: ToolCallDelta) -> ToolCallDelta | None:
        """`delta` under our index, with id and name if it begins its call; None for a call that was not wanted."""
        arguments = clean(delta.arguments)
        index = self._calls.get(delta.index)
        if index is not None:
            return ToolCallDelta(index=index, arguments=arguments) if arguments else None
        if self._answer.one_call and self._calls:
            return None
        index = self._calls[delta.index] = len(self._calls)
        call_id = clean(delta.id or f"call_{secrets.token_hex(12)}")
        return ToolCallDelta(index=index, id=call_id, name=clean(delta.name or ""), arguments=arguments)

    def _release(self) -> list[dict[str, Any]]:
        rows, self._held = self._held, []
        return [_entry(row, self._answer.top_logprobs or 0) for row in rows]

    def _finish(self, reason: FinishReason) -> str:
        """A choice with calls ends in `tool_calls`, but in `stop` when the client itself named the function."""
        if reason not in (FinishReason.STOP, FinishReason.TOOL_CALLS):
            return reason.value
        if not self._calls or self._answer.has_named_call:
            return "stop"
        return "function_call" if self._answer.calls_as_functions else "tool_calls"


class ChatStream:
    """Chunks → events.

    All roles come first, in the order of the choices; text, calls and finish have events of their own.
    """

    def __init__(self, answer: ChatAnswer) -> None:
        self._answer = answer
        self._events = Events(answer.reply, "chat.completion.chunk")
        self._choices = [ChatChoice(answer) for _ in range(answer.num_choices)]
        self._has_begun = False

    def encode(self, chunk: Chunk) -> bytes:
        """The events that show `chunk`. An upstream's own event goes out as it came."""
        self._events.usage = chunk.usage
        piece = self._choices[chunk.index].take(chunk)
        if chunk.wire is not None:
            return chunk.wire
        if piece is None:
            return b""
        events: list[bytes] = []
        if not self._has_begun:  # its events show no token yet
            self._events.usage = replace(chunk.usage, completion_tokens=0, reasoning_tokens=0)
            events = self._begin(chunk.index, piece)
            self._events.usage = chunk.usage
        events += self._show(chunk.index, piece)
        return b"".join(events)

    def finish(self) -> bytes:
        """The usage, where it was asked for, and the end mark."""
        return self._events.finish()

    def fail(self, envelope: bytes) -> bytes:
        """The error and the end mark."""
        return error_event(envelope)

    def _begin(self, index: int, piece: Piece) -> list[bytes]:
        self._has_begun = True
        begins_with_call = bool(piece.calls) and not (piece.text or piece.reasoning or self._answer.prefix)
        events = []
        for number in range(self._answer.num_choices):
            content = None if begins_with_call and number == index else ""
            events.append(self._event(number, {"role": "assistant", "content": content, "refusal": None}))
        if self._answer.prefix:
            content = clean(self._answer.prefix)
            events += [self._event(number, {"content": content}) for number in range(self._answer.num_choices)]
        return events

    def _show(self, index: int, piece: Piece) -> list[bytes]:
        """The logprobs go with the last of the deltas, or with the finish when there is none."""
        deltas = self._deltas(piece)
        events = [self._event(index, delta) for delta in deltas[:-1]]
        rows = piece.logprobs
        if deltas:
            events.append(self._event(index, deltas[-1], rows))
            rows = None
        if piece.finish_reason is not None:
            events.append(self._finish_event(index, piece, rows))
        return events

    def _deltas(self, piece: Piece) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        if piece.reasoning:
            deltas.append({"reasoning_content": piece.reasoning, "reasoning": piece.reasoning})
        if piece.text:
            deltas.append({"content": piece.text})
        if piece.calls and self._answer.calls_as_functions:
            deltas += [{"function_call": _function_delta(call)} for call in piece.calls]
        elif piece.calls:
            deltas.append({"tool_calls": [_call_delta(call) for call in piece.calls]})
        return deltas

    def _event(self, index: int, delta: dict[str, Any], rows: list[dict[str, Any]] | None = None) -> bytes:
        shown = to_json(delta)
        return self._events.event(
            b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":null}' % (index, shown, _logprobs_json(rows))
        )

    def _finish_event(self, index: int, piece: Piece, rows: list[dict[str, Any]] | None) -> bytes:
        stop_reason = b"" if piece.stop_reason is None else b',"stop_reason":' + to_json(piece.stop_reason)
        return self._events.event(
            b'{"index":%d,"delta":{},"logprobs":%b,"finish_reason":%b%b}'
            % (index, _logprobs_json(rows), to_json(piece.finish_reason), stop_reason)
        )


class ChatFolder:
    """Chunks → one `chat.completion` object."""

    def __init__(self, answer: ChatAnswer) -> None:
        self._answer = answer
        self._choices = [ChatChoice(answer) for _ in range(answer.num_choices)]
        self._pieces: list[list[Piece]] = [[] for _ in range(answer.num_choices)]
        self._usage = Usage()

    def add(self, chunk: Chunk) -> None:
        """Take in the next chunk."""
        self._usage = chunk.usage
        piece = self._choices[chunk.index].take(chunk)
        if piece is not None:
            self._pieces[chunk.index].append(piece)

    def body(self) -> bytes:
        """The answer, its choices sorted by index."""
        choices = [self._choice(index, pieces) for index, pieces in enumerate(self._pieces)]
        members = self._answer.reply.members("chat.completion")
        return to_json({**members, "choices": choices, "usage": usage_object(self._usage)})

    def _choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        rows = [row for piece in pieces for row in piece.logprobs or ()]
        last = pieces[-1] if pieces else Piece()
        return {
            "index": index,
            "message": self._message(pieces),
            "logprobs": None if self._answer.top_logprobs is None else {"content": rows, "refusal": None},
            "finish_reason": last.finish_reason,
            "stop_reason": last.stop_reason,
        }

    def _message(self, pieces: list[Piece]) -> dict[str, Any]:
        text = clean(self._answer.prefix) + "".join(piece.text for piece in pieces)
        reasoning = "".join(piece.reasoning for piece in pieces)
        calls = _join_calls(call for piece in pieces for call in piece.calls)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": None if calls and not text else text,
            "refusal": None,
            "annotations": [],
        }
        if reasoning:
            message |= {"reasoning_content": reasoning, "reasoning": reasoning}
        if calls and self._answer.calls_as_functions:
            message["function_call"] = calls[0]["function"]
        elif calls:
            message["tool_calls"] = calls
        return message


def _entry(row: TokenLogprob, top: int) -> dict[str, Any]:
    """One token of `logprobs.content`, with its `top` best alternatives."""
    alternatives = [_token(other.token, other.logprob, other.bytes) for other in row.top[:top]]
    return {**_token(row.token, row.logprob, row.bytes), "top_logprobs": alternatives}


def _token(token: str, logprob: float | None, raw: bytes) -> dict[str, Any]:
    """A token without bytes of its own, such as a special one, has null for them."""
    return {"token": clean(token), "logprob": finite(logprob), "bytes": list(raw) if raw else None}


def _logprobs_json(rows: list[dict[str, Any]] | None) -> bytes:
    return b"null" if rows is None else to_json({"content": rows, "refusal": None})


def _call_delta(call: ToolCallDelta) -> dict[str, Any]:
    start = {} if call.id is None else {"id": call.id, "type": "function"}
    return {"index": call.index, **start, "function": _function_delta(call)}


def _function_delta(call: ToolCallDelta) -> dict[str, Any]:
    name = {} if call.name is None else {"name": call.name}
    return {**name, "arguments": call.arguments}


def _join_calls(deltas: Iterable[ToolCallDelta]) -> list[dict[str, Any]]:
    calls: dict[int, list[ToolCallDelta]] = {}
    for delta in deltas:
        calls.setdefault(delta.index, []).append(delta)
    return [
        {
            "id": parts[0].id,
            "type": "function",
            "function": {"name": parts[0].name, "arguments": "".join(part.arguments for part in parts)},
        }
        for _, parts in sorted(calls.items())
    ]
