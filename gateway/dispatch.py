"""READ FIRST. One request: lane → model → place in the lane → backend → chunks, and what it used.

Cancellation is the closing of `stream`: the backend is closed first, then the place is left. Nothing is acquired before
the first pull, and the `finally` never awaits, so a second cancel cannot interrupt it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from msgspec import Struct

from backends.errors import BackendFailed, DeadlineExceeded
from backends.types import Chunk, GenerateRequest
from gateway.errors import InvalidBody, PermissionDenied
from gateway.lanes import Lanes, next_chunk
from gateway.metrics import Metrics
from gateway.openai.caller import Caller
from gateway.routing import Routing
from gateway.tenants import VirtualKey

LANE_HEADER = "X-Laneway-Lane"


class Ask(Struct, frozen=True, kw_only=True):
    """What a request says about how it wants to be treated.

    `lane` is the header, an order: it is obeyed or refused. `lane_wish` comes from `service_tier` or `priority`: a lane
    that the key lacks becomes its default. `timeout_s` is how long the whole answer may take.
    """

    request_id: str
    lane: str | None = None
    lane_wish: str | None = None
    timeout_s: float | None = None


class Dispatcher:
    """Takes requests to backends."""

    def __init__(
        self, routing: Routing, lanes: Lanes, metrics: Metrics, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.routing = routing
        self._lanes = lanes
        self._metrics = metrics
        self._clock = clock

    def caller(self, key: VirtualKey, ask: Ask) -> Caller:
        """Who asks, in which lane, and until when. Raises `PermissionDenied` for a lane that the key lacks."""
        return Caller(
            request_id=ask.request_id,
            tenant=key.tenant,
            lane=self._lane(key, ask),
            weight=key.weight,
            deadline_at=None if ask.timeout_s is None else self._clock() + ask.timeout_s,
        )

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """The answer to `request`, chunk by chunk; every way to generate is this one.

        Raises `ModelNotFound`, `LaneFull`, `WaitedTooLong`, `DeadlineExceeded`, and what the backend raises.
        """
        target = self.routing.choose(request.model)
        meter = self._metrics.meter(request)
        place = self._lanes.enter(target.name, request)
        try:
            async with aclosing(target.backend.generate(request)) as chunks:
                chunk = await place.first(chunks)
                meter.begin()
                while chunk is not None:
                    meter.observe(chunk)
                    place.charge(meter.num_tokens)
                    yield chunk
                    chunk = await _next(chunks, request.deadline_at, self._clock)
            if meter.num_finished < _num_choices(request):
                raise BackendFailed("The backend ended the answer before it was finished.")
        finally:
            place.leave()
            meter.end()

    def _lane(self, key: VirtualKey, ask: Ask) -> str:
        if ask.lane is None:
            return ask.lane_wish if ask.lane_wish in key.lanes else key.default_lane
        if ask.lane not in self._lanes.options:
            names = ", ".join(f"'{lane}'" for lane in key.lanes)
            raise InvalidBody(
                f"Invalid value: '{ask.lane[:60]}'. Supported values are: {names}.",
                param=LANE_HEADER,
                code="invalid_value",
            )
        if ask.lane not in key.lanes:
            raise PermissionDenied(
                f"This API key may not use the lane '{ask.lane}'; its lanes: {', '.join(key.lanes)}.", param=LANE_HEADER
            )
        return ask.lane


async def _next(chunks: AsyncIterator[Chunk], deadline_at: float | None, clock: Callable[[], float]) -> Chunk | None:
    """The next chunk, or None at the end. Raises `DeadlineExceeded` when it does not come in time."""
    if deadline_at is None:
        return await next_chunk(chunks)
    left = deadline_at - clock()
    if left <= 0:  # a chunk that is there already would win over a timeout that is due
        raise _late()
    limit = asyncio.timeout(left)
    try:
        async with limit:
            return await next_chunk(chunks)
    except TimeoutError:
        if not limit.expired():
            raise
        raise _late() from None


def _late() -> DeadlineExceeded:
    return DeadlineExceeded("The deadline of the request passed before the answer was complete.")


def _num_choices(request: GenerateRequest) -> int:
    return request.sampling.n * max(1, len(request.prompts))
