"""Bounds of each lane, and who enters a backend with slots next.

A request waits until the backend's first chunk, which may be empty. A lane refuses at `max_queue` and ends a wait at
`max_wait`; what has begun is never ended here. A backend with slots gets its next request from a FairQueue; one that
schedules itself gets all of them at once, and only the bounds apply.
"""

from __future__ import annotations

import asyncio
import enum
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Annotated

from msgspec import Meta, Struct

from backends.errors import DeadlineExceeded
from backends.fairness import FairQueue, LaneShare
from backends.types import Chunk, GenerateRequest
from gateway.errors import LaneFull, WaitedTooLong

BYTES_PER_TOKEN = 4
ANSWER_TOKENS = 256  # taken for an answer without a cap
RETRY_AFTER_S = (1.0, 60.0)


class LaneOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[lanes.NAME]`. Lower `priority` goes first; `floor` is the share of service a lane keeps under pressure from
    above.

    `max_queue` is how many may wait; `max_wait` in seconds is how long, after which the request is refused without
    being computed. `target_itl` in seconds is the gap between tokens the lane aims at.
    """

    priority: Annotated[int, Meta(ge=0, le=1000)]
    floor: Annotated[float, Meta(ge=0, lt=1)] = 0.05
    max_queue: Annotated[int, Meta(ge=0)] = 1000
    max_wait: Annotated[float, Meta(gt=0)] = 60.0
    target_itl: Annotated[float, Meta(gt=0)] = 0.25


DEFAULT_LANES = {
    "interactive": LaneOptions(priority=0),
    "standard": LaneOptions(priority=1),
    "batch": LaneOptions(priority=2),
}


class Lanes:
    """The waiting rooms of all backends, one each, so that a slow backend fills only its own."""

    def __init__(self, options: Mapping[str, LaneOptions], clock: Callable[[], float] = time.monotonic) -> None:
        self.options = options
        self._clock = clock
        self._rooms: dict[str, Room] = {}

    def open(self, backend: str, capacity: int | None) -> None:
        """Make the room of a backend; `capacity` is its number of slots, or None when it schedules itself."""
        self._rooms[backend] = Room(self.options, capacity, self._clock)

    def enter(self, backend: str, request: GenerateRequest) -> Place:
        """A place in the request's lane; whoever gets it must `leave` it. Raises `LaneFull`."""
        return self._rooms[backend].enter(request)

    def waiting(self) -> dict[str, int]:
        """How many wait, per lane."""
        return {lane: sum(room.waiting[lane] for room in self._rooms.values()) for lane in self.options}

    def running(self) -> dict[str, int]:
        """How many are being answered, per lane."""
        return {lane: sum(room.running[lane] for room in self._rooms.values()) for lane in self.options}


class Stage(enum.Enum):
    """Where a place is. A slot belongs to exactly the places that are HOLDING."""

    WAITING = 0
    HOLDING = 1
    GONE = 2


class Room:
    """The places of one backend."""

    def __init__(self, lanes: Mapping[str, LaneOptions], capacity: int | None, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.has_slots = capacity is not None
        self.free = capacity or 0
        self.waiting = dict.fromkeys(lanes, 0)
        self.running = dict.fromkeys(lanes, 0)
        self._lanes = lanes
        self._pace = {lane: Pace() for lane in lanes}
        shares = {name: LaneShare(priority=lane.priority, floor=lane.floor) for name, lane in lanes.items()}
        self._queue: FairQueue[Place] = FairQueue(shares)

    def enter(self, request: GenerateRequest) -> Place:
        """Take a slot if one is free, else join the queue."""
        lane = request.lane
        options = self._lanes[lane]
        place = Place(self, request, self.clock() + options.max_wait)
        goes_in = self.has_slots and self.free > 0
        # A backend that schedules itself takes a moment to begin, so one request may always be on its way into it.
        bound = options.max_queue if self.has_slots else max(1, options.max_queue)
        if not goes_in and self.waiting[lane] >= bound:
            raise LaneFull(
                f"The lane '{lane}' is full: {self.waiting[lane]} requests wait. Come back later.",
                code="overloaded",
                retry_after_s=self.retry_after_s(lane),
            )
        self.waiting[lane] += 1
        if self.has_slots:
            self._queue.push(place, lane, request.tenant, request.weight, place.size, place.expires_at, self.clock())
            self._hand_over()
        return place

    def begin(self, place: Place) -> None:
        """From waiting to running."""
        self.waiting[place.lane] -= 1
        self.running[place.lane] += 1
        self._pace[place.lane].tick(self.clock())

    def leave(self, place: Place, stage: Stage) -> None:
        """Give back what a place in `stage` has, and let the next one in."""
        if stage is Stage.HOLDING:
            self.running[place.lane] -= 1
            if self.has_slots:
                self.free += 1
                self._hand_over()
        else:
            self.waiting[place.lane] -= 1
            if self.has_slots:
                self._queue.remove(place)

    def charge(self, place: Place, tokens: int) -> None:
        """Count service against the place's tenant."""
        if self.has_slots:
            self._queue.charge(place.tenant, tokens)

    def retry_after_s(self, lane: str) -> float:
        """When those who wait now should have begun, from the pace of late, within bounds."""
        low, high = RETRY_AFTER_S
        return min(max(self._pace[lane].interval_s * self.waiting[lane], low), high)

    def _hand_over(self) -> None:
        """Give free slots to those whose turn it is. Each is given once: `grant` makes its place HOLDING at once."""
        now = self.clock()
        self._queue.expire(now)  # their own timers are about to end those waits; they must not be computed
        while self.free > 0:
            place = self._queue.pick(now, _always)
            if place is None:
                return
            self.free -= 1
            place.grant()


class Place:
    """One request in one lane: it waits, then it holds, then it is gone."""

    def __init__(self, room: Room, request: GenerateRequest, expires_at: float) -> None:
        own = min((at for at in (request.first_token_at, request.deadline_at) if at is not None), default=math.inf)
        self.lane, self.tenant, self.size = request.lane, request.tenant, estimate_tokens(request)
        self.expires_at = min(expires_at, own)
        self._room = room
        self._has_own_deadline_first = own <= expires_at
        self._stage = Stage.WAITING
        self._charged = 0
        self._turn: asyncio.Future[None] | None = None

    async def first(self, chunks: AsyncIterator[Chunk]) -> Chunk | None:
        """Wait for the turn, then for the first chunk; None when the stream is empty.

        Raises `WaitedTooLong` at `max_wait`, and `DeadlineExceeded` at the caller's own deadline if that comes first.
        """
        limit = asyncio.timeout(self.expires_at - self._room.clock())
        try:
            async with limit:
                await self._wait_turn()
                chunk = await next_chunk(chunks)
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._too_late() from None
        if self._stage is Stage.WAITING:
            self.grant()
        return chunk

    def grant(self) -> None:
        """From waiting to holding."""
        self._stage = Stage.HOLDING
        self._room.begin(self)
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def charge(self, tokens: int) -> None:
        """`tokens` were used so far. Told as they are made: an estimate, corrected later, would distort counters."""
        if tokens > self._charged:
            self._room.charge(self, tokens - self._charged)
            self._charged = tokens

    def leave(self) -> None:
        """Be gone. Never awaits; a second time does nothing."""
        stage, self._stage = self._stage, Stage.GONE
        if stage is not Stage.GONE:
            self._room.leave(self, stage)

    async def _wait_turn(self) -> None:
        if self._room.has_slots and self._stage is Stage.WAITING:
            self._turn = asyncio.get_running_loop().create_future()
            await self._turn

    def _too_late(self) -> DeadlineExceeded | WaitedTooLong:
        if self._has_own_deadline_first:
            return DeadlineExceeded("The deadline of the request passed while it waited; nothing was computed.")
        return WaitedTooLong(
            f"The request waited too long in the lane '{self.lane}'; nothing was computed. Come back later.",
            code="overloaded",
            retry_after_s=self._room.retry_after_s(self.lane),
        )


class Pace:
    """How often a lane lets a request begin: a moving average of the gaps."""

    WEIGHT = 0.1

    def __init__(self) -> None:
        self.interval_s = 0.0
        self._last_at: float | None = None

    def tick(self, now: float) -> None:
        """One more began."""
        if self._last_at is not None:
            self.interval_s += self.WEIGHT * (now - self._last_at - self.interval_s)
        self._last_at = now


async def next_chunk(chunks: AsyncIterator[Chunk]) -> Chunk | None:
    """The next chunk, or None at the end."""
    async for chunk in chunks:
        return chunk
    return None


def estimate_tokens(request: GenerateRequest) -> int:
    """Size of a request in tokens, before anything is counted: text / 4, and the answer's cap for every choice."""
    prompts = request.prompts or tuple(message.text for message in request.messages or ())
    asked = sum(len(part) // BYTES_PER_TOKEN if isinstance(part, str) else len(part) for part in prompts)
    answers = request.sampling.n * max(1, len(request.prompts))
    return 1 + asked + answers * (request.sampling.max_tokens or ANSWER_TOKENS)


def _always(_: object) -> bool:
    return True
