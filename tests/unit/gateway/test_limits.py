"""Limits of all scopes together: all reserved or none, settled to the truth, and said why when refused."""

from __future__ import annotations

import time
from typing import Literal

import pytest
from msgspec.structs import replace

from gateway import limits as module
from gateway.errors import BudgetSpent, LimitReached, NeverFits, NotPriced
from gateway.events import Charge
from gateway.gcra import Rates
from gateway.limits import LimitOptions, Limits
from gateway.rules import NANO, PREPAID
from tests.conftest import FakeClock
from tests.unit.gateway.limit_desk import NOTHING, Desk, demand, rule, usage

# What users of other gateways complain about.


def test_a_stream_of_100_tokens_uses_up_100_tokens_a_minute(clock: FakeClock) -> None:
    desk = Desk(clock, rule("tpm", 100))
    reservation = desk.reserve(20, 80)
    reservation.settle(usage(20, 80), 0)

    error = desk.refused(20, 80)

    assert (type(error), error.retry_after_s) == (LimitReached, 60.0)


def test_a_prompt_counts_before_anything_is_generated(clock: FakeClock) -> None:
    desk = Desk(clock, rule("tpm", 50))

    error = desk.refused(60, 1)

    assert isinstance(error, NeverFits)
    assert (error.report.asked, error.retry_after_s) == (61, None)


def test_cached_tokens_are_free(clock: FakeClock) -> None:
    desk = Desk(clock, rule("tpm", 1000), rule("tokens", 1000))

    charges = desk.use(100, 0, cached=80)

    assert desk.sums == {"project-tpm": (20, 0), "project-tokens": (20, 0)}
    assert [charge.amount for charge in charges] == [20]


def test_cached_tokens_count_where_the_operator_wants_it(clock: FakeClock) -> None:
    desk = Desk(clock, rule("tpm", 1000), options=LimitOptions(count_cached=True))

    desk.use(100, 0, cached=80)

    assert desk.sums == {"project-tpm": (100, 0)}


def test_after_the_stated_wait_the_next_call_passes(clock: FakeClock) -> None:
    desk = Desk(clock, rule("rpm", 7), rule("tpm", 700))
    for _ in range(7):
        desk.use(50, 50)
    error = desk.refused(50, 50)
    assert error.retry_after_s == 8.571429  # a 7th of a minute, rounded up to a microsecond

    clock.advance(error.retry_after_s - 0.000002)
    assert desk.refused(50, 50).retry_after_s is not None
    clock.advance(0.000002)
    desk.use(50, 50)


def test_an_aborted_stream_leaves_no_slot_held(clock: FakeClock) -> None:
    desk = Desk(clock, rule("concurrency", 1))
    reservation = desk.reserve()
    assert isinstance(desk.refused(), LimitReached)

    reservation.settle(usage(10, 2), 0)

    desk.reserve()


def test_a_refused_call_burns_nothing(clock: FakeClock) -> None:
    """A runs, B is refused for concurrency, A ends: by requests a minute only A counts."""
    desk = Desk(clock, rule("rpm", 2), rule("concurrency", 1))
    a = desk.reserve()
    desk.refused()
    a.settle(usage(10, 10), 0)

    desk.use(10, 10)

    assert desk.sums["project-rpm"] == (2, 0)


def test_of_50_calls_at_once_on_a_budget_for_one_a_single_one_passes(clock: FakeClock) -> None:
    desk = Desk(clock, rule("usd", NANO))
    passed = []
    for _ in range(50):
        try:
            passed.append(desk.reserve(10, 10, NANO))
        except BudgetSpent as error:
            assert error.report.reserved == NANO

    assert len(passed) == 1
    passed[0].settle(usage(10, 10), NANO)
    assert desk.refused(10, 10, 1).code == "project_spend_limit_exceeded"


def test_a_model_without_a_price_is_refused_under_a_money_budget(clock: FakeClock) -> None:
    error = Desk(clock, rule("usd", NANO)).refused(10, 10, None)

    assert (type(error), error.param, error.code) == (NotPriced, "model", "model_not_priced")


@pytest.mark.parametrize("mode", ["shadow", "soft"])
def test_a_model_without_a_price_passes_budgets_that_are_not_enforced(
    clock: FakeClock, mode: Literal["shadow", "soft"]
) -> None:
    Desk(clock, rule("usd", NANO, mode=mode), rule("tokens", 100)).reserve(10, 10, None)


def test_a_model_without_a_price_is_free_where_the_operator_wants_it(clock: FakeClock) -> None:
    desk = Desk(clock, rule("usd", 1), rule("tpm", 100), options=LimitOptions(unpriced="free"))
    desk.reserve(10, 10, None)

    assert desk.sums == {"project-usd": (0, 0), "project-tpm": (0, 20)}
    assert isinstance(desk.refused(80, 20, None), LimitReached)


def test_prepaid_credit_has_no_reset_and_a_top_up_lets_calls_pass(clock: FakeClock) -> None:
    desk = Desk(clock, rule("usd", NANO, kind="tenant", period=PREPAID))
    desk.use(10, 10, cost=NANO)
    clock.advance(366 * 86400)

    error = desk.refused(10, 10, 1)
    assert (error.code, error.retry_after_s) == ("credit_balance_exhausted", None)

    desk.rules = (replace(desk.rules[0], amount=2 * NANO),)
    desk.use(10, 10, cost=NANO)


# Reserving.


def test_all_scopes_are_reserved_or_none(clock: FakeClock) -> None:
    desk = Desk(
        clock,
        *(rule("rpm", 100, kind=kind) for kind in ("tenant", "project", "key")),
        *(rule("tpm", 1000, kind=kind) for kind in ("tenant", "project", "key")),
        rule("concurrency", 10, kind="tenant"),
        rule("usd", NANO, kind="tenant", mode="shadow"),
        rule("tokens", 10_000, kind="key"),
        rule("tpm", 50, kind="model"),
    )
    desk.reserve(20, 20, 5)

    error = desk.refused(20, 20, 5)  # `refused` compares every state

    assert isinstance(error, LimitReached)
    assert error.report.limit == "model-tpm"
    assert desk.sums["tenant-usd"] == (0, 5)


def test_what_never_fits_is_told_before_anything_else(clock: FakeClock) -> None:
    rules = [
        rule("tokens", 10, kind="tenant"),
        rule("rpm", 1),
        rule("tpm", 40),
        rule("concurrency", 1),
        rule("tokens", 45, kind="key"),
        rule("usd", 1, kind="tenant", period=PREPAID),
    ]
    desk = Desk(clock, *rules)
    desk.rules = tuple(rules[1:5])
    desk.reserve(20, 20)
    told = []
    desk.rules = tuple(rules)
    for _ in range(len(rules)):
        error = desk.refused(20, 20, 2)
        assert isinstance(error, LimitReached)
        told.append((type(error), error.report.limit))
        desk.rules = tuple(left for left in desk.rules if left.id != error.report.limit)

    assert told == [
        (NeverFits, "tenant-tokens"),
        (BudgetSpent, "tenant-usd"),  # credit, which no waiting brings back
        (BudgetSpent, "key-tokens"),
        (LimitReached, "project-rpm"),
        (LimitReached, "project-tpm"),
        (LimitReached, "project-concurrency"),
    ]


def test_a_missing_price_is_told_after_what_never_fits_and_before_the_rest(clock: FakeClock) -> None:
    desk = Desk(clock, rule("tokens", 30), rule("usd", 5), rule("tpm", 20, kind="key"))
    assert isinstance(desk.refused(10, 11, None), NeverFits)
    desk.use(10, 10)

    assert isinstance(desk.refused(10, 10, None), NotPriced)


def test_of_one_kind_the_longest_wait_is_told(clock: FakeClock) -> None:
    desk = Desk(clock, rule("tpm", 100, kind="key"), rule("tpm", 60), rule("tpm", 200, kind="tenant"))
    desk.use(30, 30)

    error = desk.refused(30, 20)

    assert isinstance(error, LimitReached)
    assert (error.report.scope, error.retry_after_s) == ("project:acme/web", 50.0)


def test_a_report_says_scope_limit_used_reserved_and_when_to_come_back(clock: FakeClock) -> None:
    desk = Desk(clock, rule("tpm", 100, id="lim_1"))
    desk.use(20, 10)
    desk.reserve(20, 40)

    error = desk.refused(10, 5)

    assert isinstance(error, LimitReached)
    report = error.report
    assert (report.scope, report.limit, report.meter, report.amount) == ("project:acme/web", "lim_1", "tpm", 100)
    assert (report.used, report.reserved, report.asked, report.retry_after_s) == (30, 60, 15, 3.0)


def test_a_slot_that_will_be_free_is_worth_waiting_for_and_one_that_never_is_not(clock: FakeClock) -> None:
    desk = Desk(clock, rule("concurrency", 1))
    desk.reserve()
    assert desk.refused().retry_after_s == 1.0

    desk.rules = (rule("concurrency", 0),)
    error = desk.refused()
    assert (type(error), error.retry_after_s) == (NeverFits, None)


def test_a_budget_is_worth_waiting_for_until_its_window_ends(clock: FakeClock) -> None:
    clock.now = 10 * 86400 - 90
    desk = Desk(clock, rule("tokens", 100, period="day"))
    desk.use(50, 50)

    assert desk.refused(1, 0).retry_after_s == 90.0
    clock.advance(90)
    desk.use(50, 50)


def test_without_rules_everything_passes_and_is_known_to_be_open(clock: FakeClock) -> None:
    desk = Desk(clock)
    reservation = desk.reserve(10**9, 10**9, None)

    assert (reservation.charges, reservation.rates) == ((), Rates())
    assert len(desk.limits.open_reservations()) == 1
    assert reservation.settle(usage(1, 1), 0) == ()
    assert desk.limits.open_reservations() == []


# Settling.


def test_a_settle_corrects_to_what_was_used(clock: FakeClock) -> None:
    desk = Desk(
        clock, rule("rpm", 10), rule("tpm", 1000), rule("concurrency", 5), rule("usd", NANO), rule("tokens", 999)
    )
    reservation = desk.reserve(100, 400, 500)
    assert desk.sums == {
        "project-rpm": (0, 1),
        "project-tpm": (0, 500),
        "project-concurrency": (1, 0),
        "project-usd": (0, 500),
        "project-tokens": (0, 500),
    }
    assert {charge.rule_id: charge.amount for charge in reservation.charges} == {
        "project-usd": 500,
        "project-tokens": 500,
    }

    charges = reservation.settle(usage(110, 40), 150)

    assert {charge.rule_id: charge.amount for charge in charges} == {"project-usd": 150, "project-tokens": 150}
    assert desk.sums == {
        "project-rpm": (1, 0),
        "project-tpm": (150, 0),
        "project-concurrency": (0, 0),
        "project-usd": (150, 0),
        "project-tokens": (150, 0),
    }


def test_a_second_settle_does_nothing(clock: FakeClock) -> None:
    desk = Desk(clock, rule("rpm", 10), rule("tpm", 1000), rule("concurrency", 5), rule("usd", NANO))
    reservation = desk.reserve(100, 400, 500)
    reservation.settle(usage(10, 10), 20)
    before = desk.sums

    assert reservation.settle(usage(500, 500), 1000) == ()
    assert desk.sums == before


def test_nothing_worked_on_counts_for_nothing(clock: FakeClock) -> None:
    desk = Desk(clock, rule("rpm", 10), rule("tpm", 1000), rule("concurrency", 5), rule("usd", NANO))

    charges = desk.reserve(100, 400, 500).settle(NOTHING, 0, computed=False)

    assert [charge.amount for charge in charges] == [0]
    assert set(desk.sums.values()) == {(0, 0)}


def test_more_than_estimated_is_owed(clock: FakeClock) -> None:
    desk = Desk(clock, rule("tpm", 100), rule("usd", 1000))
    desk.reserve(10, 10, 100).settle(usage(10, 190), 1200)

    assert desk.sums == {"project-tpm": (200, 0), "project-usd": (1200, 0)}
    desk.rules = desk.rules[:1]
    assert desk.refused(1, 0).retry_after_s == 60.6


def test_budgets_of_every_mode_are_charged(clock: FakeClock) -> None:
    desk = Desk(
        clock,
        rule("usd", 100, kind="tenant"),
        rule("usd", 10, kind="project", mode="shadow"),
        rule("usd", 10, kind="key", mode="soft"),
    )

    charges = desk.use(10, 10, cost=50)

    assert [(charge.rule_id, charge.amount) for charge in charges] == [
        ("tenant-usd", 50),
        ("project-usd", 50),
        ("key-usd", 50),
    ]


def test_an_open_reservation_is_listed_with_its_age(clock: FakeClock) -> None:
    desk = Desk(clock, rule("usd", 1000, period=PREPAID))
    first = desk.limits.reserve(desk.rules, demand(cost=5, request_id="a"))
    clock.advance(3)
    desk.limits.reserve(desk.rules, demand(cost=7, request_id="b"))

    listed = desk.limits.open_reservations()
    assert [(it.request_id, it.age_s, it.charges) for it in listed] == [
        ("a", 3.0, (Charge("project-usd", 0, 5),)),
        ("b", 0.0, (Charge("project-usd", 0, 7),)),
    ]
    first.settle(NOTHING, 0)
    assert [it.request_id for it in desk.limits.open_reservations()] == ["b"]


# Rules come, change and go.


def test_a_rule_whose_amount_changes_keeps_what_was_used(clock: FakeClock) -> None:
    desk = Desk(clock, rule("tpm", 100), rule("usd", 100), rule("concurrency", 3))
    desk.use(30, 30, cost=60)
    desk.reserve(0, 0)
    before = desk.sums

    for amount in (1000, 70):
        desk.rules = tuple(replace(it, amount=amount) for it in desk.rules)
        assert desk.sums == before
    assert [state.remaining for state in desk.limits.states(desk.rules)] == [10, 10, 69]
    assert desk.refused(6, 5).retry_after_s == pytest.approx(60 / 70, abs=1e-6)
    desk.use(5, 5, cost=10)


def test_a_rule_that_disappears_leaves_its_reservations_to_be_settled(clock: FakeClock) -> None:
    desk = Desk(clock, rule("concurrency", 1), rule("tpm", 100), rule("usd", 100))
    reservation = desk.reserve(50, 50, 100)
    all_rules, desk.rules = desk.rules, ()
    desk.limits.forget()

    assert [charge.amount for charge in reservation.settle(usage(10, 10), 30)] == [30]

    desk.rules = all_rules
    assert desk.sums == {"project-concurrency": (0, 0), "project-tpm": (20, 0), "project-usd": (30, 0)}


def test_rules_that_say_the_same_are_the_same(clock: FakeClock) -> None:
    desk = Desk(clock, rule("rpm", 2), rule("usd", 100))
    desk.use(1, 1, cost=10)
    desk.rules = (rule("rpm", 2), rule("usd", 100))

    assert desk.sums == {"project-rpm": (1, 0), "project-usd": (10, 0)}


def test_a_rule_that_counts_something_else_begins_anew(clock: FakeClock) -> None:
    desk = Desk(clock, rule("usd", 100, period="day", id="x"))
    held = desk.reserve(1, 1, 40)
    desk.rules = (rule("usd", 100, period="week", id="x"),)

    assert desk.sums == {"x": (0, 0)}
    assert [charge.amount for charge in held.settle(usage(1, 1), 40)] == [40]


# What the store knows.


def test_what_was_used_before_the_start_counts(clock: FakeClock) -> None:
    desk = Desk(clock, rule("usd", 100, period="day"), rule("tokens", 100, period=PREPAID))
    desk.limits.seed("project-usd", 0, 70)
    desk.limits.seed("project-tokens", 0, 90)

    assert desk.sums == {"project-usd": (70, 0), "project-tokens": (90, 0)}
    assert isinstance(desk.refused(1, 1, 31), BudgetSpent)


def test_seeding_twice_does_not_multiply_what_was_used(clock: FakeClock) -> None:
    desk = Desk(clock, rule("usd", 100, period="day"))
    desk.limits.seed("project-usd", 0, 70)
    desk.limits.seed("project-usd", 0, 70)
    desk.use(1, 1, cost=5)
    desk.limits.seed("project-usd", 0, 70)

    assert desk.sums == {"project-usd": (75, 0)}


def test_windows_are_what_the_store_would_have(clock: FakeClock) -> None:
    clock.now = 86399.0
    desk = Desk(clock, rule("usd", 100, period="day"), rule("rpm", 10))
    held = desk.reserve(1, 1, 30)
    clock.advance(1)
    desk.use(1, 1, cost=5)
    held.settle(usage(1, 1), 20)
    desk.reserve(1, 1, 7)

    windows = [(it.rule_id, it.starts_at, it.used, it.reserved) for it in desk.limits.windows()]

    assert windows == [("project-usd", 0, 20, 0), ("project-usd", 86400, 5, 7)]


# Clocks and memory.


def test_a_wall_clock_that_is_set_does_not_touch_rates(clock: FakeClock) -> None:
    steady = FakeClock(5.0)
    limits = Limits(LimitOptions(), clock, steady=steady)
    rules = (rule("rpm", 1), rule("usd", 100, period="day"))
    limits.reserve(rules, demand(cost=10)).settle(usage(1, 1), 10)

    clock.advance(-7200)
    clock.advance(10 * 86400)
    with pytest.raises(LimitReached) as caught:
        limits.reserve(rules, demand())
    assert caught.value.retry_after_s == 60.0
    steady.advance(60)
    limits.reserve(rules, demand(cost=100))


def test_rates_go_by_the_monotonic_clock_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", FakeClock(5.0))
        limits = Limits(LimitOptions())
        reservation = limits.reserve((rule("usd", 5, period="day"),), demand())

    assert reservation.at_us == 5_000_000
    assert abs(reservation.charges[0].starts_at - time.time()) < 2 * 86400


def test_counters_that_know_nothing_are_forgotten(clock: FakeClock) -> None:
    desk = Desk(clock, rule("rpm", 6), rule("tpm", 600), rule("concurrency", 1), rule("usd", 10, period="day"))
    reservation = desk.reserve(50, 50, 5)
    clock.advance(60)
    assert desk.limits.forget() == 0  # all full again, but held

    reservation.settle(usage(50, 60), 5)
    assert desk.limits.forget() == 2  # requests a minute and the slot; tokens owe 10, the budget was used
    clock.advance(1)
    assert desk.limits.forget() == 1
    clock.advance(2 * 86400)
    assert desk.limits.forget() == 1
    assert desk.limits.states() == []


def test_memory_follows_what_is_in_use(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEWEST", 100)
    limits = Limits(LimitOptions(), clock)
    lasting = (rule("tokens", 10**9, period=PREPAID, id="lasting"), rule("concurrency", 5, id="held"))
    limits.reserve(lasting, demand())
    limits.reserve(lasting, demand()).settle(usage(1, 1), 0)
    for at in range(5000):
        rules = (rule("rpm", 10, id=f"a{at}"), rule("tpm", 1000, id=f"b{at}"), *lasting)
        limits.reserve(rules, demand()).settle(usage(10, 10), 0)
        clock.advance(0.5)  # each is full again after 6 s: 24 counters are in use at a time

    states = {state.rule.id: state.used for state in limits.states()}

    assert len(states) <= 150
    assert (states["lasting"], states["held"]) == (2 + 20 * 5000, 1)
