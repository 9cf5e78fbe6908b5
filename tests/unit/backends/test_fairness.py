"""FairQueue: lanes with floors, tenants with counters, shortest first with a wait bound."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.fairness import FairQueue, LaneShare

LANES = {"batch": LaneShare(2, 0.05), "interactive": LaneShare(0, 0.0), "standard": LaneShare(1, 0.1)}


class Queue:
    """Strings in a FairQueue, with defaults for what a test does not care about."""

    def __init__(self, wait_bound_s: float = 1e9) -> None:
        self.fair: FairQueue[str] = FairQueue(LANES, wait_bound_s)

    def push(
        self,
        item: str,
        lane: str = "standard",
        tenant: str = "t",
        size: float = 1,
        *,
        weight: float = 1,
        deadline: float | None = None,
        now: float = 0,
        at_front: bool = False,
    ) -> None:
        self.fair.push(item, lane, tenant, weight, size, deadline, now, at_front)

    def pick(self, now: float = 0) -> str | None:
        return self.fair.pick(now, lambda _: True)

    def all(self, now: float = 0) -> list[str]:
        picked = []
        while (item := self.pick(now)) is not None:
            picked.append(item)
        return picked


def test_higher_lanes_go_first() -> None:
    queue = Queue()
    queue.push("b", "batch")
    queue.push("s", "standard")
    queue.push("i", "interactive")

    assert queue.all() == ["i", "s", "b"]


def test_the_smallest_of_a_tenant_goes_first_and_equals_in_order_of_arrival() -> None:
    queue = Queue()
    for item, size in (("big", 50), ("first", 3), ("second", 3), ("small", 1)):
        queue.push(item, size=size)

    assert queue.all() == ["small", "first", "second", "big"]


def test_what_waited_longer_than_the_bound_goes_first_oldest_first() -> None:
    queue = Queue(wait_bound_s=2)
    queue.push("big", size=900, now=0)
    queue.push("old", size=5, now=1)
    queue.push("new", size=1, now=2.5)

    assert queue.pick(now=3.5) == "big"
    assert queue.pick(now=3.5) == "old"
    assert queue.pick(now=3.5) == "new"


def test_the_tenant_that_was_charged_least_goes_first() -> None:
    queue = Queue()
    for n in range(3):
        queue.push(f"a{n}", tenant="a")
        queue.push(f"b{n}", tenant="b")

    order = []
    while item := queue.pick():
        order.append(item)
        queue.fair.charge(item[0], 30 if item[0] == "a" else 10)

    assert order == ["a0", "b0", "b1", "b2", "a1", "a2"]


def test_weights_divide_what_is_charged() -> None:
    queue = Queue()
    served: Counter[str] = Counter()
    for n in range(400):
        queue.push(f"a{n}", tenant="a", weight=3)
        queue.push(f"b{n}", tenant="b", weight=1)

    for _ in range(200):
        item = queue.pick()
        assert item is not None
        served[item[0]] += 1
        queue.fair.charge(item[0], 10)

    assert served["a"] == pytest.approx(150, abs=2)


def test_a_flood_of_one_tenant_does_not_hold_off_another() -> None:
    queue = Queue()
    for n in range(1000):
        queue.push(f"flood{n}", tenant="greedy", size=1)
    queue.fair.charge("greedy", 100)
    queue.push("modest", tenant="modest", size=500)
    queue.fair.charge("greedy", 1)

    assert queue.pick() == "modest"


def test_being_idle_earns_nothing() -> None:
    queue = Queue()
    queue.push("a", tenant="worker")
    assert queue.pick() == "a"
    queue.fair.charge("worker", 1_000_000)

    served: Counter[str] = Counter()
    for n in range(100):
        queue.push(f"w{n}", tenant="worker")
        queue.push(f"n{n}", tenant="newcomer")
    for _ in range(100):
        item = queue.pick()
        assert item is not None
        served[item[0]] += 1
        queue.fair.charge("worker" if item[0] == "w" else "newcomer", 10)

    assert served["w"] == served["n"] == 50


def test_what_was_used_while_nobody_waited_is_no_debt() -> None:
    queue = Queue()
    for tenant in ("heavy", "light"):
        queue.push(tenant, tenant=tenant)
    queue.all()
    queue.fair.charge("heavy", 100_000)
    queue.fair.charge("light", 10)

    queue.push("l", tenant="light", size=9)
    queue.push("h", tenant="heavy", size=1)

    assert queue.fair.counter("standard", "light") == queue.fair.counter("standard", "heavy")
    assert queue.all() == ["l", "h"]


def test_the_counter_of_one_lane_is_not_lifted_by_those_who_wait_in_another() -> None:
    queue = Queue()
    queue.push("slow", "batch", tenant="patient")
    queue.push("x", "interactive", tenant="busy")
    queue.fair.charge("busy", 5000)
    queue.push("y", "interactive", tenant="new")

    assert queue.fair.counter("interactive", "new") == queue.fair.counter("interactive", "busy") == 5000
    assert queue.fair.counter("batch", "patient") == 0


def test_a_held_back_lane_gets_its_floor() -> None:
    queue = Queue()
    served: Counter[str] = Counter()
    for n in range(100):
        queue.push(f"b{n}", "batch", size=20)
    for n in range(2000):
        queue.push(f"i{n}", "interactive", size=10)
        item = queue.pick()
        assert item is not None
        served[item[0]] += 20 if item[0] == "b" else 10

    assert served["b"] / served.total() == pytest.approx(0.05, abs=0.005)


def test_floors_hold_for_several_lanes_at_once() -> None:
    rng = random.Random(0)
    queue = Queue()
    served: Counter[str] = Counter()
    sizes = {}
    for n in range(3000):
        for lane in LANES:
            sizes[f"{lane}{n}"] = rng.randint(1, 50)
            queue.push(f"{lane}{n}", lane, size=sizes[f"{lane}{n}"], now=n)
        item = queue.pick(n)
        assert item is not None
        served[item[0]] += sizes[item]

    share = {lane: count / served.total() for lane, count in served.items()}
    assert share["s"] >= 0.09
    assert share["b"] >= 0.045


def test_a_lane_alone_earns_no_turns_for_later() -> None:
    queue = Queue()
    for n in range(1000):
        queue.push(f"i{n}", "interactive", size=100)
        assert queue.pick() == f"i{n}"
    queue.push("b", "batch", size=1)
    queue.push("i", "interactive", size=1)

    assert queue.pick() == "i"


def test_a_head_that_does_not_fit_is_not_skipped_for_a_smaller_one() -> None:
    queue = Queue(wait_bound_s=1)
    queue.push("big", size=100, now=0)
    queue.push("small", size=1, now=5)

    assert queue.fair.pick(5, lambda item: item != "big") is None
    assert len(queue.fair) == 2
    assert queue.pick(5) == "big"


def test_an_earned_turn_that_does_not_fit_holds_higher_lanes_up_only_after_a_second_one() -> None:
    queue = Queue()
    queue.push("b", "batch", size=10)
    served = 0
    for n in range(1000):
        queue.push(f"i{n}", "interactive", size=10)
        if queue.fair.pick(n, lambda item: item != "b") is None:
            break
        served += 10

    assert served == 2 * 10 / 0.05
    assert queue.pick() == "b"


def test_what_is_handed_back_goes_before_its_lane_and_the_last_one_first() -> None:
    queue = Queue()
    queue.push("s", tenant="a", size=1)
    queue.push("v1", tenant="b", size=100, at_front=True)
    queue.push("v2", tenant="b", size=100, at_front=True)
    queue.push("i", "interactive", size=1)

    assert queue.all() == ["i", "v2", "v1", "s"]


def test_asking_for_the_head_takes_nothing_and_says_whether_it_is_due() -> None:
    queue = Queue(wait_bound_s=2)
    assert queue.fair.head(0, lambda _: True) is None
    queue.push("a", now=0)

    for now, is_due in ((0.0, False), (3.0, True)):
        head = queue.fair.head(now, lambda _: True)
        assert head is not None
        assert (head.item, head.is_due) == ("a", is_due)
    assert queue.fair.lengths == {"interactive": 0, "standard": 1, "batch": 0}


def test_removed_items_are_gone_and_unknown_ones_are_no_error() -> None:
    queue = Queue()
    for item in "abc":
        queue.push(item)
    queue.push("d", at_front=True)

    assert queue.fair.remove("b")
    assert queue.fair.remove("d")
    assert not queue.fair.remove("b")
    assert "b" not in queue.fair
    assert queue.all() == ["a", "c"]
    assert queue.fair.lengths["standard"] == 0


def test_expired_items_leave_in_order_of_their_deadlines() -> None:
    queue = Queue()
    queue.push("late", deadline=9)
    queue.push("never")
    queue.push("soon", deadline=2)
    queue.push("sooner", "batch", deadline=1, at_front=True)

    assert queue.fair.expire(0.5) == []
    assert queue.fair.expire(2) == ["sooner", "soon"]
    assert queue.fair.expire(2) == []
    assert len(queue.fair) == 2


def test_a_correction_gives_back_what_was_estimated_too_high() -> None:
    queue = Queue()
    queue.push("a1", tenant="a")
    queue.push("b1", tenant="b")
    queue.fair.charge("a", 500)
    queue.fair.charge("a", -490)
    queue.fair.charge("b", 20)
    queue.fair.charge("nobody", 5)

    assert queue.pick() == "a1"


def test_an_unknown_lane_and_a_second_push_are_errors() -> None:
    queue = Queue()
    queue.push("a")

    with pytest.raises(AssertionError, match="waits once"):
        queue.push("a")
    with pytest.raises(KeyError):
        queue.push("b", "express")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_two_backlogged_tenants_stay_within_twice_the_largest_item(seed: int) -> None:
    rng = random.Random(seed)
    queue = Queue(wait_bound_s=rng.choice([0, 1, 1e9]))
    largest = 0.0
    sizes = {}
    weights = {"a": rng.choice([1, 2, 5]), "b": rng.choice([1, 3])}
    for n in range(400):
        for tenant in "ab":
            item = f"{tenant}{n}"
            sizes[item] = rng.randint(1, 100)
            largest = max(largest, sizes[item] / weights[tenant])
            queue.push(item, tenant=tenant, weight=weights[tenant], size=sizes[item], now=n)
    for n in range(350):
        picked = queue.pick(n)
        assert picked is not None
        queue.fair.charge(picked[0], sizes[picked])
        gap = queue.fair.counter("standard", "a") - queue.fair.counter("standard", "b")
        assert abs(gap) <= 2 * largest


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_lost_or_given_twice(seed: int) -> None:
    rng = random.Random(seed)
    queue = Queue(wait_bound_s=rng.choice([0, 3, 1e9]))
    waiting: set[str] = set()
    for n in range(300):
        action = rng.random()
        if action < 0.5:
            deadline = rng.choice([None, n + rng.randint(0, 50)])
            lane, tenant = rng.choice(list(LANES)), rng.choice("abc")
            queue.push(f"{n}", lane, tenant, rng.randint(1, 9), deadline=deadline, now=n, at_front=rng.random() < 0.1)
            waiting.add(f"{n}")
        elif action < 0.7 and waiting:
            gone = rng.choice(sorted(waiting))
            assert queue.fair.remove(gone)
            waiting.remove(gone)
        elif action < 0.75:
            waiting -= set(queue.fair.expire(n))
        else:
            item = queue.fair.pick(n, lambda _: rng.random() < 0.8)
            if item is not None:
                waiting.remove(item)
                queue.fair.charge("abc"[n % 3], 5)
        assert len(queue.fair) == len(waiting) == sum(queue.fair.lengths.values())
    assert set(queue.all(now=300)) == waiting


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_every_lane_that_always_has_work_gets_its_floor(seed: int) -> None:
    """Of what goes past it, less what it must first earn: the size of one of its own."""
    rng = random.Random(seed)
    queue = Queue(wait_bound_s=rng.choice([0, 1, 1e9]))
    largest = 20
    served: Counter[str] = Counter()
    sizes: dict[str, int] = {}
    for n in range(600):
        for lane in LANES:
            sizes[f"{lane}-{n}"] = rng.randint(1, largest)
            queue.push(f"{lane}-{n}", lane, rng.choice("abc"), sizes[f"{lane}-{n}"], now=n)
    for n in range(500):
        item = queue.pick(n)
        assert item is not None
        lane = item.split("-")[0]
        served[lane] += sizes[item]
        queue.fair.charge(rng.choice("abc"), sizes[item])
        for held_back, share in LANES.items():
            past = sum(served.values()) - served[held_back]
            assert served[held_back] >= share.floor * past - 2 * largest


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 2**32))
def test_nothing_is_given_out_at_or_after_its_deadline(seed: int) -> None:
    rng = random.Random(seed)
    queue = Queue(wait_bound_s=rng.choice([0, 3, 1e9]))
    deadlines: dict[str, float] = {}
    gone: set[str] = set()
    for n in range(400):
        if rng.random() < 0.6:
            deadline = n + rng.choice([0.5, 1, 5, 40, 1e6])
            deadlines[f"{n}"] = deadline
            queue.push(f"{n}", rng.choice(list(LANES)), rng.choice("abc"), rng.randint(1, 9), deadline=deadline, now=n)
        expired = queue.fair.expire(n)
        assert all(deadlines[item] <= n for item in expired)
        assert expired == sorted(expired, key=lambda item: deadlines[item])
        gone.update(expired)
        item = queue.pick(n) if rng.random() < 0.5 else None
        if item is not None:
            assert deadlines[item] > n
            gone.add(item)
    left = {item for item in deadlines if item not in gone}
    assert all(deadlines[item] > 399 for item in left)
    assert set(queue.all(now=399)) == left
