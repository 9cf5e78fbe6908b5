"""READ FIRST. One request: lane → model → bill → place in the lane → backend → chunks, and what it used.

Cancellation is the closing of `chunks`: the backend is closed first, then the place is left, then the bill is closed.
Nothing is acquired before the first pull, and what ends a request other than well never awaits, so a second cancel
cannot interrupt it.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from msgspec import Struct

from backends.errors import BackendFailed, DeadlineExceeded, ModelNotFound
from backends.types import Chunk, EmbedRequest
from gateway.billing import Bill, Billing, Order
from gateway.embedding import vectors
from gateway.errors import GatewayError, InvalidBody, PermissionDenied
from gateway.gcra import Rates
from gateway.lanes import Lanes, Place, first_deadline, next_chunk
from gateway.metrics import Metrics
from gateway.openai.caller import Caller
from gateway.routing import Routing, Target
from gateway.tenants import VirtualKey

LANE_HEADER = "X-Laneway-Lane"


class Ask(Struct, frozen=True, kw_only=True):
    """What a request says about how it wants to be treated.

    `lane` is the header, an order: it is obeyed or refused. `lane_wish` comes from `service_tier` or `priority`: a lane
    that the key lacks becomes its default. `timeout_s` is how long the whole answer may take, `silence_s` how long the
    client waits for the next byte: of a stream that bounds the first token only, of a whole answer all of it.
    """

    request_id: str
    lane: str | None = None
    lane_wish: str | None = None
    timeout_s: float | None = None
    silence_s: float | None = None
    stream: bool = False


class Dispatcher:
    """Takes requests to backends."""

    def __init__(
        self,
        routing: Routing,
        lanes: Lanes,
        billing: Billing,
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.routing = routing
        self.lanes = lanes
        self.billing = billing
        self.metrics = metrics
        self.clock = clock

    def caller(self, key: VirtualKey, ask: Ask) -> Caller:
        """Who asks, in which lane, and until when. Raises `PermissionDenied` for a lane that the key lacks."""
        now = self.clock()
        silence_at = None if ask.silence_s is None else now + ask.silence_s
        ends = [now + ask.timeout_s] if ask.timeout_s is not None else []
        if silence_at is not None and not ask.stream:
            ends.append(silence_at)
        return Caller(
            request_id=ask.request_id,
            tenant=key.tenant,
            lane=self._lane(key, ask),
            weight=key.weight,
            first_token_at=silence_at if ask.stream else None,
            deadline_at=min(ends, default=None),
        )

    def job(self, order: Order) -> Job:
        """A request that is to be answered; every way to use a model is this one. Raises `ModelNotFound`."""
        if not order.key.may_use(order.request.model):
            raise ModelNotFound.named(order.request.model)
        return Job(self, self.routing.choose(order.request.model), order)

    def _lane(self, key: VirtualKey, ask: Ask) -> str:
        if ask.lane is None:
            return ask.lane_wish if ask.lane_wish in key.lanes else key.default_lane
        if ask.lane not in self.lanes.options:
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


class Job:
    """One request on its way. Its `place` and its `bill` are there from the first chunk on."""

    def __init__(self, dispatcher: Dispatcher, target: Target, order: Order) -> None:
        self.order = order
        self.place: Place | None = None
        self.bill: Bill | None = None
        self._dispatcher = dispatcher
        self._target = target
        self._refused_at: Rates | None = None

    @property
    def rates(self) -> Rates | None:
        """What is left of the limits, after this request or after its refusal; None when it did not come so far."""
        return self._refused_at if self.bill is None else self.bill.rates

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        """The answer, chunk by chunk; it is recorded when this ends. To be called once.

        Raises `LimitReached`, `NotPriced`, `StoreUnavailable`, `LaneFull`, `WaitedTooLong`, `DeadlineExceeded`, and
        what the backend raises.
        """
        dispatcher, request = self._dispatcher, self.order.request
        bill = await self._open_bill()
        try:
            place = self.place = dispatcher.lanes.enter(self._target.name, request)
            meter = dispatcher.metrics.meter(request)
            try:
                async with aclosing(self._computing()) as computed:
                    chunk = await place.first(computed)
                    meter.begin()
                    bill.begin()
                    due_at, ends_at = first_deadline(request), request.deadline_at or math.inf
                    while chunk is not None:
                        chunk = bill.observe(chunk)
                        meter.observe(chunk)
                        place.charge(meter.num_tokens)
                        yield chunk
                        if due_at != ends_at and chunk.is_visible:
                            due_at = ends_at
                        chunk = await _next(computed, due_at, dispatcher.clock)
            finally:
                place.leave()
                meter.end()
            if not bill.is_whole:
                raise BackendFailed("The backend ended the answer before it was finished.")
            counted = await bill.count()
            if counted is not None:
                yield Chunk(usage=counted)
            await bill.settle()
        except BaseException as error:
            bill.close(error)
            raise

    def _computing(self) -> AsyncGenerator[Chunk, None]:
        request, backend = self.order.request, self._target.backend
        return vectors(request, backend) if isinstance(request, EmbedRequest) else backend.generate(request)

    async def _open_bill(self) -> Bill:
        billing = self._dispatcher.billing
        try:
            self.bill = await billing.open(self.order, self._target)
        except GatewayError:
            self._refused_at = billing.rates(self.order)
            raise
        return self.bill


async def _next(chunks: AsyncIterator[Chunk], due_at: float, clock: Callable[[], float]) -> Chunk | None:
    """The next chunk, or None at the end. Raises `DeadlineExceeded` when it does not come in time."""
    if due_at == math.inf:
        return await next_chunk(chunks)
    left = due_at - clock()
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
