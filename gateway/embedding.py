"""Asks a backend for vectors, and lets none through that an answer could not carry."""

from __future__ import annotations

import math
import struct
from collections.abc import AsyncGenerator
from contextlib import aclosing

from backends.base import Backend, Embedding
from backends.errors import BackendFailed, NotFinite, UnsupportedParameter
from backends.types import Chunk, EmbedRequest

FLOAT_BYTES = 4


def vectors(request: EmbedRequest, backend: Backend) -> AsyncGenerator[Chunk, None]:
    """The vectors of `request`; closing it cancels. Raises `UnsupportedParameter` where the backend makes none.

    While it goes on it raises what the backend raises, `NotFinite`, and `BackendFailed` for a vector that is missing.
    """
    if not isinstance(backend, Embedding):
        raise UnsupportedParameter(f"The model '{request.model[:200]}' cannot make embeddings here.", param="model")
    return _checked(backend.embed(request), request.model)


async def _checked(chunks: AsyncGenerator[Chunk, None], model: str) -> AsyncGenerator[Chunk, None]:
    async with aclosing(chunks):
        async for chunk in chunks:
            if chunk.finish_reason is not None:
                if not chunk.vector:
                    raise BackendFailed("The backend ended an input without a vector.")
                if not is_finite(chunk.vector):
                    raise NotFinite(
                        f"The model '{model[:200]}' made a vector for input {chunk.index} that holds NaN or infinity, "
                        "which JSON cannot carry. Leave this input out, or change it."
                    )
            yield chunk


def numbers(vector: bytes) -> tuple[float, ...]:
    """The little-endian float32s of a vector."""
    return struct.unpack(f"<{len(vector) // FLOAT_BYTES}f", vector)


def is_finite(vector: bytes) -> bool:
    """Whether all its numbers are. As doubles so many float32s cannot overflow, so their sum tells."""
    return math.isfinite(sum(numbers(vector)))
