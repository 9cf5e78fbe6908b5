"""Who sent a request and how urgent it is: what the front knows about it that no body says."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from backends.types import GenerateRequest

RequestT = TypeVar("RequestT", bound=GenerateRequest)


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

    def stamp(self, request: RequestT) -> RequestT:
        """`request` as this caller's: who it is for, in which lane, and until when."""
        return replace(
            request,
            tenant=self.tenant,
            lane=self.lane,
            weight=self.weight,
            first_token_at=self.first_token_at,
            deadline_at=self.deadline_at,
        )
