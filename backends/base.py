"""The contract of a backend, and the capabilities that some have beside it.

Three promises, held by one contract test class that runs against every backend:
1. closing the iterator of `generate` is the only cancel signal, and it returns promptly;
2. each Chunk carries cumulative usage, so the last chunk seen is always a valid bill, or says that it is `missing`;
3. failures are `BackendError`s, raised before the first chunk whenever possible.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from msgspec import Struct, field

from backends.types import BackendHealth, Chunk, EmbedRequest, GenerateRequest, ModelCard, TokenizeRequest, Tokens


class LaneRule(Struct, frozen=True, kw_only=True):
    """What a backend that schedules its own queue needs to know of a lane; see `[lanes.NAME]`."""

    priority: int
    floor: float = 0.05
    target_itl: float = 0.25


DEFAULT_LANE_RULES: Mapping[str, LaneRule] = {
    "interactive": LaneRule(priority=0),
    "standard": LaneRule(priority=1),
    "batch": LaneRule(priority=2),
}


class BackendContext(Struct, frozen=True, kw_only=True):
    """What a backend is told beside its options: its name in the config, a private folder for sockets, the lanes."""

    name: str
    run_dir: Path
    lanes: Mapping[str, LaneRule] = field(default_factory=lambda: DEFAULT_LANE_RULES)


@runtime_checkable
class Backend(Protocol):
    """Something that answers requests for one or several models."""

    Options: ClassVar[type[Struct]]

    @classmethod
    def create(cls, options: Any, context: BackendContext) -> Self:
        """Build it from checked `Options`. Opens nothing; `start` does."""
        ...

    @property
    def models(self) -> Sequence[ModelCard]:
        """The models it serves; known before `start`, and while it is down."""
        ...

    @property
    def capacity(self) -> int | None:
        """How many requests it takes at once, or None when it schedules its own queue."""
        ...

    async def start(self) -> None:
        """Begin connecting or loading. Returns without waiting for readiness; `health` tells."""
        ...

    async def stop(self) -> None:
        """Release everything. Requests still running fail with `Unavailable`."""
        ...

    def health(self) -> BackendHealth:
        """State now, from memory: no I/O, never blocks."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """Answer `request`. Nothing is acquired before the first pull; closing it cancels."""
        ...


@runtime_checkable
class Tokenizing(Protocol):
    """Capability: can count and convert tokens without generating."""

    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """Token ids of a text or of templated messages. Never on the event loop's time for long texts."""
        ...

    async def count(self, request: TokenizeRequest) -> int:
        """How many ids `tokenize` would give; cheaper where ids are not needed for that."""
        ...

    async def detokenize(self, model: str, token_ids: Sequence[int]) -> str:
        """Text of `token_ids`. Raises `InvalidRequest` for an id outside the vocabulary."""
        ...


@runtime_checkable
class Embedding(Protocol):
    """Capability: can turn texts or token ids into vectors."""

    def embed(self, request: EmbedRequest) -> AsyncGenerator[Chunk, None]:
        """One chunk with a `vector` and a finish reason for each of the request's prompts, in any order.

        All that is promised of `generate` holds here too. Vectors that the model cannot shorten to `dimensions` are
        refused with `InvalidRequest`, an input that does not fit with `PromptTooLong`.
        """
        ...


class ProcessSpec(Struct, frozen=True, kw_only=True):
    """How the parent starts and watches a backend's own process.

    The process writes `time.monotonic()` as a little-endian double to `heartbeat` from its main loop. A beat older than
    `hang_after_s` means hung: the parent kills and restarts it. No beat is expected before the file exists, so a long
    load is not a hang.
    """

    argv: tuple[str, ...]
    heartbeat: Path
    hang_after_s: float


@runtime_checkable
class Supervised(Protocol):
    """Capability: lives in a process of its own, which `laneway serve` starts, watches and restarts."""

    @classmethod
    def check(cls, options: Any, context: BackendContext) -> None:
        """Fail early in the parent, with `ConfigError`, on what could never start (no such model, too big, …)."""
        ...

    @classmethod
    def process(cls, options: Any, context: BackendContext) -> ProcessSpec:
        """The process that serves these options."""
        ...
