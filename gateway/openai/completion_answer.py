"""Chunks → the answer of a completion, as events or as one body. Both take their pieces from `CompletionChoice`."""

from __future__ import annotations

import codecs
from typing import Any

from msgspec import Struct

from backends.types import Chunk, FinishReason, TokenLogprob, Usage
from gateway.openai.answer import Events, Reply, usage_object
from gateway.openai.sse import error_event
from gateway.openai.text import clean, finite, to_json


class CompletionAnswer(Struct, frozen=True, kw_only=True):
    """What of a completion's request shapes its answer.

    `logprobs` None shows none, 0 those of the chosen tokens alone.
    """

    reply: Reply
    num_choices: int = 1
    logprobs: int | None = None


class Logprobs(Struct, frozen=True):
    """Four lists of equal length. Offsets count characters from the start of the returned text, echo included."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Piece(Struct, frozen=True, kw_only=True):
    """What one chunk adds to a choice that a client may see."""

    text: str
    logprobs: Logprobs | None
    finish_reason: str | None
    stop_reason: str | int | None


class CompletionChoice:
    """One choice while it is made: keeps count of its characters, and sees to it that it ends once."""

    def __init__(self, logprobs: int | None) -> None:
        self._num_top = logprobs
        self._held: list[TokenLogprob] = []  # rows of tokens whose text is still to come
        self._length = 0  # characters returned so far
        self.finish_reason: str | None = None

    def take(self, chunk: Chunk) -> Piece | None:
        """What `chunk` adds, None when that is nothing to see yet."""
        if self.finish_reason is not None:
            return None
        if chunk.logprobs and self._num_top is not None:
            self._held.extend(chunk.logprobs)
        if chunk.finish_reason is not None:
            self.finish_reason = _finish(chunk.finish_reason)
        elif not chunk.text:
            return None
        text = clean(chunk.text)
        logprobs = self._release(len(text)) if self._held else None
        self._length += len(text)
        return Piece(text=text, logprobs=logprobs, finish_reason=self.finish_reason, stop_reason=chunk.stop_reason)

    def _release(self, length: int) -> Logprobs:
        """The held rows, for a text of `length` characters that comes next.

        A token may end inside a character, so places are counted over the tokens' bytes: a token begins behind the last
        whole character before it.
        """
        rows, self._held = self._held, []
        decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        shown = Logprobs([], [], [], [])
        place = 0
        for row in rows:
            shown.tokens.append(clean(row.token))
            shown.token_logprobs.append(None if row.logprob is None else finite(row.logprob))
            shown.top_logprobs.append(None if row.logprob is None else _top(row, self._num_top or 0))
            shown.text_offset.append(self._length + min(place, length))
            place += len(decoder.decode(row.bytes))
        return shown


class CompletionStream:
    """Chunks → events. Text and finish have events of their own."""

    def __init__(self, answer: CompletionAnswer) -> None:
        self._events = Events(answer.reply, "text_completion")
        self._choices = [CompletionChoice(answer.logprobs) for _ in range(answer.num_choices)]

    def encode(self, chunk: Chunk) -> bytes:
        """The events that show `chunk`. An upstream's own event goes out as it came."""
        self._events.usage = chunk.usage
        piece = self._choices[chunk.index].take(chunk)
        if chunk.wire is not None:
            return chunk.wire
        if piece is None:
            return b""
        shown = b""
        logprobs = piece.logprobs
        if piece.text:
            shown = self._event(chunk.index, piece.text, logprobs)
            logprobs = None
        if piece.finish_reason is not None:
            shown += self._event(chunk.index, "", logprobs, piece.finish_reason, piece.stop_reason)
        return shown

    def finish(self) -> bytes:
        """The usage, where it was asked for, and the end mark."""
        return self._events.finish()

    def fail(self, envelope: bytes) -> bytes:
        """The error and the end mark."""
        return error_event(envelope)

    def _event(
        self,
        index: int,
        text: str,
        logprobs: Logprobs | None,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
    ) -> bytes:
        stop = b"" if stop_reason is None else b',"stop_reason":' + to_json(stop_reason)
        return self._events.event(
            b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b%b}'
            % (index, to_json(text), to_json(logprobs), to_json(finish_reason), stop)
        )


class CompletionFolder:
    """Chunks → one `text_completion` object."""

    def __init__(self, answer: CompletionAnswer) -> None:
        self._answer = answer
        self._choices = [CompletionChoice(answer.logprobs) for _ in range(answer.num_choices)]
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
        members = self._answer.reply.members("text_completion")
        return to_json({**members, "choices": choices, "usage": usage_object(self._usage)})

    def _choice(self, index: int, pieces: list[Piece]) -> dict[str, Any]:
        last = pieces[-1] if pieces else None
        return {
            "index": index,
            "text": "".join(piece.text for piece in pieces),
            "logprobs": None if self._answer.logprobs is None else _join(pieces),
            "finish_reason": last and last.finish_reason,
            "stop_reason": last and last.stop_reason,
        }


def _finish(reason: FinishReason) -> str:
    """This route knows no tool calls."""
    return "stop" if reason is FinishReason.TOOL_CALLS else reason.value


def _top(row: TokenLogprob, num_top: int) -> dict[str, float]:
    """The best tokens, and the chosen one where it is not among them. Of tokens that look alike the best one stays."""
    shown: dict[str, float] = {}
    for other in row.top[:num_top]:
        shown.setdefault(clean(other.token), finite(other.logprob))
    shown.setdefault(clean(row.token), finite(row.logprob))
    return shown


def _join(pieces: list[Piece]) -> Logprobs:
    whole = Logprobs([], [], [], [])
    for piece in pieces:
        if piece.logprobs is not None:
            whole.tokens.extend(piece.logprobs.tokens)
            whole.token_logprobs.extend(piece.logprobs.token_logprobs)
            whole.top_logprobs.extend(piece.logprobs.top_logprobs)
            whole.text_offset.extend(piece.logprobs.text_offset)
    return whole
