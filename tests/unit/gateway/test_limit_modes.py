"""Limits that only tell, the dry run, and what headers say."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.budgets import SoftAlert
from gateway.errors import LimitReached
from gateway.gcra import Headroom, Rates
from gateway.limits import LimitOptions, Limits, Reservation
from gateway.rules import Meter
from tests.conftest import FakeClock
from tests.unit.gateway.limit_desk import Desk, demand, rule, usage

# Modes.


def test_a_shadow_limit_counts_what_it_would_have_refused_and_lets_it_in(clock: FakeClock) -> None:
    desk = Desk(clock, rule("rpm", 2, mode="shadow"), rule("concurrency", 1, mode="shadow"))
    for _ in range(5):
        desk.reserve()

    states = desk.limits.states(desk.rules)

    assert [(state.would_refuse, state.refused) for state in states] == [(3, 0), (4, 0)]
    assert desk.sums == {"project-rpm": (0, 2), "project-concurrency": (1, 0)}  # as if it had refused them


@pytest.mark.parametrize(("meter", "amount"), [("rpm", 10), ("tpm", 600), ("concurrency", 2)])
def test_a_shadow_limit_would_refuse_exactly_what_it_refuses_when_enforced(meter: Meter, amount: int) -> None:
    """The same calls against both, of which every third settles the oldest that the enforced one let in."""
    clock = FakeClock()
    enforced, shadow = Desk(clock, rule(meter, amount)), Desk(clock, rule(meter, amount, mode="shadow"))
    held: list[tuple[Reservation, Reservation]] = []
    refused = []
    for at in range(200):
        clock.advance(1.7)
        if at % 3 == 2 and held:
            for reservation in held.pop(0):
                reservation.settle(usage(5 + at % 7, 5), 0)
        reservation = shadow.reserve(10, at % 30)
        try:
            held.append((enforced.reserve(10, at % 30), reservation))
        except LimitReached:
            refused.append(reservation)

    assert shadow.limits.states()[0].would_refuse == enforced.limits.states()[0].refused == len(refused) > 10
    for reservation in refused:
        reservation.settle(usage(1, 1), 0)
    assert shadow.sums == enforced.sums


def test_what_another_limit_refuses_is_no_finding_of_a_shadow_limit(clock: FakeClock) -> None:
    desk = Desk(clock, rule("rpm", 1, mode="shadow"), rule("concurrency", 1))
    desk.reserve()
    desk.refused()

    assert [(state.refused, state.would_refuse) for state in desk.limits.states(desk.rules)] == [(0, 0), (1, 0)]


def test_a_shadow_limit_is_in_the_log_at_most_once_a_minute(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk(clock, rule("concurrency", 1, mode="shadow"), rule("rpm", 0, mode="shadow"))
    with caplog.at_level(logging.INFO, logger="laneway.limits"):
        for _ in range(61):
            desk.reserve()
            clock.advance(1)

    rpm = [record for record in caplog.records if "RPM" in record.getMessage()]
    assert (len(rpm), len(caplog.records)) == (2, 3)
    assert "would have refused a request: Request too large for m in project acme/web" in rpm[0].getMessage()


def test_a_soft_budget_tells_once_and_refuses_nothing(clock: FakeClock) -> None:
    desk = Desk(clock, rule("usd", 100, period="day", mode="soft"))
    for _ in range(5):
        desk.use(10, 10, cost=40)

    assert [(alert.rule.id, alert.used, alert.window.starts_at) for alert in desk.alerts] == [("project-usd", 120, 0)]


def test_a_listener_that_fails_does_not_keep_a_request_from_being_settled(
    clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(alert: SoftAlert) -> None:
        raise RuntimeError("no network")

    limits = Limits(LimitOptions(), clock, fail)
    rules = (rule("usd", 1, mode="soft"), rule("concurrency", 1))

    assert len(limits.reserve(rules, demand()).settle(usage(1, 1), 5)) == 1
    assert "telling that a soft budget was passed failed" in caplog.text
    limits.reserve(rules, demand())


# The dry run.


def test_a_check_takes_nothing_and_says_what_would_happen(clock: FakeClock) -> None:
    desk = Desk(clock, rule("rpm", 5), rule("tpm", 100), rule("usd", 50, mode="shadow"))
    desk.reserve(30, 30, 20)
    before = desk.sums

    fine = desk.limits.check(desk.rules, demand(20, 20, 40))
    refused = desk.limits.check(desk.rules, demand(20, 30, 40))

    assert desk.sums == before
    assert (fine.allowed, fine.report, fine.message) == (True, None, None)
    assert [(state.rule.id, state.remaining) for state in fine.states] == [
        ("project-rpm", 4),
        ("project-tpm", 40),
        ("project-usd", 30),
    ]
    assert (refused.allowed, refused.code) == (False, "rate_limit_exceeded")
    assert refused.report is not None
    assert (refused.report.limit, refused.report.retry_after_s) == ("project-tpm", 6.0)
    assert refused.message == str(desk.refused(20, 30, 40))
    assert {(state.refused, state.would_refuse) for state in refused.states} == {(0, 0)}


def test_a_check_of_a_model_without_a_price_has_no_report(clock: FakeClock) -> None:
    verdict = Desk(clock, rule("usd", 50)).limits.check((rule("usd", 50),), demand(cost=None))

    assert (verdict.allowed, verdict.code, verdict.report) == (False, "model_not_priced", None)


# Headers.


def test_headers_tell_of_the_scope_with_the_least_headroom(clock: FakeClock) -> None:
    desk = Desk(
        clock,
        rule("rpm", 60, kind="tenant"),
        rule("rpm", 6, kind="key"),
        rule("tpm", 1200, kind="tenant"),
        rule("tpm", 600, kind="project"),
        rule("tpm", 30, kind="key", mode="shadow"),
        rule("concurrency", 3),
    )
    desk.use(100, 50)

    reservation = desk.reserve(100, 50)

    assert reservation.rates == Rates(requests=Headroom(6, 4, 20.0), tokens=Headroom(600, 300, 30.0))
    reservation.settle(usage(10, 0), 0)
    clock.advance(1)
    assert reservation.rates == Rates(requests=Headroom(6, 4, 19.0), tokens=Headroom(600, 450, 15.0))
    assert desk.limits.rates(desk.rules) == reservation.rates


@settings(max_examples=50, deadline=None)
@given(
    amounts=st.tuples(st.integers(0, 30), st.integers(0, 300)),
    calls=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100), st.floats(0, 30)), max_size=30),
)
def test_headers_are_never_negative(amounts: tuple[int, int], calls: list[tuple[int, int, float]]) -> None:
    clock = FakeClock()
    desk = Desk(clock, rule("rpm", amounts[0]), rule("tpm", amounts[1]))
    for estimate, truth, wait in calls:
        try:
            reservation = desk.reserve(estimate, 0)
        except LimitReached:
            continue
        finally:
            clock.advance(wait)
        reservation.settle(usage(truth, 0), 0)
        for rates in (reservation.rates, desk.limits.rates(desk.rules)):
            for headroom in (rates.requests, rates.tokens):
                assert headroom is not None
                assert 0 <= headroom.remaining <= headroom.limit
                assert headroom.reset_s >= 0
