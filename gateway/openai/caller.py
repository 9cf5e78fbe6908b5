"""Who sent a request and how urgent it is: what the front knows about it that no body says."""

from __future__ import annotations

from msgspec import Struct


class Caller(Struct, frozen=True, kw_only=True):
    """The part of a `GenerateRequest` that comes from the key, the lane and the clock.

    `first_token_at` and `deadline_at` are `time.monotonic()` instants; None means no such deadline.
    """

    request_id: str
    tenant: str = "default"
    lane: str = "standard"
    weight: float = 1.0
    first_token_at: float | None = None
    deadline_at: float | None = None
