"""Units a minute by GCRA: one theoretical arrival time for each limit, in exact integers."""

from __future__ import annotations

from msgspec import Struct

MINUTE_US = 60_000_000
SECOND_US = 1_000_000


class Headroom(Struct, frozen=True):
    """What a limit has left: `remaining` units of `limit`, all of them again in `reset_s`."""

    limit: int
    remaining: int
    reset_s: float


class Rates(Struct, frozen=True, kw_only=True):
    """Of the limits on requests a minute, and of those on tokens a minute, the tightest; None where there is none."""

    requests: Headroom | None = None
    tokens: Headroom | None = None


class Gcra:
    """`amount` units a minute, of which a minute's worth may come at once. Instants are integers of microseconds.

    What is taken is a debt that drains all the time; room is what is missing to a debt of `amount`. Hence in any
    interval of t seconds at most amount + amount × t / 60 units are let in. Counted is what each request turned out
    to cost, at the instant at which it was let in. Only what exceeded its estimate comes on top: it was not known then,
    and is owed from the settle on.

    A unit is MINUTE_US parts and `amount` parts drain in a microsecond, so nothing is ever rounded. The clock of these
    parts also moves by what is given back and when `amount` changes, so that neither touches the arrival time.
    """

    __slots__ = ("_arrival", "_shift", "amount")

    def __init__(self, amount: int) -> None:
        self.amount = amount
        self._shift = 0  # of the clock of parts, which shows `now * amount + shift`
        self._arrival = 0  # theoretical: when the debt will have drained, on that clock

    def change(self, amount: int, now: int) -> None:
        """Another amount from now on; what is owed stays owed."""
        self._shift += now * (self.amount - amount)
        self.amount = amount

    def debt(self, now: int) -> int:
        """Parts that have not drained. 0: it is full again, and carries no information."""
        return max(0, self._arrival - now * self.amount - self._shift)

    def can(self, cost: int, now: int) -> bool:
        """Whether `cost` units have room."""
        return self.debt(now) <= (self.amount - cost) * MINUTE_US

    def take(self, cost: int, now: int) -> int:
        """Owe `cost` units more, whether or not they have room. Returns the ticket to `settle` them with."""
        self._arrival = max(self._arrival, now * self.amount + self._shift) + cost * MINUTE_US
        return self._arrival

    def settle(self, ticket: int, difference: int, now: int) -> None:
        """Units that were taken turned out to be `difference` more (or fewer, when negative).

        Given back is at most what has not drained since of all that was owed when they were taken. The rest would be
        time in which, had they never been taken, nothing would have drained; and unused time is not saved up. This errs
        on the safe side: as many long requests as are reserved with far too much hold some of it until it has drained.
        """
        clock = now * self.amount + self._shift
        if difference >= 0:
            self._arrival = max(self._arrival, clock) + difference * MINUTE_US
        else:
            self._shift += min(-difference * MINUTE_US, max(0, ticket - clock))

    def used(self, now: int) -> int:
        """Units owed, a begun one as a whole. More than `amount` after requests that cost more than was estimated."""
        return -(-self.debt(now) // MINUTE_US)

    def wait_s(self, cost: int, now: int) -> float:
        """Seconds until `cost` units have room, when nothing else is taken. `cost` must not exceed `amount`."""
        excess = self.debt(now) - (self.amount - cost) * MINUTE_US
        return 0.0 if excess <= 0 else -(-excess // self.amount) / SECOND_US

    def reset_s(self, now: int) -> float:
        """Seconds until it is full again; 0 for an amount of 0, which has nothing to fill."""
        return -(-self.debt(now) // self.amount) / SECOND_US if self.amount else 0.0

    def headroom(self, now: int) -> Headroom:
        """What is left, for views and headers."""
        return Headroom(self.amount, max(0, self.amount - self.used(now)), self.reset_s(now))
