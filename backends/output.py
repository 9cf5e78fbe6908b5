"""Token ids of one choice to pieces of text: characters whole, stop strings held back, logprob rows aligned."""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from backends.types import FinishReason, SamplingParams, TokenLogprob


class Detokenizer(Protocol):
    """Incremental decoding of one token stream; never gives out a part of a character."""

    def add(self, token_id: int) -> str:
        """The text this token completes; empty while a character is incomplete or the token has no text."""
        ...

    def flush(self) -> str:
        """What was still held, at the end of the stream; U+FFFD stands for bytes that never became a character."""
        ...


class BytesDetokenizer:
    """UTF-8, for vocabularies whose tokens are plain bytes. `bytes_of` is called once a token, in order."""

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int) -> str:
        return self._decoder.decode(self._bytes_of(token_id))

    def flush(self) -> str:
        return self._decoder.decode(b"", True)


class Piece(Struct, frozen=True, kw_only=True):
    """What one token, or the end, released. `token_ids` and `logprobs` belong to tokens whose text came out with it."""

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None

    def then(self, later: Piece) -> Piece:
        """Both as one, for a token that is also the last."""
        rows = (self.logprobs or ()) + (later.logprobs or ())
        return Piece(
            text=self.text + later.text,
            token_ids=self.token_ids + later.token_ids,
            logprobs=rows or None,
            finish_reason=later.finish_reason or self.finish_reason,
            stop_reason=later.stop_reason if later.finish_reason else self.stop_reason,
        )


NOTHING = Piece()


class _Row(Struct, frozen=True):
    """A token that still waits for its text. `starts_at` is how many characters had been decoded before it."""

    starts_at: int
    token_id: int
    logprob: TokenLogprob | None


class _StopString:
    """Matches one stop string in linear time (Knuth, Morris and Pratt).

    `matched` is the length of the longest prefix of `text` that the stream now ends with.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._borders = _borders(text)

    def feed(self, char: str) -> bool:
        """Take the next character; True when the stream now ends with the whole stop string."""
        matched = self.matched
        if matched == len(self.text):
            matched = self._borders[matched]
        while matched and self.text[matched] != char:
            matched = self._borders[matched]
        self.matched = matched + (self.text[matched] == char)
        return self.matched == len(self.text)

    @property
    def num_held(self) -> int:
        """Characters at the end of the stream that could be the beginning of this stop string."""
        return self._borders[self.matched] if self.matched == len(self.text) else self.matched


def _borders(text: str) -> list[int]:
    """`borders[k]`: length of the longest proper prefix of `text[:k]` that is also its suffix."""
    borders = [0] * (len(text) + 1)
    for end in range(2, len(text) + 1):
        size = borders[end - 1]
        while size and text[size] != text[end - 1]:
            size = borders[size]
        borders[end] = size + (text[size] == text[end - 1])
    return borders


class Output:
    """The text side of one choice.

    Text is held back only while it could still become a stop string, so it is the same for every way to split it into
    tokens: it is cut at the stop string that is complete first, and among those that end at the same character at the
    longest. A stop string does not count while fewer than `min_tokens` tokens are there. Tokens that come after the end
    are dropped and not counted.
    """

    def __init__(self, detokenizer: Detokenizer, sampling: SamplingParams) -> None:
        self._detokenizer = detokenizer
        self._stops = [_StopString(stop) for stop in sampling.stop if stop]
        self._keeps_stop = sampling.include_stop_str_in_output
        self._min_tokens = sampling.min_tokens
        self._rows: deque[_Row] = deque()
        self._held = ""
        self._released = 0
        self.num_tokens = 0
        self.finished = False

    def add(self, token_id: int, logprob: TokenLogprob | None = None) -> Piece:
        """Take the next generated token. The piece has a finish reason when it completed a stop string."""
        if self.finished:
            return NOTHING
        self.num_tokens += 1
        self._rows.append(_Row(self._released + len(self._held), token_id, logprob))
        return self._take(self._detokenizer.add(token_id))

    def flush(self) -> Piece:
        """Release what is held although the choice goes on, as when a tool call follows the text."""
        if self.finished:
            return NOTHING
        piece = self._take(self._detokenizer.flush())
        return piece if piece.finish_reason else piece.then(self._release_all())

    def finish(
        self, reason: FinishReason, stop_reason: str | int | None = None, *, end_token_id: int | None = None
    ) -> Piece:
        """The model or a cap ended the choice: release what is held.

        The end token has no text and no logprob row; with `end_token_id` it is counted and is the last of `token_ids`.
        Held bytes may complete a stop string, which then is the reason.
        """
        if self.finished:
            return NOTHING
        self.num_tokens += end_token_id is not None
        piece = self.flush()
        self.finished = True
        if piece.finish_reason:
            return piece
        end = (end_token_id,) if end_token_id is not None else ()
        return piece.then(Piece(token_ids=end, finish_reason=reason, stop_reason=stop_reason))

    def _take(self, text: str) -> Piece:
        found = self._scan(text)
        if found is not None:
            return self._cut(text, *found)
        self._held += text
        num_held = max((stop.num_held for stop in self._stops), default=0)
        return self._release(len(self._held) - num_held)

    def _scan(self, text: str) -> tuple[str, int] | None:
        """The stop string that is complete first, and where in `text` it ends."""
        if not self._stops:
            return None
        for end, char in enumerate(text, 1):
            complete = [stop.text for stop in self._stops if stop.feed(char)]
            if complete and self.num_tokens >= self._min_tokens:
                return max(complete, key=len), end
        return None

    def _cut(self, text: str, stop: str, end: int) -> Piece:
        """End the choice at a stop string; tokens that begin at or after the cut are dropped."""
        self.finished = True
        self._held += text[:end]
        piece = self._release(len(self._held) - (0 if self._keeps_stop else len(stop)))
        self._rows.clear()
        return piece.then(Piece(finish_reason=FinishReason.STOP, stop_reason=stop))

    def _release(self, size: int) -> Piece:
        """Give out the first `size` held characters, with the rows of all tokens that begin among them."""
        if size <= 0:
            return NOTHING
        text, self._held = self._held[:size], self._held[size:]
        self._released += size
        rows = []
        while self._rows and self._rows[0].starts_at < self._released:
            rows.append(self._rows.popleft())
        return _piece(text, rows)

    def _release_all(self) -> Piece:
        """Everything held, and the rows of tokens without text at the end."""
        text, self._held = self._held, ""
        self._released += len(text)
        rows = list(self._rows)
        self._rows.clear()
        for stop in self._stops:
            stop.matched = 0
        return _piece(text, rows)


def _piece(text: str, rows: list[_Row]) -> Piece:
    logprobs = tuple(row.logprob for row in rows if row.logprob is not None)
    return Piece(text=text, token_ids=tuple(row.token_id for row in rows), logprobs=logprobs or None)
