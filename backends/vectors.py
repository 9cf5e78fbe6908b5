"""The vectors of embeddings: shortened, and packed as they cross the contract of backends."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence


def unit(values: Sequence[float]) -> list[float]:
    """The same direction at length 1; what has no length stays as it is."""
    norm = math.hypot(*values)
    return [value / norm for value in values] if norm else list(values)


def shortened(values: Sequence[float], dimensions: int) -> list[float]:
    """The first `dimensions` numbers, at length 1 again: what fewer of them mean to a model trained so (Matryoshka)."""
    return unit(values[:dimensions])


def packed(values: Sequence[float]) -> bytes:
    """Little-endian float32. Raises `OverflowError` for a finite number beyond its range."""
    return struct.pack(f"<{len(values)}f", *values)


def first_numbers(vector: bytes, dimensions: int | None) -> bytes:
    """A packed vector `shortened`; as it is where it has no more numbers, or None are asked for."""
    num_numbers = len(vector) // 4
    if dimensions is None or dimensions == num_numbers:
        return vector
    return packed(shortened(struct.unpack(f"<{num_numbers}f", vector), dimensions))
