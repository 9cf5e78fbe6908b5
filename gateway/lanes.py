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
TIMER_S = 0.001  # the loop's timers may be early by so much


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

    def change(self, options: Mapping[str, LaneOptions]) -> None:
        """Other bounds (`max_queue`, `max_wait`), for requests that come from now on."""
        self.options = options
        for room in self._rooms.values():
            room.lanes = options

    def enter(self, backend: str, request: GenerateRequest) -> Place:
        """A place in the request's lane; whoever gets it must `leave` it. Raises `LaneFull`."""
        return self._rooms[backend].enter(request)

    def waiting(self) -> dict[str, int]:
        """How many wait, per lane."""
        return {lane: sum(room.waiting[lane] for room in self._rooms.values()) for lane in self.options}

    def oldest_wait_s(self) -> dict[str, float]:
        """How long the first of those who wait has waited, per lane; 0 where nobody does."""
        rooms = self._rooms.values()
        return {lane: max((room.oldest_wait_s(lane) for room in rooms), default=0.0) for lane in self.options}

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
        self._since: dict[str, dict[Place, float]] = {lane: {} for lane in lanes}  # who waits, first come first
        self.running = dict.fromkeys(lanes, 0)
        self.lanes = lanes
        self._pace = {lane: Pace() for lane in lanes}
        shares = {name: LaneShare(priority=lane.priority, floor=lane.floor) for name, lane in lanes.items()}
        self._queue: FairQueue[Place] = FairQueue(shares)
        self.reaper = Reaper(clock)

    def enter(self, request: GenerateRequest) -> Place:
        """Take a slot if one is free, else join the queue."""
        lane = request.lane
        options = self.lanes[lane]
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
        self._since[lane][place] = self.clock()
        if self.has_slots:
            size = estimate_tokens(request)
            self._queue.push(place, lane, request.tenant, request.weight, size, place.expires_at, self.clock())
            self._hand_over()
        return place

    def begin(self, place: Place) -> None:
        """From waiting to running."""
        self.waiting[place.lane] -= 1
        del self._since[place.lane][place]
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
            del self._since[place.lane][place]
            if self.has_slots:
                self._queue.remove(place)

    def oldest_wait_s(self, lane: str) -> float:
        """How long the first of those who wait in the lane has waited."""
        return next((self.clock() - since for since in self._since[lane].values()), 0.0)

    def charge(self, place: Place, tokens: int) -> None:
        """Count service against the place's tenant. Where the backend schedules itself, it counts."""
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
    """One request in one lane: it waits, then it holds, then it is gone.

    `position` is how many waited in the lane when it came, `wait_s` how long it waited, None while it still does.
    """

    def __init__(self, room: Room, request: GenerateRequest, expires_at: float) -> None:
        own = first_deadline(request)
        self.lane, self.tenant = request.lane, request.tenant
        self.expires_at = min(expires_at, own)
        self._room = room
        self._has_own_deadline_first = own <= expires_at
        self.position = room.waiting[request.lane]
        self.wait_s: float | None = None
        self._entered_at = room.clock()
        self._stage = Stage.WAITING
        self._charged = 0
        self._turn: asyncio.Future[None] | None = None
        self._is_expired = False

    async def first(self, chunks: AsyncIterator[Chunk]) -> Chunk | None:
        """Wait for the turn, then for the first chunk; None when the stream is empty.

        Raises `WaitedTooLong` at `max_wait`, and `DeadlineExceeded` at the caller's own deadline if that comes first.
        """
        task = asyncio.current_task()
        assert task is not None
        num_cancels = task.cancelling()
        self._room.reaper.watch(self, task)
        try:
            await self._wait_turn()
            chunk = await next_chunk(chunks)
        except asyncio.CancelledError:
            if self._is_expired and task.uncancel() <= num_cancels:  # nobody but the reaper ended it
                raise self._too_late() from None
            raise
        finally:
            self._room.reaper.release(self)
        if self._stage is Stage.WAITING:
            self.grant()
        return chunk

    def expire(self, task: asyncio.Task[object]) -> None:
        """The wait in `first`, which is `task`'s, lasts too long."""
        self._is_expired = True
        task.cancel()

    def grant(self) -> None:
        """From waiting to holding."""
        self._stage = Stage.HOLDING
        self.wait_s = self._room.clock() - self._entered_at
        self._room.begin(self)
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    def charge(self, tokens: int) -> None:
        """`tokens` were used so far. Told as they are made: an estimate, corrected later, would distort counters."""
        if self._room.has_slots and tokens > self._charged:
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


class Reaper:
    """Ends the waits of a room that last too long. One timer for all: most waits are over long before it is due."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waits: dict[Place, asyncio.Task[object]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = math.inf

    def watch(self, place: Place, task: asyncio.Task[object]) -> None:
        """From now on, until `release`."""
        self._waits[place] = task
        if place.expires_at < self._due_at:
            self._arm(place.expires_at)

    def release(self, place: Place) -> None:
        """It waits no more."""
        self._waits.pop(place, None)

    def _arm(self, due_at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_at = due_at
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due_at - self._clock()), self._reap)

    def _reap(self) -> None:
        self._timer, self._due_at = None, math.inf
        now = self._clock() + TIMER_S
        for place in [place for place in self._waits if place.expires_at <= now]:
            place.expire(self._waits.pop(place))
        if self._waits:
            self._arm(min(place.expires_at for place in self._waits))


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


def first_deadline(request: GenerateRequest) -> float:
    """When the caller of `request` will be gone if nothing has come by then."""
    return min((at for at in (request.first_token_at, request.deadline_at) if at is not None), default=math.inf)


def estimate_tokens(request: GenerateRequest) -> int:
    """Size of a request in tokens, before anything is counted: text / 4, and the answer's cap for every choice."""
    prompts = request.prompts or tuple(message.text for message in request.messages or ())
    asked = sum(len(part) // BYTES_PER_TOKEN if isinstance(part, str) else len(part) for part in prompts)
    answers = request.sampling.n * max(1, len(request.prompts))
    cap = request.sampling.max_tokens
    return 1 + asked + answers * (ANSWER_TOKENS if cap is None else cap)


def _always(_: object) -> bool:
    return True
