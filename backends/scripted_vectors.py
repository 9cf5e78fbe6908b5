"""One request of the scripted backend while it is embedded: one vector a round. Never waits."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence

from backends.script import Script
from backends.scripted_answer import Tally
from backends.scripted_play import Play
from backends.types import Chunk, FinishReason
from backends.vectors import packed, shortened, unit


class Vectors(Play):
    """The vectors of `inputs`, which are token ids. The model's have `size` numbers, of which `dimensions` are kept."""

    def __init__(
        self, inputs: Sequence[tuple[int, ...]], script: Script | None, size: int, dimensions: int | None
    ) -> None:
        super().__init__(script)
        self._inputs = inputs
        self._size, self._dimensions = size, dimensions
        self._num_made = 0
        self._tally = Tally(0, 0, is_reported=self._script.usage == "reported")

    @property
    def num_active(self) -> int:
        """One vector, until there are all."""
        return int(self._num_made < len(self._inputs))

    @property
    def num_made(self) -> int:
        """Vectors so far."""
        return self._num_made

    def open(self) -> Iterator[Chunk]:
        """The empty chunk that says work has begun."""
        yield Chunk(usage=self._tally.usage())

    def step(self) -> Iterator[Chunk]:
        """The next vector. Its input is used from now on, so that whoever leaves pays for what was read."""
        index, self._num_made = self._num_made, self._num_made + 1
        self._tally.prompt_tokens += len(self._inputs[index])
        self._tally.cached_tokens = min(self._script.cached_tokens, self._tally.prompt_tokens)
        vector = packed(self._vector(index))
        yield Chunk(usage=self._tally.usage(), index=index, vector=vector, finish_reason=FinishReason.STOP)

    def _vector(self, index: int) -> list[float]:
        given = self._script.vectors
        values = [*map(float, given[index])] if index < len(given) else hashed(self._inputs[index], self._size)
        return values if self._dimensions is None else shortened(values, self._dimensions)


def hashed(token_ids: Sequence[int], size: int) -> list[float]:
    """A unit vector that depends on these ids alone, the same in every process."""
    data = hashlib.shake_128(struct.pack(f"<{len(token_ids)}I", *token_ids)).digest(4 * size)
    return unit([*map(float, struct.unpack(f"<{size}i", data))])
