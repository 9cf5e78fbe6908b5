"""What counts against one rule: its rate or what runs at once. Budgets count in `budgets.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol, TypeAlias

from msgspec import Struct

from gateway.events import Charge
from gateway.gcra import Gcra
from gateway.rules import Meter, Rule

Amounts: TypeAlias = tuple[int, int, int]  # of one request: itself, tokens, nano-dollars
COLUMNS: dict[Meter, int] = {"rpm": 0, "concurrency": 0, "tpm": 1, "tokens": 1, "usd": 2}

SLOT_WAIT_S = 1.0  # when somebody will have ended is not known, but waiting helps


class Moment(Struct, frozen=True, gc=False):
    """Now: Unix seconds, for windows, and microseconds of a clock that never jumps, for rates."""

    unix_s: float
    steady_us: int


class RuleState(Struct, frozen=True, kw_only=True):
    """What a rule has counted, in its meter's unit.

    `reserved` belongs to requests that are not settled; of a rate it is the part that has not drained. `remaining` is
    never negative. `resets_in_s` is when all of `amount` will be there again, None where time does not bring it back.
    `starts_at` names the present window of a budget. `refused` and `would_refuse` (shadow) are counts of requests.
    """

    rule: Rule
    used: int
    reserved: int
    remaining: int
    resets_in_s: float | None
    starts_at: int | None
    refused: int
    would_refuse: int


class Hold(Protocol):
    """What one request holds of one rule until it is settled."""

    @property
    def counter(self) -> Counter:
        """Of which rule."""
        ...

    def settle(self, spent: Amounts, now: Moment) -> Charge | None:
        """Replace what was reserved by what was spent, once. Returns what a budget's window was charged."""
        ...


class Counter(ABC):
    """What was used of one rule. Only the rule's own arithmetic: modes are for those who ask."""

    __slots__ = ("column", "refused", "rule", "told_at_us", "would_refuse")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.column = COLUMNS[rule.meter]
        self.refused = 0
        self.would_refuse = 0
        self.told_at_us: int | None = None  # when the log last said that it would have refused

    def adopt(self, rule: Rule, now: Moment) -> None:
        """The rule was changed, with the same meter and period; what was used stays used."""
        self.rule = rule

    @abstractmethod
    def can(self, asked: int, now: Moment) -> bool:
        """Whether `asked` has room. Changes nothing."""

    @abstractmethod
    def hold(self, asked: int, now: Moment) -> Hold:
        """Reserve `asked`, with or without room. Only after `can` at the same moment."""

    @abstractmethod
    def wait_s(self, asked: int, now: Moment) -> float | None:
        """Seconds until `asked`, which has no room, will have; None when waiting does not bring it."""

    @abstractmethod
    def state(self, now: Moment) -> RuleState:
        """What was counted, as it is now."""

    @abstractmethod
    def is_idle(self, now: Moment) -> bool:
        """Whether it knows nothing that a new counter would not know: nothing used, nothing held."""

    def never_fits(self, asked: int) -> bool:
        """Whether `asked` is more than there ever is."""
        return asked > self.rule.amount

    def _state(
        self, used: int, reserved: int, resets_in_s: float | None = None, starts_at: int | None = None
    ) -> RuleState:
        return RuleState(
            rule=self.rule,
            used=used,
            reserved=reserved,
            remaining=max(0, self.rule.amount - used - reserved),
            resets_in_s=resets_in_s,
            starts_at=starts_at,
            refused=self.refused,
            would_refuse=self.would_refuse,
        )


class Rate(Counter):
    """Requests or tokens a minute."""

    __slots__ = ("gcra", "num_held", "reserved")

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.gcra = Gcra(rule.amount)
        self.num_held = 0
        self.reserved = 0

    def adopt(self, rule: Rule, now: Moment) -> None:
        super().adopt(rule, now)
        self.gcra.change(rule.amount, now.steady_us)

    def can(self, asked: int, now: Moment) -> bool:
        return self.gcra.can(asked, now.steady_us)

    def hold(self, asked: int, now: Moment) -> RateHold:
        self.num_held += 1
        self.reserved += asked
        return RateHold(self, asked, self.gcra.take(asked, now.steady_us))

    def wait_s(self, asked: int, now: Moment) -> float | None:
        return None if self.never_fits(asked) else self.gcra.wait_s(asked, now.steady_us)

    def state(self, now: Moment) -> RuleState:
        owed = self.gcra.used(now.steady_us)
        reserved = min(owed, self.reserved)
        return self._state(owed - reserved, reserved, self.gcra.reset_s(now.steady_us))

    def is_idle(self, now: Moment) -> bool:
        return not self.num_held and not self.gcra.debt(now.steady_us)


class RateHold:
    """Units of a rate."""

    __slots__ = ("asked", "counter", "ticket")

    def __init__(self, counter: Rate, asked: int, ticket: int) -> None:
        self.counter, self.asked, self.ticket = counter, asked, ticket

    def settle(self, spent: Amounts, now: Moment) -> None:
        """Correct the debt to what was spent."""
        rate = self.counter
        rate.num_held -= 1
        rate.reserved -= self.asked
        difference = spent[rate.column] - self.asked
        if difference:
            rate.gcra.settle(self.ticket, difference, now.steady_us)


class Concurrency(Counter):
    """Requests at once: the set of those that run, never a number that could go astray."""

    __slots__ = ("slots",)

    def __init__(self, rule: Rule) -> None:
        super().__init__(rule)
        self.slots: set[Slot] = set()

    def can(self, asked: int, now: Moment) -> bool:
        return len(self.slots) < self.rule.amount

    def hold(self, asked: int, now: Moment) -> Slot:
        slot = Slot(self)
        self.slots.add(slot)
        return slot

    def wait_s(self, asked: int, now: Moment) -> float | None:
        return None if self.never_fits(asked) else SLOT_WAIT_S

    def state(self, now: Moment) -> RuleState:
        return self._state(len(self.slots), 0)

    def is_idle(self, now: Moment) -> bool:
        return not self.slots


class Slot:
    """The place of one request among those that run."""

    __slots__ = ("counter",)

    def __init__(self, counter: Concurrency) -> None:
        self.counter = counter

    def settle(self, spent: Amounts, now: Moment) -> None:
        """Leave."""
        self.counter.slots.discard(self)
