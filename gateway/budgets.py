"""What was used and reserved of a budget, window by window."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from msgspec import Struct

from gateway.counters import Amounts, Counter, Moment, RuleState
from gateway.events import Charge
from gateway.rules import PREPAID, ROLLING_BUCKET_S, Rule, Window, rolling_hours, window_at

KEPT_S = 3600  # a window is kept for so long after its end, in case the clock is set back


class SoftAlert(Struct, frozen=True, kw_only=True):
    """A soft budget's amount was passed: `used` in `window`, in the rule's unit. Told once a window."""

    rule: Rule
    window: Window
    used: int


class WindowUse:
    """What was used and is reserved in one window. `seeded` is the part of `used` that came from the store."""

    __slots__ = ("is_counted", "is_told", "reserved", "seeded", "used", "window")

    def __init__(self, window: Window) -> None:
        self.window = window
        self.used = self.reserved = self.seeded = 0
        self.is_counted = False  # whether the budget's sums include it
        self.is_told = False

    @property
    def ends_at(self) -> float:
        """Infinite when it never ends."""
        return math.inf if self.window.ends_at is None else self.window.ends_at

    def covers(self, unix_s: float) -> bool:
        """Whether what was used in it counts at `unix_s`."""
        return self.window.starts_at <= unix_s < self.ends_at


class Budget(Counter):
    """Tokens or nano-dollars over a period.

    A request is charged in the window in which it was let in, whenever it is settled. What counts are all windows that
    cover the present: one of the calendar, or the hours of a rolling period, the oldest of which counts until all of it
    has left the period. Windows are found by the clock whenever somebody asks, so no reset can be missed.
    """

    __slots__ = ("_current", "_from", "_is_rolling", "_is_soft", "_tell", "_until", "_windows", "reserved", "used")

    def __init__(
        self, rule: Rule, now: Moment, tell: Callable[[SoftAlert], None], seeds: Mapping[int, int] | None = None
    ) -> None:
        """`seeds`: window → what was used in it before. `tell` hears of a soft budget that is passed; never raises."""
        super().__init__(rule)
        self._tell = tell
        self._windows: dict[int, WindowUse] = {}
        self._is_soft = rule.mode == "soft"
        self._is_rolling = rolling_hours(rule.period) is not None
        self.seed(seeds or {}, now)

    def seed(self, seeds: Mapping[int, int], now: Moment) -> None:
        """Windows → what was used in them before anything was charged here. Said again, it replaces what was said."""
        for starts_at, used in seeds.items():
            use = self._use(Window(starts_at, window_at(self.rule, starts_at).ends_at))
            use.used += used - use.seeded
            use.seeded = used
            use.is_told = use.used > self.rule.amount  # by whoever counted it
        self._turn(now.unix_s)
        if seeds and self._is_rolling:
            self._current.is_told = self.used > self.rule.amount

    def add(self, starts_at: int, amount: int, now: Moment) -> None:
        """What somebody else has charged to a window."""
        known = self._windows.get(starts_at)
        self.seed({starts_at: amount + (known.seeded if known is not None else 0)}, now)

    def adopt(self, rule: Rule, now: Moment) -> None:
        super().adopt(rule, now)
        self._is_soft = rule.mode == "soft"
        self._turn(now.unix_s)
        self._current.is_told &= self.used > rule.amount

    def can(self, asked: int, now: Moment) -> bool:
        self._freshen(now.unix_s)
        return self._is_soft or not asked or self.used + self.reserved + asked <= self.rule.amount

    def hold(self, asked: int, now: Moment) -> BudgetHold:
        self.reserved += asked
        self._current.reserved += asked
        return BudgetHold(self, self._current, asked)

    def charge(self, use: WindowUse, reserved: int, spent: int, now: Moment) -> None:
        """Replace `reserved` by `spent` in the window in which it was reserved."""
        use.reserved -= reserved
        use.used += spent
        if use.is_counted:
            self.reserved -= reserved
            self.used += spent
        if self._is_soft:
            self._tell_if_passed(use, now)

    def wait_s(self, asked: int, now: Moment) -> float | None:
        excess = self.used + self.reserved + asked - self.rule.amount
        for use in sorted(self._counted(), key=lambda use: use.ends_at):
            excess -= use.used + use.reserved
            if excess <= 0 and use.window.ends_at is not None:
                return use.window.ends_at - now.unix_s
        return None

    def state(self, now: Moment) -> RuleState:
        self._freshen(now.unix_s)
        ends = [use.ends_at for use in self._counted() if use.used or use.reserved or not self._is_rolling]
        last = max(ends, default=now.unix_s)
        resets_in_s = None if last == math.inf else last - now.unix_s
        return self._state(self.used, self.reserved, resets_in_s, self._current.window.starts_at)

    def windows(self) -> list[WindowUse]:
        """Every window that is kept."""
        return list(self._windows.values())

    def is_idle(self, now: Moment) -> bool:
        self._freshen(now.unix_s)
        return not any(use.used or use.reserved for use in self._windows.values())

    def never_fits(self, asked: int) -> bool:
        """Not so for prepaid credit, which grows."""
        return self.rule.period != PREPAID and super().never_fits(asked)

    def _freshen(self, unix_s: float) -> None:
        if not self._from <= unix_s < self._until:
            was_told = self._current.is_told
            self._turn(unix_s)
            if self._is_rolling:  # it is told again only after it was below its amount
                self._current.is_told = was_told and self.used > self.rule.amount

    def _turn(self, unix_s: float) -> None:
        """Find the window of `unix_s`, and sum up what counts from now on."""
        window = window_at(self.rule, unix_s)
        end = math.inf if window.ends_at is None else window.ends_at
        self._from, self._until = window.starts_at, window.starts_at + ROLLING_BUCKET_S if self._is_rolling else end
        self._current = self._use(window)
        self._windows = {
            starts_at: use
            for starts_at, use in self._windows.items()
            if use is self._current or use.reserved or unix_s < use.ends_at + KEPT_S
        }
        for use in self._windows.values():
            use.is_counted = use.covers(unix_s)
        self.used = sum(use.used for use in self._counted())
        self.reserved = sum(use.reserved for use in self._counted())

    def _use(self, window: Window) -> WindowUse:
        return self._windows.setdefault(window.starts_at, WindowUse(window))

    def _counted(self) -> list[WindowUse]:
        return [use for use in self._windows.values() if use.is_counted]

    def _measure(self, use: WindowUse) -> int:
        """What a soft budget compares with its amount."""
        return self.used if self._is_rolling else use.used

    def _tell_if_passed(self, use: WindowUse, now: Moment) -> None:
        self._freshen(now.unix_s)
        teller = self._current if self._is_rolling else use
        used = self._measure(use)
        if used > self.rule.amount and not teller.is_told:
            teller.is_told = True
            self._tell(SoftAlert(rule=self.rule, window=teller.window, used=used))


class BudgetHold:
    """An amount in one window of a budget."""

    __slots__ = ("asked", "counter", "use")

    def __init__(self, counter: Budget, use: WindowUse, asked: int) -> None:
        self.counter, self.use, self.asked = counter, use, asked

    @property
    def reserved(self) -> Charge:
        """What the window will be charged if the estimate is right."""
        return Charge(self.counter.rule.id, self.use.window.starts_at, self.asked)

    def settle(self, spent: Amounts, now: Moment) -> Charge:
        """Charge what was spent."""
        amount = spent[self.counter.column]
        self.counter.charge(self.use, self.asked, amount, now)
        return Charge(self.counter.rule.id, self.use.window.starts_at, amount)
