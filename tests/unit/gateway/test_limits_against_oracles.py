"""Limits against a log of everything that happened, and against two libraries where they mean the same."""

from __future__ import annotations

import copy
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition
from hypothesis.stateful import rule as step
from msgspec import Struct
from pyrate_limiter.abstracts.algorithm import GCRA
from pyrate_limiter.abstracts.rate import Rate
from throttled import utils as throttled_utils
from throttled.rate_limiter import per_min
from throttled.rate_limiter.gcra import GCRARateLimiter
from throttled.store import MemoryStore

from backends.types import Usage
from gateway.counters import RuleState
from gateway.errors import LimitReached
from gateway.gcra import MINUTE_US, SECOND_US
from gateway.limits import Demand, LimitOptions, Limits, Reservation
from gateway.rules import PREPAID, Rule, rolling_hours, window_at
from tests.conftest import FakeClock
from tests.unit.gateway.limit_desk import Desk, usage
from tests.unit.gateway.limit_desk import rule as limit

RULES = (
    limit("rpm", 8, kind="tenant"),
    limit("rpm", 5, kind="key"),
    limit("tpm", 60, kind="project"),
    limit("concurrency", 3, kind="project"),
    limit("concurrency", 2, kind="key"),
    limit("tokens", 150, kind="tenant", period="hour"),
    limit("tokens", 120, kind="key", period="rolling:2h"),
    limit("usd", 400, kind="project", period=PREPAID),
    limit("tpm", 30, kind="tenant", mode="shadow"),
    limit("usd", 90, kind="tenant", period="day", mode="soft"),
)
SUBSETS = ((0, 2, 3, 5, 8), (1, 2, 4, 6, 7), (0, 1, 2, 3, 4, 5, 6, 7, 8, 9), (2,), (6, 5, 9))


class Entry(Struct):
    """A request that was let in. `tokens` and `cost` are the estimate until it is settled; both never exceed it."""

    at_us: int
    rules: tuple[Rule, ...]
    reservation: Reservation
    estimate: tuple[int, int]
    tokens: int
    cost: int
    is_open: bool = True
    is_computed: bool = True

    def amount(self, rule: Rule) -> int:
        """What it counts for."""
        if rule.meter == "rpm":
            return 1 if self.is_computed else 0
        return self.cost if rule.meter == "usd" else self.tokens


class Scenario(RuleBasedStateMachine):
    """Calls, settles and time in any order; after each step everything is recounted from the log."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock(7000.0)
        self.limits = Limits(LimitOptions(), self.clock)
        self.log: list[Entry] = []

    @property
    def open(self) -> list[Entry]:
        return [entry for entry in self.log if entry.is_open]

    def counted(self, rule: Rule) -> list[Entry]:
        return [entry for entry in self.log if rule in entry.rules]

    @step(
        subset=st.sampled_from(SUBSETS),
        prompt=st.sampled_from((0, 1, 10, 25)),
        output=st.sampled_from((1, 5, 20, 40)),
        cost=st.sampled_from((0, 7, 60)),
    )
    def call(self, subset: tuple[int, ...], prompt: int, output: int, cost: int) -> None:
        rules = tuple(RULES[at] for at in subset)
        demand = Demand(request_id="r", model="m", prompt_tokens=prompt, output_tokens=output, cost_nano=cost)
        verdict = self.limits.check(rules, demand)
        before = self.sums()
        try:
            reservation = self.limits.reserve(rules, demand)
        except LimitReached as error:
            assert (verdict.allowed, verdict.report) == (False, error.report)
            assert self.sums() == before, "a refusal consumed something"
            self.check_refusal(error, rules, demand)
            return
        assert verdict.allowed
        now = round(self.clock() * SECOND_US)
        tokens = prompt + output
        self.log.append(Entry(now, rules, reservation, (tokens, cost), tokens, cost))

    @precondition(lambda self: self.open)
    @step(pick=st.integers(0, 100), part=st.sampled_from((0.0, 0.2, 0.5, 1.0, 1.0)), twice=st.booleans())
    def settle(self, pick: int, part: float, twice: bool) -> None:
        entry = self.open[pick % len(self.open)]
        entry.tokens, entry.cost = (int(amount * part) for amount in entry.estimate)
        entry.is_open, entry.is_computed = False, part > 0
        used = Usage(prompt_tokens=entry.tokens + 3, completion_tokens=0, cached_tokens=3)
        charges = entry.reservation.settle(used, entry.cost, computed=entry.is_computed)

        budgets = [rule for rule in entry.rules if rule.is_budget]
        assert [(it.rule_id, it.amount) for it in charges] == [(rule.id, entry.amount(rule)) for rule in budgets]
        assert [it.starts_at for it in charges] == [
            window_at(rule, entry.at_us / SECOND_US).starts_at for rule in budgets
        ]
        if twice:
            before = self.sums()
            assert entry.reservation.settle(used, entry.cost) == ()
            assert self.sums() == before

    @step(seconds=st.sampled_from((0.000001, 0.5, 3.0, 7.5, 20.0, 60.0, 1800.0, 3600.0)))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @step()
    def forget(self) -> None:
        before = self.sums()
        self.limits.forget()
        assert self.sums() == before

    def sums(self) -> list[tuple[int, int]]:
        return [(state.used, state.reserved) for state in self.limits.states(RULES)]

    def check_refusal(self, error: LimitReached, rules: tuple[Rule, ...], demand: Demand) -> None:
        """The rule that is named has no room; when it says when, it has room then and not a moment before."""
        [refusing] = [rule for rule in rules if rule.id == error.report.limit]
        assert refusing.mode == "enforce"
        if error.retry_after_s is None or refusing.meter == "concurrency":
            return
        limits, clock = copy.deepcopy((self.limits, self.clock))
        clock.advance(error.retry_after_s - 0.000001)
        assert not limits.check((refusing,), demand).allowed
        clock.advance(0.000001)
        assert limits.check((refusing,), demand).allowed

    @invariant()
    def no_more_runs_at_once_than_is_allowed(self) -> None:
        for rule in RULES:
            if rule.meter == "concurrency":
                running = sum(entry.is_open for entry in self.counted(rule))
                assert running == self.state(rule).used <= rule.amount

    @invariant()
    def budgets_hold_exactly_what_the_log_adds_up_to(self) -> None:
        for rule in RULES:
            if not rule.is_budget:
                continue
            entries = [entry for entry in self.counted(rule) if self.counts_now(rule, entry)]
            used = sum(entry.amount(rule) for entry in entries if not entry.is_open)
            reserved = sum(entry.amount(rule) for entry in entries if entry.is_open)
            state = self.state(rule)
            assert (state.used, state.reserved) == (used, reserved)
            assert rule.mode == "soft" or used + reserved <= rule.amount

    @invariant()
    def no_interval_lets_more_in_than_a_rate_and_its_refill(self) -> None:
        for rule in RULES:
            if rule.meter not in ("rpm", "tpm") or rule.mode != "enforce":
                continue
            entries = self.counted(rule)
            for at, first in enumerate(entries):
                total = 0
                for last in entries[at:]:
                    total += last.amount(rule)
                    assert total * MINUTE_US <= rule.amount * (MINUTE_US + last.at_us - first.at_us)

    def state(self, rule: Rule) -> RuleState:
        return self.limits.states((rule,))[0]

    def counts_now(self, rule: Rule, entry: Entry) -> bool:
        hours = rolling_hours(rule.period)
        window = window_at(rule, entry.at_us / SECOND_US)
        if hours is None:
            return window == window_at(rule, self.clock())
        return window.ends_at is not None and self.clock() < window.ends_at


TestScenario = Scenario.TestCase
TestScenario.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)


@pytest.mark.parametrize("seed", range(5))
def test_without_corrections_limits_refuse_exactly_when_the_log_says_so(seed: int) -> None:
    """Estimates are the truth here, so a log alone knows whether there is room: no call is refused without need."""
    pick, clock = Random(seed), FakeClock(7000.0)
    rules = RULES[:8]
    limits = Limits(LimitOptions(), clock)
    log: list[Entry] = []
    num_refused = 0
    for _ in range(600):
        clock.advance(pick.choice((0, 0.1, 1.0, 5.0, 20.0, 600.0)))
        running = [entry for entry in log if entry.is_open]
        if running and pick.random() < 0.6:
            entry = pick.choice(running)
            entry.is_open = False
            entry.reservation.settle(usage(entry.tokens, 0), entry.cost)
        tokens, cost = pick.choice((1, 5, 10, 20)), pick.choice((0, 1, 2))
        now = round(clock() * SECOND_US)
        has_room = all(_has_room(rule, log, tokens, cost, now) for rule in rules)
        demand = Demand(request_id="r", model="m", prompt_tokens=tokens, output_tokens=0, cost_nano=cost)
        try:
            reservation = limits.reserve(rules, demand)
        except LimitReached:
            assert not has_room
            num_refused += 1
        else:
            assert has_room
            log.append(Entry(now, rules, reservation, (tokens, cost), tokens, cost))
    assert 50 < num_refused < 550


def _has_room(rule: Rule, log: list[Entry], tokens: int, cost: int, now: int) -> bool:
    if rule.meter == "concurrency":
        return sum(entry.is_open for entry in log) < rule.amount
    asked = {"rpm": 1, "usd": cost}.get(rule.meter, tokens)
    if rule.meter in ("rpm", "tpm"):
        total = asked
        for entry in reversed(log):
            total += entry.amount(rule)
            if total * MINUTE_US > rule.amount * (MINUTE_US + now - entry.at_us):
                return False
        return True
    counted = 0
    for entry in log:
        window = window_at(rule, entry.at_us / SECOND_US)
        if window.ends_at is None or now < window.ends_at * SECOND_US:
            counted += entry.amount(rule)
    return not asked or counted + asked <= rule.amount


calls = st.lists(st.tuples(st.integers(0, 160), st.integers(1, 8)), max_size=80)


@settings(max_examples=60, deadline=None)
@given(amount=st.sampled_from((15, 30, 60, 120, 240)), calls=calls)
def test_rates_are_those_of_throttled_py(amount: int, calls: list[tuple[int, int]]) -> None:
    """Its GCRA with a burst of the whole amount: verdict, remaining, retry after and reset after agree. It counts in
    floats, so instants are 16ths of a second, intervals powers of two; it corrects nothing, so estimates are the truth.
    """
    clock = FakeClock(4096.0)
    ours = Desk(clock, limit("tpm", amount))
    theirs = GCRARateLimiter(per_min(amount), MemoryStore())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(throttled_utils, "now_mono_f", clock)
        for sixteenths, cost in calls:
            clock.advance(sixteenths / 16)
            result = theirs.limit("k", cost)
            wait_s = 0.0
            try:
                ours.reserve(cost, 0).settle(usage(cost, 0), 0)
            except LimitReached as error:
                wait_s = error.retry_after_s or 0.0
            left = ours.limits.rates(ours.rules).tokens
            assert left is not None
            state = result.state
            assert (result.limited, state.retry_after) == (wait_s > 0, wait_s)
            assert (state.limit, state.remaining, state.reset_after) == (left.limit, left.remaining, left.reset_s)


@settings(max_examples=60, deadline=None)
@given(
    amounts=st.lists(st.sampled_from((1, 6, 10, 24, 60, 96, 600, 1000)), min_size=1, max_size=3, unique=True),
    calls=st.lists(st.tuples(st.integers(0, 9000), st.integers(1, 12)), max_size=80),
)
def test_several_rates_together_are_those_of_pyrate_limiter(amounts: list[int], calls: list[tuple[int, int]]) -> None:
    """Its GCRA over several rates takes from all or none, as ours does over scopes. It counts in whole microseconds an
    unit and milliseconds of time, so the amounts divide a minute and the wait is compared in milliseconds. It names the
    first rate that refuses and we the one with the longest wait, so ours is no shorter."""
    clock = FakeClock(4000.0)
    ours = Desk(clock, *(limit("tpm", amount, id=str(amount)) for amount in amounts))
    algorithm, rates = GCRA(), [Rate(amount, 60_000) for amount in amounts]
    state = algorithm.initial(rates)
    now_ms = 4_000_000
    for wait_ms, cost in calls:
        now_ms += wait_ms
        clock.now = now_ms / 1000
        state, decision = algorithm.step(rates, state, now_ms, cost)
        try:
            ours.reserve(cost, 0).settle(usage(cost, 0), 0)
        except LimitReached as error:
            assert not decision.allowed
            if error.retry_after_s is not None:
                assert decision.retry_after_ms is not None
                assert -(-round(error.retry_after_s * SECOND_US) // 1000) >= decision.retry_after_ms
        else:
            assert decision.allowed
        owed = [it.used for it in ours.limits.states(ours.rules)]
        assert max(owed) == algorithm.consumed(rates, state, now_ms)
