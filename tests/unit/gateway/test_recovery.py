"""What a dead server left open is settled once, from what was last noted."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, select

from gateway import recovery
from gateway.events import Charge, Detail, Event, Kind, Record
from gateway.history import History, detail_of, detail_text, histories
from gateway.intake import Intake
from gateway.recovery import counted_tokens, recover
from gateway.rules import Price
from gateway.store import Store
from gateway.tables import budget_windows, open_requests, usage_days
from gateway.verify import verify
from tests.ledger_records import (
    NOON,
    PRICE,
    add_budgets,
    add_price,
    admitted,
    failed,
    progressed,
    request_id,
    settled,
    write,
)

LATER = NOON + 3600.5
BUDGETS = (Charge("tokens", NOON, 600), Charge("usd", NOON, PRICE.cost(100, 500)))


@pytest.fixture
def priced_store(store: Store) -> Store:
    add_price(store)
    add_budgets(store, [("tokens", "tokens"), ("usd", "usd")])
    return store


def recovered(store: Store, *, count_cached: bool = False) -> list[Event]:
    return recover(store, count_cached=count_cached, clock=lambda: LATER)


def settle_of(store: Store, number: int = 1) -> Event:
    with store.reading() as connection:
        [history] = histories(connection, [request_id(number)])
    assert history.settle is not None
    return history.settle


def used(store: Store) -> dict[str, int]:
    with store.reading() as connection:
        query = select(budget_windows.c.rule_id, budget_windows.c.used)
        return {row.rule_id: row.used for row in connection.execute(query)}


def num_open(store: Store) -> int:
    with store.reading() as connection:
        return len(connection.execute(select(open_requests)).all())


def test_a_request_that_died_before_its_first_progress_used_nothing(priced_store: Store) -> None:
    write(priced_store, admitted(detail=Detail(charges=BUDGETS)))

    [settle] = recovered(priced_store)

    assert (settle.outcome, settle.source, settle.at) == ("crash", "none", int(LATER * 1000))
    assert (settle.prompt_tokens, settle.completion_tokens, settle.cost_nano) == (0, 0, 0)
    assert used(priced_store) == {"tokens": 0, "usd": 0}
    assert num_open(priced_store) == 0
    assert verify(priced_store).is_clean


def test_the_last_progress_is_charged_at_the_price_and_to_the_windows_of_the_admit(priced_store: Store) -> None:
    add_price(priced_store, Price(version=2, model="m", prompt_nano=10**12, completion_nano=10**12, cached_nano=10**12))
    admit = admitted(detail=Detail(charges=BUDGETS))
    write(priced_store, admit, progressed(admit, 1, prompt_tokens=100, completion_tokens=7))
    write(
        priced_store,
        progressed(
            admit, 2, prompt_tokens=100, completion_tokens=33, cached_tokens=80, reasoning_tokens=5, backend="gpu"
        ),
    )

    [settle] = recovered(priced_store)

    assert settle == settle_of(priced_store)
    assert (settle.outcome, settle.source, settle.backend, settle.wait_ms) == ("crash", "estimated", "gpu", 20)
    assert (settle.prompt_tokens, settle.completion_tokens) == (100, 33)
    assert (settle.cached_tokens, settle.reasoning_tokens) == (80, 5)
    assert (settle.price_version, settle.cost_nano) == (1, PRICE.cost(100, 33, 80))
    assert used(priced_store) == {"tokens": 53, "usd": PRICE.cost(100, 33, 80)}
    assert verify(priced_store).is_clean


def test_cached_tokens_are_charged_where_the_limits_count_them(priced_store: Store) -> None:
    admit = admitted(detail=Detail(charges=BUDGETS))
    write(priced_store, admit, progressed(admit, prompt_tokens=100, completion_tokens=33, cached_tokens=80))

    [settle] = recovered(priced_store, count_cached=True)

    assert counted_tokens(recovery._usage_of(settle), count_cached=True) == 133
    assert used(priced_store)["tokens"] == 133


def test_a_budget_that_has_ended_is_charged_still(store: Store) -> None:
    add_budgets(store, [("tokens", "tokens")], ended_at=NOON)
    admit = admitted(detail=Detail(charges=BUDGETS[:1]), price_version=0)
    write(store, admit, progressed(admit, prompt_tokens=3, completion_tokens=4))

    [settle] = recovered(store)

    assert settle.cost_nano == 0
    assert used(store) == {"tokens": 7}


def test_a_budget_that_the_store_does_not_know_is_named_in_the_log(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    write(store, admitted(detail=Detail(charges=BUDGETS[:1])))

    with caplog.at_level(logging.WARNING):
        [settle] = recovered(store)

    assert detail_of(settle).charges == ()
    assert "the budget tokens is not in the store" in caplog.text
    assert "left open: 1" in caplog.text


def test_the_settle_keeps_what_only_the_admit_and_the_attempts_knew(store: Store) -> None:
    admit = admitted(detail=Detail(shown_id="mine", stream=True))
    write(store, admit, failed(admit, 1), failed(admit, 2), progressed(admit, prompt_tokens=1))

    [settle] = recovered(store)

    assert detail_of(settle) == Detail(shown_id="mine", attempts=3)
    assert (settle.tenant, settle.key_id, settle.lane, settle.run_id) == ("acme", "key_1", "standard", "run-that-died")


def test_requests_of_a_living_server_are_left_alone(store: Store, tmp_path: Path) -> None:
    write(store, admitted(1), admitted(2, run_id="alive"))

    with store.hold("alive", tmp_path / "control.sock"):
        settles = recovered(store)

    assert [settle.request_id for settle in settles] == [request_id(1)]
    assert num_open(store) == 1


def test_only_the_runs_that_are_named_are_recovered(store: Store) -> None:
    write(store, admitted(1, run_id="a"), admitted(2, run_id="b"))

    settles = recover(store, dead={"b", "c"}, clock=lambda: LATER)

    assert [settle.run_id for settle in settles] == ["b"]
    assert recover(store, dead=set()) == []


def test_a_second_recovery_changes_nothing(priced_store: Store) -> None:
    admit = admitted(detail=Detail(charges=BUDGETS))
    write(priced_store, admit, progressed(admit, prompt_tokens=5, completion_tokens=5))
    recovered(priced_store)
    before = used(priced_store)

    assert recovered(priced_store) == []
    assert used(priced_store) == before


def test_more_requests_than_fit_in_a_batch_are_all_settled(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "BATCH", 2)
    write(store, *(admitted(number) for number in range(5)))

    assert len(recovered(store)) == 5
    assert num_open(store) == 0
    assert verify(store).is_clean


def test_a_settle_that_comes_after_the_recovery_changes_nothing(store: Store) -> None:
    add_price(store)
    admit = admitted()
    write(store, admit)
    recovered(store)

    write(store, settled(admit))

    assert settle_of(store).outcome == "crash"
    assert verify(store).is_clean


@pytest.mark.parametrize("store_options", ["postgresql"], indirect=True)  # SQLite has one writer at a time
def test_a_server_that_settles_at_the_same_moment_wins_and_nothing_is_counted_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_price(store)
    admits = [admitted(1), admitted(2)]
    write(store, *admits)

    def read_then_lose(connection: Connection, request_ids: Collection[str]) -> list[History]:
        found = histories(connection, request_ids)
        write(store, settled(admits[0]))
        return found

    monkeypatch.setattr(recovery, "histories", read_then_lose)

    settles = recovered(store)

    assert [settle.request_id for settle in settles] == [request_id(2)]
    assert settle_of(store, 1).outcome == "ok"
    with store.reading() as connection:
        assert sorted(connection.execute(select(usage_days.c.requests)).scalars()) == [1, 1]
    assert verify(store).is_clean


def test_an_open_request_without_an_admit_stays_for_verify_to_tell(store: Store) -> None:
    with store.changing() as connection:
        connection.execute(open_requests.insert().values(request_id=request_id(1), run_id="run-that-died"))

    assert recovered(store) == []
    assert [finding.kind for finding in verify(store).findings] == ["open"]


def _life(number: int) -> list[Record]:
    """All that one request tells."""
    admit = admitted(number, detail=Detail(charges=BUDGETS))
    charges = (Charge("tokens", NOON, 150), Charge("usd", NOON, PRICE.cost(100, 50)))
    return [
        admit,
        failed(admit),
        progressed(admit, 1, prompt_tokens=100),
        progressed(admit, 2, after_s=1.5, prompt_tokens=100, completion_tokens=20),
        settled(admit, *charges, detail=detail_text(Detail(charges=charges))),
    ]


# What of a request was durable when the server died → outcome, source and tokens of its settle.
CUTS: dict[int, tuple[str, str, int, int]] = {
    1: ("crash", "none", 0, 0),
    2: ("crash", "none", 0, 0),
    3: ("crash", "estimated", 100, 0),
    4: ("crash", "estimated", 100, 20),
    5: ("ok", "reported", 100, 50),
}


@pytest.mark.parametrize("group_size", [1, 100])
def test_wherever_a_crash_cuts_a_request_it_is_settled_once_with_what_was_noted(
    priced_store: Store, group_size: int
) -> None:
    durable = [record for cut in CUTS for record in _life(cut)[:cut]]
    for start in range(0, len(durable), group_size):
        write(priced_store, *durable[start : start + group_size])

    recovered(priced_store)

    with priced_store.reading() as connection:
        found = histories(connection, [request_id(cut) for cut in CUTS])
    settles = [[event for event in history.events if event.kind == Kind.SETTLE] for history in found]
    assert [len(of_one) for of_one in settles] == [1] * len(CUTS)
    assert [
        (settle.outcome, settle.source, settle.prompt_tokens, settle.completion_tokens) for [settle] in settles
    ] == list(CUTS.values())
    assert used(priced_store) == {
        "tokens": 100 + 120 + 150,
        "usd": PRICE.cost(100, 0) + PRICE.cost(100, 20) + PRICE.cost(100, 50),
    }
    assert num_open(priced_store) == 0
    assert verify(priced_store).is_clean


def test_what_a_dead_server_had_beside_the_store_is_how_it_ended(sqlite_store: Store) -> None:
    add_price(sqlite_store)
    write(sqlite_store, admitted(1), admitted(2))
    with closing(Intake(sqlite_store.file)) as intake:
        assert intake.append([settled(admitted(1))])

    assert [event.request_id for event in recovered(sqlite_store)] == [request_id(2)]
    assert settle_of(sqlite_store, 1).outcome == "ok"
    assert settle_of(sqlite_store, 2).outcome == "crash"
    with closing(Intake(sqlite_store.file)) as intake:
        assert not list(intake.left_over(1))
    assert not verify(sqlite_store).findings


def test_what_a_living_server_has_beside_the_store_is_left_to_it(sqlite_store: Store) -> None:
    with closing(Intake(sqlite_store.file)) as intake:
        assert intake.append([admitted(1), settled(admitted(1))])
        assert recovered(sqlite_store) == []
        assert len(list(intake.left_over(1))) == 1
