"""Rates, concurrency and budgets of every scope: reserved together or not at all, settled to what was used.

No I/O and no await in it: between the check and the reservation nothing else runs, so calls at once cannot share the
same room.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from backends.types import Usage
from gateway import log, refusals
from gateway.budgets import Budget, BudgetHold, SoftAlert
from gateway.counters import Amounts, Concurrency, Counter, Hold, Moment, Rate, RuleState
from gateway.errors import LimitReached, LimitReport, NeverFits, NotPriced
from gateway.events import Charge
from gateway.gcra import SECOND_US, Headroom, Rates
from gateway.rules import Meter, Rule

logger = logging.getLogger(f"{log.ROOT}.limits")

SHADOW_LOG_US = 60 * SECOND_US
FEWEST = 4096  # up to so many counters nothing is forgotten, so that the counts of refusals stay
SWEPT_AT_ONCE = 16  # counters that are looked at when there are more than before


class LimitOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[limits]`. `count_cached`: prompt tokens that came from a cache count like others, for tokens a minute and token
    budgets. `unpriced`: what happens to a model without a price where a money budget applies.

    Soft budgets that are passed are told to `webhook_url`, signed with `webhook_secret`.
    """

    url: Literal["memory://"] = "memory://"
    count_cached: bool = False
    unpriced: Literal["refuse", "free"] = "refuse"
    webhook_url: Annotated[str, Meta(pattern=r"^https?://[^\s/]+")] | None = None
    webhook_secret: str | None = None


class Demand(Struct, frozen=True, kw_only=True):
    """What a request will use at most, or is estimated to. `cost_nano` None: the model has no price."""

    request_id: str
    model: str
    prompt_tokens: int
    output_tokens: int
    cost_nano: int | None


class Verdict(Struct, frozen=True, kw_only=True):
    """What `reserve` would have done. `report` is None where the model has no price, and where all is well."""

    allowed: bool
    code: str | None = None
    message: str | None = None
    report: LimitReport | None = None
    states: tuple[RuleState, ...] = ()


class OpenReservation(Struct, frozen=True, kw_only=True):
    """A request that is not settled, and what it holds of budgets."""

    request_id: str
    model: str
    age_s: float
    charges: tuple[Charge, ...]


class WindowState(Struct, frozen=True, kw_only=True):
    """One window of a budget, as the store has it (`used`), and what is reserved in it."""

    rule_id: str
    starts_at: int
    used: int
    reserved: int


class Limits:
    """What was used of every rule. Belongs to one event loop.

    Windows of budgets go by `clock` (Unix seconds), rates by `steady`, a clock that is never set; by default that is
    `time.monotonic`, and a `clock` of one's own serves as both. `on_soft` hears once a window that a soft budget was
    passed. `options` may be replaced at any time.

    A rule in shadow mode counts what it would have refused, and lets it in. Its rate or concurrency then takes nothing,
    as if it had refused; its budget is charged, because its windows say what was used.
    """

    def __init__(
        self,
        options: LimitOptions,
        clock: Callable[[], float] = time.time,
        on_soft: Callable[[SoftAlert], None] = lambda alert: None,
        steady: Callable[[], float] | None = None,
    ) -> None:
        self.options = options
        self._clock = clock
        self._steady = steady or (time.monotonic if clock is time.time else clock)
        self._on_soft = on_soft
        self._counters: OrderedDict[str, Counter] = OrderedDict()  # those at the front were swept the longest ago
        self._seeds: dict[str, dict[int, int]] = {}  # of rules that were not met yet
        self._open: set[Reservation] = set()
        self._num_swept = FEWEST

    def reserve(self, rules: Sequence[Rule], demand: Demand) -> Reservation:
        """Reserve `demand` of all rules. Whoever gets the reservation must `settle` it.

        Raises, in this order when several apply: `NeverFits`, `NotPriced`, `BudgetSpent`, then `LimitReached` for
        requests, for tokens, for concurrency; of one kind the one with the longest wait. Then nothing was consumed.
        """
        now = self._now()
        asked = _asked(demand)
        counters = self._meet_all(rules, now)
        full = [counter for counter in counters if not counter.can(asked[counter.column], now)]
        if full or demand.cost_nano is None:
            refusal = self._refusal(counters, full, demand, now)
            if refusal is not None:
                refusal[0].refused += 1
                raise refusal[1]
            for counter in full:
                self._count_shadow(counter, demand, now)
            counters = [counter for counter in counters if counter not in full or counter.rule.is_budget]
        reservation = Reservation(self, demand, [counter.hold(asked[counter.column], now) for counter in counters], now)
        self._open.add(reservation)
        return reservation

    def check(self, rules: Sequence[Rule], demand: Demand) -> Verdict:
        """What `reserve` would do now. Takes nothing and counts nothing."""
        now = self._now()
        asked = _asked(demand)
        counters = self._meet_all(rules, now)
        full = [counter for counter in counters if not counter.can(asked[counter.column], now)]
        refusal = self._refusal(counters, full, demand, now)
        states = tuple(counter.state(now) for counter in counters)
        if refusal is None:
            return Verdict(allowed=True, states=states)
        error = refusal[1]
        report = error.report if isinstance(error, LimitReached) else None
        return Verdict(allowed=False, code=error.code, message=error.message, report=report, states=states)

    def rates(self, rules: Sequence[Rule]) -> Rates:
        """What is left of the tightest rates among `rules`, for the headers of a request that was refused."""
        now = self._now()
        return _rates(self._meet_all(rules, now), now)

    def seed(self, rule_id: str, starts_at: int, used: int) -> None:
        """What a budget's window had before anything was charged here: opening and used at start, the opening of a rule
        that is made while running. Said again it replaces what was said, and what was charged here is kept."""
        counter = self._counters.get(rule_id)
        if isinstance(counter, Budget):
            counter.seed({starts_at: used}, self._now())
        else:
            self._seeds.setdefault(rule_id, {})[starts_at] = used

    def add(self, charge: Charge) -> None:
        """What a recovery has charged to a budget in the store."""
        counter = self._counters.get(charge.rule_id)
        if isinstance(counter, Budget):
            counter.add(charge.starts_at, charge.amount, self._now())
        else:
            seeds = self._seeds.setdefault(charge.rule_id, {})
            seeds[charge.starts_at] = seeds.get(charge.starts_at, 0) + charge.amount

    def states(self, rules: Iterable[Rule] | None = None) -> list[RuleState]:
        """What was counted for `rules`, or for every rule that was met since it was last forgotten."""
        now = self._now()
        counters = self._counters.values() if rules is None else self._meet_all(rules, now)
        return [counter.state(now) for counter in counters]

    def windows(self) -> list[WindowState]:
        """The windows of all budgets that were met, to be compared with the store's."""
        return [
            WindowState(rule_id=rule_id, starts_at=use.window.starts_at, used=use.used, reserved=use.reserved)
            for rule_id, counter in self._counters.items()
            if isinstance(counter, Budget)
            for use in counter.windows()
        ]

    def open_reservations(self) -> list[OpenReservation]:
        """Requests that are not settled, the oldest first."""
        now = self._now()
        return [
            OpenReservation(
                request_id=reservation.demand.request_id,
                model=reservation.demand.model,
                age_s=(now.steady_us - reservation.at_us) / SECOND_US,
                charges=reservation.charges,
            )
            for reservation in sorted(self._open, key=lambda reservation: reservation.at_us)
        ]

    def forget(self, num_looked_at: int | None = None) -> int:
        """Drop the counters that know nothing (full again, nothing held, nothing used) among those that were looked at
        the longest ago, or among all. Returns how many were dropped.

        Happens by itself, a few at a time, as new rules are met; so memory follows what is in use.
        """
        now = self._now()
        num_before = len(self._counters)
        for rule_id in list(itertools.islice(self._counters, num_looked_at)):
            if self._counters[rule_id].is_idle(now):
                del self._counters[rule_id]
            else:
                self._counters.move_to_end(rule_id)
        self._num_swept = max(FEWEST, len(self._counters))
        return num_before - len(self._counters)

    def _settle(self, reservation: Reservation, usage: Usage, cost_nano: int, computed: bool) -> tuple[Charge, ...]:
        if reservation not in self._open:
            return ()
        self._open.remove(reservation)
        cached = 0 if self.options.count_cached else usage.cached_tokens
        tokens = max(0, usage.prompt_tokens - cached + usage.completion_tokens)
        spent, now = (1 if computed else 0, tokens, cost_nano), self._now()
        charges = [hold.settle(spent, now) for hold in reservation.holds]
        return tuple([charge for charge in charges if charge is not None])

    def _now(self) -> Moment:
        return Moment(self._clock(), round(self._steady() * SECOND_US))

    def _meet_all(self, rules: Iterable[Rule], now: Moment) -> list[Counter]:
        """The counters of `rules`. Sweeps first: a counter that is at hand must not be dropped."""
        known = self._counters
        if len(known) > self._num_swept:
            self.forget(SWEPT_AT_ONCE)
        counters = []
        for rule in rules:
            counter = known.get(rule.id)
            counters.append(counter if counter is not None and counter.rule is rule else self._meet(rule, now))
        return counters

    def _meet(self, rule: Rule, now: Moment) -> Counter:
        """The counter of a rule that is new, or not the object that it was."""
        counter = self._counters.get(rule.id)
        if counter is None or (counter.rule.meter, counter.rule.period) != (rule.meter, rule.period):
            self._counters[rule.id] = counter = self._make(rule, now)
        elif counter.rule == rule:  # several objects may say the same
            counter.rule = rule
        else:
            counter.adopt(rule, now)
        return counter

    def _make(self, rule: Rule, now: Moment) -> Counter:
        if rule.is_budget:
            return Budget(rule, now, self._tell_soft, self._seeds.pop(rule.id, None))
        return Concurrency(rule) if rule.meter == "concurrency" else Rate(rule)

    def _refusal(
        self, counters: Iterable[Counter], full: Iterable[Counter], demand: Demand, now: Moment
    ) -> tuple[Counter, LimitReached | NotPriced] | None:
        """Who refuses, and how, when somebody does."""
        asked = _asked(demand)
        error: LimitReached | None = None
        worst = refusals.worst((counter for counter in full if counter.rule.mode == "enforce"), asked, now)
        if worst is not None:
            error = refusals.refuse(worst, asked[worst.column], demand.model, now)
        if demand.cost_nano is None and self.options.unpriced == "refuse" and not isinstance(error, NeverFits):
            for counter in counters:
                if counter.rule.meter == "usd" and counter.rule.mode == "enforce":
                    return counter, refusals.not_priced(counter.rule, demand.model)
        return None if worst is None or error is None else (worst, error)

    def _count_shadow(self, counter: Counter, demand: Demand, now: Moment) -> None:
        """`counter` would have refused; the log says so at most once a minute."""
        counter.would_refuse += 1
        if counter.told_at_us is None or now.steady_us - counter.told_at_us >= SHADOW_LOG_US:
            counter.told_at_us = now.steady_us
            error = refusals.refuse(counter, _asked(demand)[counter.column], demand.model, now)
            told = log.fields(limit=counter.rule.id, id=demand.request_id, would_refuse=counter.would_refuse)
            logger.info("a limit in shadow mode would have refused a request: %s", error, extra=told)

    def _tell_soft(self, alert: SoftAlert) -> None:
        """Never raises: it is called from within a settle, which must come to its end."""
        try:
            self._on_soft(alert)
        except Exception:
            logger.exception("telling that a soft budget was passed failed")


class Reservation:
    """What one request holds, until it is settled."""

    __slots__ = ("_limits", "at_us", "charges", "demand", "holds")

    def __init__(self, limits: Limits, demand: Demand, holds: Sequence[Hold], now: Moment) -> None:
        self._limits = limits
        self.demand = demand
        self.holds = holds
        self.at_us = now.steady_us
        # What is reserved in the windows of budgets.
        self.charges = tuple([hold.reserved for hold in holds if isinstance(hold, BudgetHold)])

    @property
    def rates(self) -> Rates:
        """What is left now of the tightest rates that apply to the request."""
        return _rates([hold.counter for hold in self.holds], self._limits._now())

    def settle(self, usage: Usage, cost_nano: int, *, computed: bool = True) -> tuple[Charge, ...]:
        """Replace what was reserved by what was used, and free the slots. Returns what each window is charged.

        `computed=False`: nothing was worked on, so the request itself does not count either. Never awaits; a second
        time it does nothing and returns nothing.
        """
        return self._limits._settle(self, usage, cost_nano, computed)


def _asked(demand: Demand) -> Amounts:
    return 1, demand.prompt_tokens + demand.output_tokens, demand.cost_nano or 0


def _rates(counters: Iterable[Counter], now: Moment) -> Rates:
    tightest: dict[Meter, Headroom] = {}
    for counter in counters:
        if isinstance(counter, Rate) and counter.rule.mode == "enforce":
            headroom = counter.gcra.headroom(now.steady_us)
            other = tightest.get(counter.rule.meter)
            if other is None or headroom.remaining < other.remaining:
                tightest[counter.rule.meter] = headroom
    return Rates(requests=tightest.get("rpm"), tokens=tightest.get("tpm"))
