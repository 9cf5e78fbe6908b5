"""Commits in the event loop: when they are worth it, and that nothing is lost, doubled or turned round by them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from msgspec.structs import replace

from gateway.events import Kind, Record
from gateway.shortcut import LONGEST_S, MANY, MANY_TAKE_S, REST_S, Shortcut
from gateway.store import Store, StoreOptions
from gateway.writer import Writer
from tests.conftest import FakeClock
from tests.ledger_records import admitted, settled


@pytest.fixture
def shortcut(sqlite_store: Store, clock: FakeClock) -> Iterator[Shortcut]:
    made = Shortcut(sqlite_store, clock)
    for _ in range(MANY):
        pace(made, clock)
    yield made
    made.close()


def pace(shortcut: Shortcut, clock: FakeClock, gap_s: float = 0.01) -> bool:
    clock.advance(gap_s)
    return shortcut.is_worth_it()


def pair(number: int) -> list[Record]:
    """A request that was let in and is over."""
    admit = admitted(number)
    return [admit, settled(admit)]


def num_settled(store: Store) -> int:
    with store.reading() as connection:
        query = f"SELECT count(*) FROM ledger_events WHERE kind = {int(Kind.SETTLE)}"
        return int(connection.exec_driver_sql(query).scalar_one())


def test_it_is_for_groups_that_come_one_by_one(shortcut: Shortcut, clock: FakeClock) -> None:
    assert pace(shortcut, clock)
    for _ in range(MANY):
        crowded = pace(shortcut, clock, MANY_TAKE_S / MANY / 2)
    assert not crowded
    for _ in range(MANY):
        again = pace(shortcut, clock)
    assert again


def test_a_commit_that_syncs_is_the_threads(store_options: StoreOptions, clock: FakeClock) -> None:
    with closing(Store.open(replace(store_options, durability="full"))) as store:
        made = Shortcut(store, clock)
        assert not any(pace(made, clock) for _ in range(2 * MANY))


def test_a_commit_is_durable_at_once(sqlite_store: Store, shortcut: Shortcut) -> None:
    assert shortcut.commit(pair(1))
    assert num_settled(sqlite_store) == 1


def test_a_locked_database_is_left_to_the_thread_which_can_wait(
    sqlite_store: Store, shortcut: Shortcut, clock: FakeClock
) -> None:
    with sqlite_store.changing():
        assert not shortcut.commit(pair(1))
        assert not pace(shortcut, clock)
    for _ in range(int(REST_S / 0.01)):
        rested = pace(shortcut, clock)
    assert rested
    assert shortcut.commit(pair(1))


def test_a_slow_disk_is_left_to_the_thread(sqlite_store: Store, clock: FakeClock) -> None:
    def slow() -> float:
        clock.advance(LONGEST_S * 2)
        return clock()

    made = Shortcut(sqlite_store, slow)
    for _ in range(2 * MANY):
        clock.advance(0.01)
        worth_it = made.is_worth_it()
    assert worth_it
    assert made.commit(pair(1))
    assert not made.is_worth_it()
    made.close()


def test_nothing_overtakes_what_is_on_its_way_to_the_thread(sqlite_store: Store) -> None:
    """Neither records nor a question about the state between them."""
    clock = FakeClock()
    writer = Writer(sqlite_store, clock=clock)
    writer.start()
    started, go_on = threading.Event(), threading.Event()

    def hold_up(_: object) -> None:
        started.set()
        go_on.wait(20)

    for _ in range(2 * MANY):
        clock.advance(0.01)
        writer.commit_now([])
    waiting = writer.between(hold_up)
    started.wait(20)
    clock.advance(0.01)
    assert not writer.commit_now(pair(2))
    writer.submit([admitted(1)])
    go_on.set()
    waiting.result(20)
    writer.between(lambda _: None).result(20)
    clock.advance(0.01)
    assert writer.commit_now([settled(admitted(1))])
    writer.stop()

    assert num_settled(sqlite_store) == 1
    assert writer.state.records == 2


def test_a_group_that_was_durable_after_all_is_not_doubled(sqlite_store: Store, shortcut: Shortcut) -> None:
    group = pair(1)
    shortcut.commit(group)
    writer = Writer(sqlite_store)
    writer.start()
    writer.submit(group)
    writer.stop()

    assert num_settled(sqlite_store) == 1
