"""The Structs that cross the engine's socket, both ways, and their framing. No torch.

A frame is a 4-byte little-endian length and one msgpack message. The front says `Hello` first, the engine answers
`Welcome` (once the model is loaded and warm) or closes; with another protocol version it answers `Refused`. Sequence
ids are made by the front and are unique in its connection; a closed connection aborts its sequences.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec
from msgspec import Struct

from backends.types import FinishReason

PROTOCOL_VERSION = 2
MAX_FRAME_BYTES = 256 * 1024 * 1024


class Hello(Struct, tag=True, array_like=True):
    """Front → engine, first."""

    version: int


class Submit(Struct, tag=True, array_like=True):
    """Front → engine: generate, or make a vector (where only the first two fields and those of its lane and deadline
    count). Instants are `time.monotonic()` of this machine; fields as in `TokenParams`."""

    id: int
    prompt_ids: list[int]
    max_tokens: int
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    stop_token_ids: list[int] = []
    lane: str = "standard"
    tenant: str = "default"
    weight: float = 1.0
    arrived_at: float = 0.0
    first_token_at: float | None = None
    deadline_at: float | None = None


class Abort(Struct, tag=True, array_like=True):
    """Front → engine: forget the sequence; unknown ids are ignored. No answer follows."""

    id: int


class Welcome(Struct, tag=True, array_like=True):
    """Engine → front: what was loaded.

    `max_sequence_tokens` is the most that the KV cache and the model can ever hold. `end_token_ids` end an answer
    unless the request ignores them.
    """

    version: int
    max_model_len: int
    max_sequence_tokens: int
    vocab_size: int
    dtype: str
    device: str
    runner: str
    end_token_ids: list[int] = []


class Refused(Struct, tag=True, array_like=True):
    """Engine → front: this connection cannot be served; the engine closes it."""

    message: str


class Output(Struct, array_like=True):
    """What one step did to one sequence: new tokens, or that it began, or how it ended.

    `began` is set once, when the first token of its prompt was scheduled. `finish_reason` ends it; `stop_token_id` is
    the token that did, and is the last of `token_ids`. `error` ends it too, with a word from `ERRORS`. `vector` is the
    whole answer of an embedding model, as little-endian float32.
    """

    id: int
    token_ids: list[int] = []
    began: bool = False
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    error: str | None = None
    message: str = ""
    vector: bytes | None = None


class Outputs(Struct, tag=True, array_like=True):
    """Engine → front: all that one step has to say to this front, in one message."""

    outputs: list[Output]


class Stats(Struct, tag=True, array_like=True, kw_only=True):
    """Engine → every front, from the step loop at least twice a second, also when idle. Totals count from the start.

    `predicted_s` and `step_s` are totals too, so that their ratio over a window tells how good the model is.
    """

    running: int = 0
    waiting: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    steps: int = 0
    step_s: float = 0.0
    predicted_s: float = 0.0
    longest_step_s: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    preemptions: int = 0


# Words of `Output.error`, and the error the front makes of each.
ERROR_DEADLINE = "deadline"  # DeadlineExceeded
ERROR_TOO_LONG = "too_long"  # PromptTooLong
ERROR_FAILED = "failed"  # BackendFailed: the step that held it broke

ToEngine: TypeAlias = Hello | Submit | Abort
ToFront: TypeAlias = Welcome | Refused | Outputs | Stats

_encoder = msgspec.msgpack.Encoder()
to_engine_decoder = msgspec.msgpack.Decoder(ToEngine)
to_front_decoder = msgspec.msgpack.Decoder(ToFront)


def encode_frame(message: ToEngine | ToFront) -> bytes:
    """One framed message."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "little") + body


class FrameTooLarge(Exception):
    """A frame announced more bytes than any message has: the other side speaks something else."""


class FrameReader:
    """Cuts a stream of bytes, in any portions, into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies that `data` completed. Raises `FrameTooLarge`."""
        self._buffer += data
        bodies = []
        at = 0
        while (end := self._end_of_frame(at)) is not None:
            bodies.append(bytes(self._buffer[at + 4 : end]))
            at = end
        del self._buffer[:at]
        return bodies

    def _end_of_frame(self, at: int) -> int | None:
        """Where the frame at `at` ends, or None while it is not all there."""
        if len(self._buffer) < at + 4:
            return None
        size = int.from_bytes(self._buffer[at : at + 4], "little")
        if size > MAX_FRAME_BYTES:
            raise FrameTooLarge(f"a frame of {size} bytes; the most is {MAX_FRAME_BYTES}")
        end = at + 4 + size
        return end if len(self._buffer) >= end else None
