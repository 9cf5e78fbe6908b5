"""Budgets by window: calendar, rolling and prepaid; each charge stays in the window in which it was reserved."""

from __future__ import annotations

from datetime import datetime
from typing import Literal
from zoneinfo import ZoneInfo

import pytest
from msgspec.structs import replace

from gateway import budgets
from gateway.budgets import Budget, BudgetHold, SoftAlert
from gateway.counters import Moment
from gateway.events import Charge
from gateway.rules import PREPAID, Rule, Scope, Window, window_at

HOUR_S = 3600
DAY_S = 24 * HOUR_S


def unix(*date: int, zone: str = "UTC") -> int:
    return int(datetime(*date, tzinfo=ZoneInfo(zone)).timestamp())  # type: ignore[arg-type, misc]


NOON = unix(2026, 5, 20, 12)  # a Wednesday
MIDNIGHT = unix(2026, 5, 20)


def rule(
    amount: int, period: str = "day", mode: Literal["enforce", "shadow", "soft"] = "enforce", time_zone: str = "UTC"
) -> Rule:
    scope = Scope("project", "acme/web")
    return Rule(id="b", scope=scope, meter="tokens", amount=amount, period=period, time_zone=time_zone, mode=mode)


class Till:
    """A budget with a clock, and what it told."""

    def __init__(self, rule: Rule, now: float = NOON, seeds: dict[int, int] | None = None) -> None:
        self.now = now
        self.alerts: list[SoftAlert] = []
        self.budget = Budget(rule, self.moment, self.alerts.append, seeds)

    @property
    def moment(self) -> Moment:
        return Moment(self.now, 0)

    def can(self, asked: int) -> bool:
        return self.budget.can(asked, self.moment)

    def hold(self, asked: int) -> BudgetHold:
        self.budget.can(asked, self.moment)
        return self.budget.hold(asked, self.moment)

    def settle(self, hold: BudgetHold, tokens: int) -> Charge:
        return hold.settle((1, tokens, 0), self.moment)

    def use(self, tokens: int) -> Charge:
        return self.settle(self.hold(tokens), tokens)

    @property
    def sums(self) -> tuple[int, int, int]:
        state = self.budget.state(self.moment)
        return state.used, state.reserved, state.remaining

    @property
    def resets_in_s(self) -> float | None:
        return self.budget.state(self.moment).resets_in_s

    def wait_s(self, asked: int) -> float | None:
        return self.budget.wait_s(asked, self.moment)


def test_what_is_reserved_has_no_room_for_others() -> None:
    till = Till(rule(100))
    hold = till.hold(60)

    assert (till.can(40), till.can(41), till.sums) == (True, False, (0, 60, 40))
    assert hold.reserved == Charge("b", MIDNIGHT, 60)
    assert till.settle(hold, 10) == Charge("b", MIDNIGHT, 10)
    assert (till.can(90), till.sums) == (True, (10, 0, 90))


def test_what_was_used_beyond_the_estimate_counts_and_nothing_is_negative() -> None:
    till = Till(rule(100))
    till.settle(till.hold(60), 130)

    assert (till.can(1), till.sums) == (False, (130, 0, 0))


def test_what_costs_nothing_passes_a_budget_that_is_spent() -> None:
    till = Till(rule(100))
    till.settle(till.hold(60), 130)

    assert till.can(0)


def test_a_day_ends_at_midnight_of_its_time_zone() -> None:
    till = Till(rule(100, time_zone="Asia/Tokyo"), now=unix(2026, 5, 20, 23, 59, 59, zone="Asia/Tokyo"))
    charge = till.use(100)

    assert charge.starts_at == unix(2026, 5, 20, zone="Asia/Tokyo")
    assert (till.can(1), till.wait_s(1), till.resets_in_s) == (False, 1, 1)
    till.now += 1
    assert (till.can(100), till.sums, till.resets_in_s) == (True, (0, 0, 100), DAY_S)


@pytest.mark.parametrize(
    ("period", "ends_at"),
    [
        ("hour", unix(2026, 5, 20, 13)),
        ("day", unix(2026, 5, 21)),
        ("week", unix(2026, 5, 25)),
        ("month", unix(2026, 6, 1)),
    ],
)
def test_every_calendar_period_resets_by_itself(period: str, ends_at: int) -> None:
    till = Till(rule(100, period))
    till.use(100)
    assert till.resets_in_s == ends_at - NOON

    till.now = ends_at - 0.001
    assert not till.can(1)
    till.now = ends_at
    assert till.can(100)


def test_the_reset_is_computed_when_it_is_asked_for() -> None:
    """Nothing runs at midnight; a budget that nobody asked for days is right at once."""
    till = Till(rule(100))
    till.use(100)

    till.now += 30 * DAY_S + 0.5

    assert (till.sums, till.resets_in_s) == ((0, 0, 100), DAY_S / 2 - 0.5)


def test_a_reservation_settles_in_the_window_it_was_made_in() -> None:
    till = Till(rule(100), now=unix(2026, 5, 20, 23, 59, 59))
    hold = till.hold(60)
    till.now += 2
    assert till.sums == (0, 0, 100)

    assert till.settle(hold, 70) == Charge("b", MIDNIGHT, 70)

    assert till.sums == (0, 0, 100)
    assert {use.window.starts_at: (use.used, use.reserved) for use in till.budget.windows()} == {
        MIDNIGHT: (70, 0),
        MIDNIGHT + DAY_S: (0, 0),
    }


def test_a_clock_that_is_set_back_finds_what_was_used() -> None:
    till = Till(rule(100), now=unix(2026, 5, 20, 23, 59, 59))
    till.use(70)
    till.now += 2
    till.use(20)
    assert till.sums == (20, 0, 80)

    till.now -= 2
    assert till.sums == (70, 0, 30)
    till.now += 2
    assert till.sums == (20, 0, 80)


def test_a_rolling_hour_counts_until_all_of_it_has_left_the_period() -> None:
    till = Till(rule(100, "rolling:2h"), now=NOON + 1800)  # 12:30
    assert till.use(60).starts_at == NOON
    till.now = NOON + HOUR_S + 60  # 13:01
    assert till.use(40).starts_at == NOON + HOUR_S
    assert (till.sums, till.can(1)) == ((100, 0, 0), False)

    till.now = NOON + 3 * HOUR_S - 0.001  # until 15:00: a request of 12:59 is two hours old at 14:59
    assert (till.sums, till.can(1)) == ((100, 0, 0), False)
    till.now = NOON + 3 * HOUR_S
    assert (till.sums, till.can(60), till.can(61)) == ((40, 0, 60), True, False)
    till.now = NOON + 4 * HOUR_S
    assert till.sums == (0, 0, 100)


def test_a_rolling_wait_lasts_until_enough_has_left() -> None:
    till = Till(rule(100, "rolling:24h"))
    till.use(30)
    till.now += HOUR_S
    till.hold(40)
    till.now += HOUR_S
    till.use(30)

    waits = [till.wait_s(asked) for asked in (1, 30, 31, 70, 71, 100, 101)]

    hours = [None if wait is None else (till.now + wait - NOON) / HOUR_S for wait in waits]
    assert hours == [25, 25, 26, 26, 27, 27, None]
    assert till.resets_in_s == 25 * HOUR_S
    till.now += waits[0] or 0
    assert till.can(30)


def test_a_late_settle_counts_in_its_rolling_hour() -> None:
    till = Till(rule(100, "rolling:2h"))
    hold = till.hold(50)
    till.now += HOUR_S

    till.settle(hold, 80)
    assert till.sums == (80, 0, 20)
    till.now = NOON + 3 * HOUR_S
    assert till.sums == (0, 0, 100)


def test_prepaid_credit_never_resets_and_grows_by_top_ups() -> None:
    till = Till(rule(100, PREPAID))
    assert till.use(90) == Charge("b", 0, 90)
    till.now += 400 * DAY_S

    assert (till.can(10), till.can(11), till.wait_s(11), till.resets_in_s) == (True, False, None, None)
    assert not till.budget.never_fits(1000)
    till.budget.adopt(rule(150, PREPAID), till.moment)
    assert (till.can(60), till.can(61), till.sums) == (True, False, (90, 0, 60))


def test_only_what_a_period_never_has_never_fits() -> None:
    budget = Till(rule(100)).budget

    assert (budget.never_fits(100), budget.never_fits(101)) == (False, True)


def test_what_the_store_knows_is_there_from_the_start() -> None:
    till = Till(rule(100), seeds={MIDNIGHT: 40, MIDNIGHT - DAY_S: 100})

    assert till.sums == (40, 0, 60)


def test_rolling_hours_come_back_from_the_store() -> None:
    seeds = {NOON - hours * HOUR_S: 10 for hours in range(40)}

    assert Till(rule(1000, "rolling:24h"), seeds=seeds).sums == (250, 0, 750)  # 24 hours, and the one that is leaving


def test_seeds_may_come_in_any_order() -> None:
    seeds = {NOON - hours * HOUR_S: 40 for hours in (1, 3, 2)}
    till = Till(rule(120, "rolling:24h"), seeds=seeds)
    assert not till.can(1)

    assert till.wait_s(1) == 22 * HOUR_S  # when the hour of 9 o'clock has left
    assert till.wait_s(41) == 23 * HOUR_S


def test_a_seed_said_again_replaces_what_was_said_and_keeps_what_was_charged() -> None:
    till = Till(rule(100))
    till.use(5)

    for _ in range(3):
        till.budget.seed({MIDNIGHT: 40}, till.moment)

    assert till.sums == (45, 0, 55)


def test_a_changed_time_zone_begins_its_own_window_and_forgets_nothing() -> None:
    till = Till(rule(100))
    till.use(30)

    till.budget.adopt(rule(100, time_zone="Asia/Tokyo"), till.moment)

    assert till.use(10).starts_at == unix(2026, 5, 20, zone="Asia/Tokyo")
    assert till.sums == (40, 0, 60)


def test_windows_that_are_over_are_forgotten() -> None:
    till = Till(rule(10**9, "hour"))
    held = till.hold(7)
    for _ in range(100):
        till.now += HOUR_S
        till.use(1)

    kept = [use.window.starts_at for use in till.budget.windows()]

    assert kept == [
        NOON,
        till.now - HOUR_S,
        till.now,
    ]  # one that is held, one in case the clock is set back, the present
    till.settle(held, 7)
    till.now += HOUR_S
    till.can(1)
    assert len(till.budget.windows()) == 2


def test_the_calendar_is_asked_once_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    till, asked = Till(rule(10**9)), []

    def counting(rule: Rule, now: float) -> Window:
        asked.append(now)
        return window_at(rule, now)

    monkeypatch.setattr(budgets, "window_at", counting)
    for _ in range(100):
        till.use(1)
        till.now += DAY_S / 50  # into the day after the next

    assert len(asked) == 2


def test_a_soft_budget_is_told_once_a_window_and_refuses_nothing() -> None:
    till = Till(rule(100, mode="soft"))
    till.use(100)
    assert till.alerts == []

    till.use(1)
    till.use(500)
    assert till.alerts == [SoftAlert(rule=till.budget.rule, window=Window(MIDNIGHT, MIDNIGHT + DAY_S), used=101)]
    assert (till.can(10**9), till.sums) == (True, (601, 0, 0))

    till.now += DAY_S
    till.use(101)
    assert [alert.window.starts_at for alert in till.alerts] == [MIDNIGHT, MIDNIGHT + DAY_S]


def test_what_is_only_reserved_passes_no_soft_budget() -> None:
    till = Till(rule(100, mode="soft"))
    hold = till.hold(1000)
    assert till.alerts == []

    till.settle(hold, 100)
    assert till.alerts == []


def test_a_late_settle_passes_the_soft_budget_of_its_own_window() -> None:
    till = Till(rule(100, mode="soft"))
    hold = till.hold(50)
    till.now += DAY_S

    till.settle(hold, 101)

    assert [(alert.window.starts_at, alert.used) for alert in till.alerts] == [(MIDNIGHT, 101)]


def test_a_rolling_soft_budget_is_told_again_only_after_it_was_below_its_amount() -> None:
    till = Till(rule(100, "rolling:2h", mode="soft"))
    for _ in range(6):
        till.use(60)
        till.now += HOUR_S
    assert [alert.used for alert in till.alerts] == [120]

    till.now += 6 * HOUR_S
    till.use(101)
    assert [alert.used for alert in till.alerts] == [120, 101]


def test_a_soft_budget_that_was_passed_before_the_start_is_not_told_again() -> None:
    till = Till(rule(100, mode="soft"), seeds={MIDNIGHT: 120})
    till.use(10)

    assert till.alerts == []


def test_a_soft_budget_that_was_raised_can_be_passed_again() -> None:
    till = Till(rule(100, mode="soft"))
    till.use(101)

    till.budget.adopt(replace(till.budget.rule, amount=200), till.moment)
    till.use(50)
    till.use(50)

    assert [alert.used for alert in till.alerts] == [101, 201]


def test_a_budget_knows_nothing_once_its_window_is_over() -> None:
    till = Till(rule(100))
    assert till.budget.is_idle(till.moment)
    till.use(1)
    assert not till.budget.is_idle(till.moment)

    till.now += 2 * DAY_S
    assert till.budget.is_idle(till.moment)
    till.hold(0)
    till.hold(1)
    assert not till.budget.is_idle(till.moment)


def test_days_of_daylight_saving_have_23_and_25_hours() -> None:
    zone = "Europe/Berlin"
    for date, hours in (((2026, 3, 29), 23), ((2026, 10, 25), 25)):
        till = Till(rule(100, time_zone=zone), now=unix(*date, zone=zone))
        assert till.resets_in_s == hours * HOUR_S
