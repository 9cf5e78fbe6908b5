"""FairQueue: who is next among lanes, tenants and sizes. Knows nothing of what it queues: no slot, no block, no step.

Lanes go in order of priority, but a lane that is held back earns a share of what goes past it (its floor) and, once it
has earned the size of its head, goes first: starvation is impossible by arithmetic. Inside a lane the tenant that was
charged least per weight goes first (virtual token counters, OSDI'24); inside a tenant the smallest item, unless one has
waited longer than the bound. A head that does not fit is waited for, never skipped for a smaller one.
"""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Generic, TypeVar

from msgspec import Struct

T = TypeVar("T", bound=Hashable)


class LaneShare(Struct, frozen=True):
    """Lower `priority` goes first; `floor` is the share of service (by size) a lane keeps under pressure from above."""

    priority: int
    floor: float = 0.0


class Head(Struct, Generic[T], frozen=True):
    """Whose turn it is. `is_due` when not merely the best choice: held back long enough, or handed back."""

    item: T
    is_due: bool


class FairQueue(Generic[T]):
    """Waiting items. The same calls give the same order. Sizes and costs are in one unit, such as tokens."""

    def __init__(self, lanes: Mapping[str, LaneShare], wait_bound_s: float = 2.0) -> None:
        ordered = sorted(lanes, key=lambda name: lanes[name].priority)
        self._lanes: dict[str, _Lane[T]] = {name: _Lane(lanes[name]) for name in ordered}
        self._wait_bound_s = wait_bound_s
        self._entries: dict[T, _Entry[T]] = {}
        self._deadlines: list[tuple[float, int, _Entry[T]]] = []
        self._num_pushed = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: T) -> bool:
        return item in self._entries

    @property
    def lengths(self) -> dict[str, int]:
        """How many wait, per lane."""
        return {name: lane.num_entries for name, lane in self._lanes.items()}

    def priority(self, lane: str) -> int:
        """The lane's priority; lower goes first. KeyError for an unknown lane."""
        return self._lanes[lane].share.priority

    def counter(self, lane: str, tenant: str) -> float:
        """What the tenant was charged per weight, as the lane counts: comparable inside one lane only."""
        return self._lanes[lane].tenant(tenant).counter

    def push(
        self,
        item: T,
        lane: str,
        tenant: str,
        weight: float,
        size: float,
        deadline: float | None,
        now: float,
        at_front: bool = False,
    ) -> None:
        """Join the lane, waiting since `now`; `expire` drops it from `deadline` on. KeyError: no such lane.

        `at_front` hands back what was taken: it goes before all others of its lane, the last handed back first.
        """
        assert item not in self._entries, "an item waits once"
        room = self._lanes[lane]
        self._num_pushed += 1
        by = math.inf if deadline is None else deadline
        entry = _Entry(item, room, room.tenant(tenant), size, now, self._num_pushed, by)
        entry.tenant.weight = weight
        room.add(entry, at_front)
        self._entries[item] = entry
        bisect.insort(self._deadlines, entry.deadline_key)

    def head(self, now: float, fits: Callable[[T], bool]) -> Head[T] | None:
        """Whose turn it is, without taking it; None when nothing waits. The head may not fit; then all wait for it.

        Only a turn that a lane has earned gives way to higher lanes while its head does not fit, until it has earned
        as much again.
        """
        best: Head[T] | None = None
        for lane in self._lanes.values():
            if lane.num_entries == 0 or (best is not None and lane.credit == 0):
                continue
            entry, is_due = lane.first(now - self._wait_bound_s)
            if best is None:
                best = Head(entry.item, is_due)
            elif lane.credit >= 2 * entry.size or (lane.credit >= entry.size and fits(entry.item)):
                return Head(entry.item, True)
        return best

    def take(self, item: T) -> None:
        """Remove what is served: its size counts for its lane, and lanes that wait earn their floor of it."""
        entry = self._entries[item]
        for lane in self._lanes.values():
            if lane is entry.lane:
                lane.credit = max(0.0, lane.credit - entry.size)
            elif lane.num_entries:
                lane.credit += lane.share.floor * entry.size
        self.remove(item)

    def pick(self, now: float, fits: Callable[[T], bool]) -> T | None:
        """Take the head if it fits; None when nothing waits or the head does not fit."""
        head = self.head(now, fits)
        if head is None or not fits(head.item):
            return None
        self.take(head.item)
        return head.item

    def charge(self, tenant: str, cost: float) -> None:
        """Count service against the tenant, divided by its weight. A negative cost corrects an estimate."""
        for lane in self._lanes.values():
            if tenant in lane.tenants:
                lane.tenants[tenant].counter += cost / lane.tenants[tenant].weight
                lane.peak = max(lane.peak, lane.tenants[tenant].counter)

    def remove(self, item: T) -> bool:
        """Drop an item that waits no longer. False when it was not here."""
        entry = self._entries.pop(item, None)
        if entry is None:
            return False
        entry.lane.remove(entry)
        _discard(self._deadlines, entry.deadline_key)
        return True

    def expire(self, now: float) -> list[T]:
        """Remove and return what is past its deadline, earliest first."""
        expired = [entry.item for _, _, entry in self._deadlines[: bisect.bisect(self._deadlines, (now, math.inf))]]
        for item in expired:
            self.remove(item)
        return expired


class _Entry(Generic[T]):
    """An item in its lane. Keys hold a number of its own, so that sorting never compares entries."""

    def __init__(
        self, item: T, lane: _Lane[T], tenant: _Tenant[T], size: float, since: float, number: int, deadline: float
    ) -> None:
        self.item, self.lane, self.tenant, self.size, self.since = item, lane, tenant, size, since
        self.age_key = (since, number, self)
        self.size_key = (size, number, self)
        self.deadline_key = (deadline, number, self)


class _Tenant(Generic[T]):
    """Service a tenant received, as one lane counts it, and its items there in both orders."""

    def __init__(self) -> None:
        self.weight = 1.0
        self.counter = 0.0
        self.by_size: list[tuple[float, int, _Entry[T]]] = []
        self.by_age: list[tuple[float, int, _Entry[T]]] = []


class _Lane(Generic[T]):
    """Items of one lane: those handed back, then a line for each tenant. `credit` is what its floor has earned."""

    def __init__(self, share: LaneShare) -> None:
        self.share = share
        self.credit = 0.0
        self.num_entries = 0
        self.tenants: dict[str, _Tenant[T]] = {}
        self.peak = 0.0  # the highest counter there ever was
        self._front: deque[_Entry[T]] = deque()
        self._active: set[_Tenant[T]] = set()

    def tenant(self, name: str) -> _Tenant[T]:
        """The tenant, made when new."""
        return self.tenants.setdefault(name, _Tenant())

    def add(self, entry: _Entry[T], at_front: bool) -> None:
        self.num_entries += 1
        if at_front:
            self._front.appendleft(entry)
            return
        tenant = entry.tenant
        if tenant not in self._active:
            # Being idle earns nothing: no further behind than those who wait. Where nobody waits, nobody was harmed by
            # what others used, and all begin as equals.
            least = min((other.counter for other in self._active), default=self.peak)
            tenant.counter = max(tenant.counter, least)
            self._active.add(tenant)
        bisect.insort(tenant.by_size, entry.size_key)
        bisect.insort(tenant.by_age, entry.age_key)

    def remove(self, entry: _Entry[T]) -> None:
        self.num_entries -= 1
        if self.num_entries == 0:
            self.credit = 0.0
        if entry in self._front:
            self._front.remove(entry)
            return
        _discard(entry.tenant.by_size, entry.size_key)
        _discard(entry.tenant.by_age, entry.age_key)
        if not entry.tenant.by_age:
            self._active.remove(entry.tenant)

    def first(self, overdue_since: float) -> tuple[_Entry[T], bool]:
        """Whose turn it is in this lane, which is not empty, and whether for more than being the best choice."""
        if self._front:
            return self._front[0], True
        tenant = min(self._active, key=lambda tenant: (tenant.counter, tenant.by_age[0]))
        oldest = tenant.by_age[0][2]
        if oldest.since <= overdue_since:
            return oldest, True
        return tenant.by_size[0][2], False


def _discard(keys: list[tuple[float, int, _Entry[T]]], key: tuple[float, int, _Entry[T]]) -> None:
    """Remove a key from a sorted list."""
    del keys[bisect.bisect_left(keys, key)]
