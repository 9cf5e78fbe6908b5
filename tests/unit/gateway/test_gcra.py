"""The rate's arithmetic: exact waits, exact resets, and a bound that no order of reserving and settling can break."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.gcra import MINUTE_US, SECOND_US, Gcra

AT = 1_800_000_000 * SECOND_US  # a Unix time of these days; any start will do


def at(seconds: float) -> int:
    return AT + round(seconds * SECOND_US)


def test_a_minutes_worth_comes_at_once_and_then_one_unit_an_interval() -> None:
    rate = Gcra(6)

    for _ in range(6):
        assert rate.can(1, at(0))
        rate.take(1, at(0))

    assert [rate.can(1, at(0)), rate.can(1, at(9.999999)), rate.can(1, at(10))] == [False, False, True]
    assert (rate.used(at(0)), rate.wait_s(1, at(0)), rate.wait_s(4, at(0)), rate.reset_s(at(0))) == (
        6,
        10.0,
        40.0,
        60.0,
    )


def test_an_interval_that_is_no_whole_number_of_microseconds_is_not_rounded() -> None:
    rate = Gcra(7)  # 8 571 428.57… µs
    for _ in range(7 * 1000):  # in time, always full: a rounded interval would be off by milliseconds at the end
        now = at(rate.wait_s(1, at(0)))
        assert rate.can(1, now)
        rate.take(1, at(0))

    assert rate.debt(at(0)) == 7000 * MINUTE_US
    assert rate.reset_s(at(0)) == 60_000.0


def test_the_wait_is_exact_to_the_microsecond() -> None:
    rate = Gcra(7)
    rate.take(7, at(0))

    wait_s = rate.wait_s(1, at(0))

    assert wait_s == 8.571429
    assert [rate.can(1, at(wait_s - 0.000001)), rate.can(1, at(wait_s))] == [False, True]


def test_asking_changes_nothing() -> None:
    rate = Gcra(10)
    rate.take(4, at(0))
    before = rate.debt(at(1))

    rate.can(20, at(1)), rate.wait_s(3, at(1)), rate.reset_s(at(1)), rate.headroom(at(2))

    assert rate.debt(at(1)) == before


def test_it_never_holds_more_than_a_minutes_worth() -> None:
    rate = Gcra(60)
    rate.take(60, at(0))

    assert rate.headroom(at(3600)).remaining == 60
    assert (rate.can(60, at(3600)), rate.can(61, at(3600))) == (True, False)


def test_what_was_not_used_is_given_back() -> None:
    rate = Gcra(100)
    ticket = rate.take(100, at(0))

    rate.settle(ticket, -80, at(0))

    assert (rate.used(at(0)), rate.can(80, at(0)), rate.can(81, at(0))) == (20, True, False)


def test_what_was_used_beyond_the_estimate_is_owed() -> None:
    rate = Gcra(100)
    ticket = rate.take(100, at(0))

    rate.settle(ticket, 50, at(0))

    assert rate.headroom(at(0)).remaining == 0
    assert (rate.used(at(0)), rate.wait_s(1, at(0)), rate.reset_s(at(0))) == (150, 30.6, 90.0)


def test_time_that_went_unused_is_not_saved_up_by_giving_back() -> None:
    """100 were reserved and 20 used. Half a minute later those 20 had long drained, and so had nothing else: giving 80
    back then would let 130 in at one instant."""
    rate = Gcra(100)
    ticket = rate.take(100, at(0))
    rate.take(50, at(30))

    rate.settle(ticket, -80, at(30))

    assert (rate.can(50, at(30)), rate.can(51, at(30))) == (True, False)


def test_what_another_gave_back_cannot_be_given_back_again() -> None:
    """A and B reserved 50 each. A's 50 come back at once, so B's 50 drain first, and are gone half a minute later."""
    rate = Gcra(100)
    a, b = rate.take(50, at(0)), rate.take(50, at(0))
    rate.settle(a, -50, at(0))
    rate.take(50, at(30))

    rate.settle(b, -50, at(30))

    assert (rate.can(50, at(30)), rate.can(51, at(30))) == (True, False)


def test_a_change_of_the_amount_keeps_what_is_owed() -> None:
    rate = Gcra(60)
    ticket = rate.take(60, at(0))

    rate.change(120, at(30))
    assert (rate.used(at(30)), rate.headroom(at(30)).remaining) == (30, 90)
    assert rate.reset_s(at(30)) == 15.0

    rate.change(30, at(30))
    assert (rate.headroom(at(30)).remaining, rate.wait_s(1, at(30)), rate.reset_s(at(30))) == (0, 2.0, 60.0)
    rate.settle(ticket, -10, at(30))
    assert rate.used(at(30)) == 20


def test_an_amount_of_nothing_lets_nothing_in_and_has_nothing_to_fill() -> None:
    rate = Gcra(10)
    rate.take(5, at(0))

    rate.change(0, at(0))

    assert (rate.can(1, at(3600)), rate.headroom(at(3600)).remaining, rate.reset_s(at(3600))) == (False, 0, 0.0)


def test_under_load_what_is_not_used_goes_to_others() -> None:
    """Every request reserves four times what it uses and runs for 5 s; all of the amount is used nevertheless."""
    rate, used = Gcra(30_000), 0
    running: list[tuple[float, int]] = []
    for tenth in range(6600):
        now = tenth / 10
        while running and running[0][0] <= now:
            rate.settle(running.pop(0)[1], -3000, at(now))
            used += 1000 if now >= 60 else 0
        while rate.can(4000, at(now)):
            running.append((now + 5, rate.take(4000, at(now))))

    assert 0.98 < used / (10 * 30_000) <= 1  # in the ten minutes after the first


class Log:
    """What was let in, by instant: the brute force that a bound is checked with."""

    def __init__(self, amount: int) -> None:
        self.amount = amount
        self.units: list[list[int]] = []  # [instant, units]

    def let_in(self, now: int, units: int) -> int:
        self.units.append([now, units])
        return len(self.units) - 1

    def check(self) -> None:
        """In every interval from one entry to a later one: at most amount + amount × t / 60."""
        for first, (start, _) in enumerate(self.units):
            total = 0
            for end, units in self.units[first:]:
                total += units
                assert total * MINUTE_US <= self.amount * MINUTE_US + self.amount * (end - start)


def play(script: list[tuple[str, int]], pick: Random) -> None:
    """Waits in µs, takes, and settles of one that runs; then the bound is checked."""
    rate, log, now = Gcra(40), Log(40), AT
    running: list[tuple[int, int, int]] = []  # ticket, entry of the log, estimate
    for what, value in script:
        if what == "wait":
            now += value
        elif what == "take":
            if rate.can(value, now):
                running.append((rate.take(value, now), log.let_in(now, value), value))
        elif running:
            ticket, entry, estimate = running.pop(pick.randrange(len(running)))
            rate.settle(ticket, value - estimate, now)
            log.units[entry][1] = min(value, estimate)
    log.check()


# Steps so large that a minute's worth is soon reserved, drained or given back.
STEPS = {
    "wait": (1, 5_000_000, 15_000_000, 30_000_000),
    "take": (1, 10, 20, 30, 40),
    "settle to": (0, 0, 1, 10, 20, 50),
}
step = st.sampled_from(tuple(STEPS)).flatmap(lambda what: st.tuples(st.just(what), st.sampled_from(STEPS[what])))


@settings(max_examples=300, deadline=None)
@given(script=st.lists(step, min_size=6, max_size=30), pick=st.randoms(use_true_random=False))
def test_no_interval_lets_more_in_than_the_amount_and_its_refill(script: list[tuple[str, int]], pick: Random) -> None:
    """Counted is what each request turned out to cost, at the instant when it was let in; of one that cost more than
    its estimate, the estimate."""
    play(script, pick)


def test_nor_in_thousands_of_schedules() -> None:
    """The same by plain seeds, which are a hundred times as fast: what goes wrong may need six steps in one order."""
    for seed in range(40_000):
        pick = Random(seed)
        words = pick.choices(tuple(STEPS), weights=(6, 7, 7), k=pick.randrange(6, 30))
        try:
            play([(what, pick.choice(STEPS[what])) for what in words], pick)
        except AssertionError as error:
            raise AssertionError(f"with seed {seed}") from error


@settings(max_examples=100, deadline=None)
@given(
    amount=st.integers(1, 1000),
    costs=st.lists(st.tuples(st.integers(0, 10_000_000), st.integers(0, 1000)), max_size=40),
)
def test_without_corrections_it_refuses_only_what_would_break_the_bound(
    amount: int, costs: list[tuple[int, int]]
) -> None:
    rate, log, now = Gcra(amount), Log(amount), AT
    for wait, cost in costs:
        now += wait
        if rate.can(cost, now):
            rate.take(cost, now)
            log.let_in(now, cost)
        else:
            entry = log.let_in(now, cost)
            with pytest.raises(AssertionError):
                log.check()
            log.units.pop(entry)
    log.check()
