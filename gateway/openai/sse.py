"""How an answer reaches the client: as server-sent events while it is made, or folded into one body."""

from __future__ import annotations

from typing import Protocol

from backends.types import Chunk

DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"  # says nothing


class StreamEncoder(Protocol):
    """Chunks → events of one stream. Made for one request; `encode` is called in the order of the chunks."""

    def encode(self, chunk: Chunk) -> bytes:
        """The events that show `chunk`: none, one or several."""
        ...

    def finish(self) -> bytes:
        """The last events: the usage, where it was asked for, and the end mark."""
        ...

    def fail(self, envelope: bytes) -> bytes:
        """The last events of a stream that fails after its status went out; `envelope` tells the error."""
        ...


class Folder(Protocol):
    """Chunks → one JSON answer, equal to what the stream would have added up to."""

    def add(self, chunk: Chunk) -> None:
        """Take in the next chunk."""
        ...

    def body(self) -> bytes:
        """The answer so far."""
        ...


def error_event(envelope: bytes) -> bytes:
    """How streams of choices fail: the error envelope as an event, then the end mark, never a finish reason."""
    return b"data: " + envelope + b"\n\n" + DONE
