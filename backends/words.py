"""Words as tokens, for a backend without a model: splitting, stable ids, and a bounded memory from ids to words."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Sequence

VOCABULARY_SIZE = 1 << 24
REMEMBERED_WORDS = 1 << 16
UNKNOWN_WORD = "\N{REPLACEMENT CHARACTER}".encode()
WORDS = re.compile(r"\s*\S+(?:\s+\Z)?|\s+")


def split_words(text: str) -> list[bytes]:
    """Words with the white space before them; trailing white space joins the last word."""
    return [word.encode("utf-8", "replace") for word in WORDS.findall(text)]


def count_words(text: str) -> int:
    """How many words `split_words` finds."""
    return len(text.split()) or len(text[:1])


def word_id(word: bytes) -> int:
    """A 24-bit hash of the word: the same in every process."""
    return int.from_bytes(hashlib.blake2b(word, digest_size=3).digest(), "little")


END_TOKEN_ID = word_id(b"")


class Vocabulary:
    """Words to ids, and back for the words seen lately. Safe to use from several threads."""

    def __init__(self, size: int = REMEMBERED_WORDS) -> None:
        self._size = size
        self._words: OrderedDict[int, bytes] = OrderedDict()
        self._lock = threading.Lock()

    def ids_of(self, words: Sequence[bytes]) -> tuple[int, ...]:
        """The ids of `words`, which are remembered."""
        ids = tuple(word_id(word) for word in words)
        with self._lock:
            for token_id, word in zip(ids[-self._size :], words[-self._size :], strict=True):
                self._words[token_id] = word
                self._words.move_to_end(token_id)
            while len(self._words) > self._size:
                self._words.popitem(last=False)
        return ids

    def words_of(self, ids: Sequence[int]) -> list[bytes]:
        """The words of `ids`: U+FFFD for one never seen or forgotten, nothing for the end token."""
        with self._lock:
            return [b"" if token_id == END_TOKEN_ID else self._words.get(token_id, UNKNOWN_WORD) for token_id in ids]
