"""Token ids → text, one token at a time, without ever splitting a character or showing prompt text. No stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

REPLACEMENT = "�"
TAIL_TOKENS = 6  # enough to give the first output token its left context, and cheap to decode
STALE_TOKENS = 32  # no character spans this many tokens: what is still held then is broken bytes or silent tokens
MAX_SPLIT = 3  # a character has at most 4 bytes, so at most its first 3 can be waiting for the last


class TokenStream(Protocol):
    """Incremental decoding, with the rule of `tokenizers.decoders.DecodeStream`."""

    def step(self, token_ids: list[int]) -> str | None:
        """Text released by `token_ids`, or None while it may still change. May raise on an inconsistent prefix."""
        ...


class Vocabulary(Protocol):
    """What a detokenizer needs of a tokenizer."""

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Text of all ids together."""
        ...

    def stream(self, seed: list[int], skip_special_tokens: bool) -> TokenStream:
        """A stream that has `seed` as its left context and has already shown it."""
        ...


class StreamDetokenizer:
    """The text of one choice.

    The stream is seeded with a short tail of the prompt, because SentencePiece decoders drop the leading space of the
    first token they see. A tail that ends inside a character is not used: its completion would be shown as output.
    """

    def __init__(
        self, vocabulary: Vocabulary, prompt_ids: Sequence[int] = (), skip_special_tokens: bool = True
    ) -> None:
        self._vocabulary = vocabulary
        self._skip = skip_special_tokens
        self._seed = self._clean_tail(prompt_ids)
        self._stream = vocabulary.stream(self._seed, skip_special_tokens)
        self._ids: list[int] = []
        self._pending: list[int] = []  # ids since the last text was released
        self._released: list[str] = []

    def add(self, token_id: int) -> str:
        """Text that `token_id` releases; "" while its bytes are incomplete or it has none."""
        self._ids.append(token_id)
        self._pending.append(token_id)
        try:
            text = self._stream.step([token_id])
        except Exception:  # tokenizers raises a bare Exception when earlier text would have to change
            text = self._restart()
        if text is None:
            return self._release_broken() if len(self._pending) >= STALE_TOKENS else ""
        self._pending.clear()
        self._released.append(text)
        return text

    def flush(self) -> str:
        """The rest, at the end: a character that was cut off shows as U+FFFD, as in a decode of the whole."""
        if not self._pending:
            return ""
        before = self._decode(self._seed) + "".join(self._released)
        whole = self._decode(self._seed + self._ids)
        rest = whole[len(before) :] if whole.startswith(before) else self._decode(self._pending)
        self._pending.clear()
        self._released.append(rest)
        return rest

    def _restart(self) -> str | None:
        """Forget the context and go on from the held tokens; what was shown stays shown."""
        self._stream = self._vocabulary.stream([], self._skip)
        return self._stream.step(list(self._pending))

    def _release_broken(self) -> str:
        """Show held bytes that can never become text, so that a long run of them stays linear in time.

        The last few tokens may begin a character and stay held; the cut is taken only where it changes nothing.
        """
        held = self._decode(self._pending)
        for split in range(MAX_SPLIT, -1, -1):
            cut = len(self._pending) - split
            text = self._decode(self._pending[:cut])
            if text + self._decode(self._pending[cut:]) == held:
                return self._release(cut, text)
        return ""

    def _release(self, cut: int, text: str) -> str:
        kept = self._pending[cut:]
        shown = self._ids[: len(self._ids) - len(kept)]
        self._stream = self._vocabulary.stream(self._clean_tail(self._seed + shown), self._skip)
        self._pending = kept
        self._released.append(text)
        more = self._stream.step(list(kept)) if kept else None
        if more is None:
            return text
        self._pending = []
        self._released.append(more)
        return text + more

    def _clean_tail(self, token_ids: Sequence[int]) -> list[int]:
        tail = list(token_ids[-TAIL_TOKENS:])
        return [] if self._decode(tail).endswith(REPLACEMENT) else tail

    def _decode(self, token_ids: Sequence[int]) -> str:
        return self._vocabulary.decode(token_ids, self._skip) if token_ids else ""
