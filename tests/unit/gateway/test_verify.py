"""Whatever is changed behind the ledger's back is found, and nothing is found where nothing was changed."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Literal

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec import Struct
from sqlalchemy import ColumnElement, Connection

from gateway import verify as verifying
from gateway.events import Charge, Detail, Kind, Record
from gateway.recovery import recover
from gateway.store import Store, StoreOptions
from gateway.tables import audit, budget_windows, ledger_events, open_requests, usage_days, usage_hours
from gateway.verify import Checked, Finding, compare_windows, verify
from tests.ledger_records import DEAD, NOON, add_price, admitted, progressed, request_id, settled, write

DAY = NOON - 12 * 3600


@pytest.fixture
def kept(sqlite_store: Store) -> Store:
    """A store with two settled requests, charged to one window."""
    return fill(sqlite_store, 2)


def fill(store: Store, num_requests: int) -> Store:
    add_price(store)
    for number in range(1, num_requests + 1):
        admit = admitted(number, detail=Detail(charges=(Charge("lim", DAY, 600),)))
        write(store, admit, progressed(admit, prompt_tokens=100))
        write(store, settled(admit, Charge("lim", DAY, 150)))
    return store


def kinds(store: Store) -> list[str]:
    return sorted({finding.kind for finding in verify(store).findings})


def test_an_empty_store_is_clean(store: Store) -> None:
    report = verify(store)

    assert report.is_clean
    assert report.checked == Checked()


def test_a_store_that_nobody_touched_is_clean(store: Store) -> None:
    report = verify(fill(store, 2))

    assert report.findings == ()
    assert report.checked == Checked(settles=2, hours=1, days=1, windows=1)
    assert (report.in_flight, report.left_out, report.since) == ((), 0, None)


EVENT = ledger_events.c
FIRST = EVENT.request_id == request_id(1)
SETTLE = EVENT.kind == Kind.SETTLE


def _add_event(connection: Connection) -> None:
    event = settled(admitted(3)).event
    connection.execute(ledger_events.insert().values({name: getattr(event, name) for name in event.__struct_fields__}))


# What somebody does to the store → the kinds of findings.
TAMPERINGS: dict[str, tuple[Callable[[Connection], object], list[str]]] = {
    "an hour says more": (lambda c: c.execute(usage_hours.update().values(requests=3)), ["hour"]),
    "an hour is gone": (lambda c: c.execute(usage_hours.delete()), ["hour"]),
    "an hour belongs to another": (lambda c: c.execute(usage_hours.update().values(tenant="evil")), ["hour"]),
    "a day says less": (lambda c: c.execute(usage_days.update().values(cost_nano=0)), ["day"]),
    "a day is gone": (lambda c: c.execute(usage_days.delete()), ["day"]),
    "a day is moved": (lambda c: c.execute(usage_days.update().values(starts_at=0)), ["day"]),
    "a window says less": (lambda c: c.execute(budget_windows.update().values(used=0)), ["window"]),
    "a window is gone": (lambda c: c.execute(budget_windows.delete()), ["window"]),
    "a settle is gone": (
        lambda c: c.execute(ledger_events.delete().where(FIRST, SETTLE)),
        ["day", "hour", "unsettled", "window"],
    ),
    "a settle says less": (
        lambda c: c.execute(ledger_events.update().where(FIRST, SETTLE).values(completion_tokens=1)),
        ["cost", "day", "hour"],
    ),
    "a settle costs less": (
        lambda c: c.execute(ledger_events.update().where(FIRST, SETTLE).values(cost_nano=EVENT.cost_nano - 1)),
        ["cost", "day", "hour"],
    ),
    "a settle has another price": (
        lambda c: c.execute(ledger_events.update().where(FIRST, SETTLE).values(price_version=7)),
        ["cost"],
    ),
    "a settle charges less": (
        lambda c: c.execute(ledger_events.update().where(FIRST, SETTLE).values(detail="")),
        ["window"],
    ),
    "a settle's detail is garbage": (
        lambda c: c.execute(ledger_events.update().where(FIRST, SETTLE).values(detail="{'")),
        ["detail", "window"],
    ),
    "a settle is added": (_add_event, ["day", "hour", "unadmitted"]),
    "an admit is gone": (
        lambda c: c.execute(ledger_events.delete().where(FIRST, EVENT.kind == Kind.ADMIT)),
        ["unadmitted"],
    ),
    "a request is gone": (lambda c: c.execute(ledger_events.delete().where(FIRST)), ["day", "hour", "window"]),
    "a request is opened again": (
        lambda c: c.execute(open_requests.insert().values(request_id=request_id(1), run_id=DEAD)),
        ["open"],
    ),
    "a request that never was is open": (
        lambda c: c.execute(open_requests.insert().values(request_id=request_id(9), run_id=DEAD)),
        ["open"],
    ),
    "tokens below nothing": (
        lambda c: c.execute(ledger_events.update().where(FIRST, ~SETTLE).values(reasoning_tokens=-1)),
        ["counts"],
    ),
    "more cached than there were": (
        lambda c: c.execute(ledger_events.update().where(FIRST, EVENT.kind == Kind.PROGRESS).values(cached_tokens=101)),
        ["counts"],
    ),
    "numbers beyond all measure": (
        lambda c: c.execute(ledger_events.update().where(FIRST, SETTLE).values(prompt_tokens=2**62)),
        ["cost", "day", "hour"],
    ),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_tampering_is_found(kept: Store, what: str) -> None:
    tamper, expected = TAMPERINGS[what]
    with kept.changing() as connection:
        tamper(connection)

    assert kinds(kept) == expected


def test_all_kinds_of_tampering_are_found_together_in_any_database(store: Store) -> None:
    fill(store, len(TAMPERINGS))
    event, one = ledger_events.c, iter(range(1, len(TAMPERINGS)))

    def of(kind: Kind) -> tuple[ColumnElement[bool], ...]:
        return event.request_id == request_id(next(one)), event.kind == kind

    with store.changing() as connection:
        connection.execute(ledger_events.delete().where(*of(Kind.SETTLE)))
        connection.execute(ledger_events.delete().where(*of(Kind.ADMIT)))
        connection.execute(ledger_events.update().where(*of(Kind.SETTLE)).values(detail="{'"))
        connection.execute(ledger_events.update().where(*of(Kind.SETTLE)).values(cost_nano=1))
        connection.execute(ledger_events.update().where(*of(Kind.SETTLE)).values(cost_nano=1, price_version=7))
        connection.execute(ledger_events.update().where(*of(Kind.SETTLE)).values(prompt_tokens=2**62))
        connection.execute(ledger_events.update().where(*of(Kind.PROGRESS)).values(cached_tokens=101))
        connection.execute(open_requests.insert().values(request_id=request_id(next(one)), run_id=DEAD))
    write(store, admitted(99))

    found = Counter(finding.kind for finding in verify(store).findings)

    assert found == {
        "hour": 1,
        "day": 1,
        "window": 1,
        "unsettled": 1,
        "unrecovered": 1,
        "unadmitted": 1,
        "open": 1,
        "counts": 1,
        "cost": 3,
        "detail": 1,
    }


def test_a_finding_says_where_and_how_much(kept: Store) -> None:
    with kept.changing() as connection:
        connection.execute(usage_hours.update().values(requests=3, cost_nano=7))
        connection.execute(budget_windows.update().values(used=299))

    hour, window = verify(kept).findings

    assert hour.what == (
        "2026-09-21T12:00:00Z: tenant acme, project default, key_id key_1, model m, lane standard, outcome ok, "
        "source reported"
    )
    assert (hour.expected, hour.found) == ("requests 2, cost_nano 90000", "requests 3, cost_nano 7")
    assert window == Finding(kind="window", what="lim from 2026-09-21T00:00:00Z", expected="300", found="299")


def test_what_a_living_server_works_on_is_in_flight_and_no_finding(kept: Store, tmp_path: Path) -> None:
    write(kept, admitted(5, run_id="alive"))

    with kept.hold("alive", tmp_path / "control.sock"):
        report = verify(kept)

    assert report.is_clean
    [request] = report.in_flight
    assert (request.request_id, request.run_id, request.tenant) == (request_id(5), "alive", "acme")
    assert (request.model, request.admitted_at) == ("m", NOON)


def test_what_a_dead_server_left_is_a_finding_until_it_is_recovered(store: Store) -> None:
    write(store, admitted(5))

    assert kinds(store) == ["unrecovered"]
    recover(store, clock=lambda: NOON + 60)
    assert kinds(store) == []


def test_of_many_findings_the_first_are_listed(kept: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "MOST_LISTED", 3)
    write(kept, *(admitted(number) for number in range(10, 15)))

    report = verify(kept)

    assert [finding.what for finding in report.findings] == [request_id(number) for number in (10, 11, 12)]
    assert report.left_out == 2


@pytest.fixture
def retained(sqlite_store: Store) -> Store:
    """A store with a request in each of 72 hours, whose first day and a half retention removed."""
    store = sqlite_store
    add_price(store)
    for hour in range(72):
        at = DAY + hour * 3600 + 100
        admit = admitted(hour, at=at)
        write(store, admit, settled(admit, Charge("daily", at // 86400 * 86400, 1), Charge("prepaid", 0, 1)))
    horizon = DAY + 36 * 3600
    with store.changing() as connection:
        connection.execute(ledger_events.delete().where(EVENT.at < horizon * 1000))
        row = {"created_at": NOON, "actor": "laneway", "action": "ledger.retain", "target": "ledger_events"}
        connection.execute(audit.insert().values(**row, detail=json.dumps({"before": horizon})))
    return store


def test_what_lies_before_the_horizon_of_retention_is_not_compared(retained: Store) -> None:
    report = verify(retained)

    assert report.is_clean
    assert report.since == DAY + 36 * 3600
    assert report.checked == Checked(settles=36, hours=36, days=1, windows=1)


@pytest.mark.parametrize(("hour", "expected"), [(35, []), (36, ["hour"]), (71, ["hour"])])
def test_what_lies_after_the_horizon_is_compared(retained: Store, hour: int, expected: list[str]) -> None:
    with retained.changing() as connection:
        this = usage_hours.c.starts_at == DAY + hour * 3600
        connection.execute(usage_hours.update().where(this).values(requests=5))

    assert kinds(retained) == expected


def test_windows_of_a_running_server_are_compared_with_the_stores() -> None:
    durable = [("a", 0, 5), ("b", 3600, 7), ("gone", 0, 1), ("idle", 0, 0)]
    live = [("b", 3600, 7), ("a", 0, 6), ("new", 0, 2)]

    findings = compare_windows(durable, live)

    assert [(finding.what.split()[0], finding.expected, finding.found) for finding in findings] == [
        ("a", "5", "6"),
        ("gone", "1", "0"),
        ("new", "0", "2"),
    ]
    assert compare_windows(durable, reversed(durable)) == []


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Store]]:
    made: list[Store] = []

    def make() -> Store:
        folder = tmp_path_factory.mktemp("store")
        made.append(Store.open(StoreOptions(url=f"sqlite:///{folder}/laneway.db")))
        return made[-1]

    yield make
    for store in made:
        store.close()


class Told(Struct, frozen=True):
    """One request of a random history."""

    hour: int
    tenant: str
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    charged: frozenset[str]
    end: Literal["settle", "crash", "crash after progress"]

    def records(self, number: int) -> list[Record]:
        """What the ledger tells of it, as request `number`."""
        admit = admitted(number, at=NOON + self.hour * 3600 + number, tenant=self.tenant)
        counts = {
            "prompt_tokens": self.prompt_tokens + self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
        }
        charges = tuple(Charge(name, DAY, self.prompt_tokens) for name in sorted(self.charged))
        noted = progressed(admit, prompt_tokens=self.prompt_tokens)
        if self.end == "settle":
            return [admit, noted, settled(admit, *charges, **counts)]
        return [admit] if self.end == "crash" else [admit, noted, progressed(admit, 2, **counts)]


TOKENS = st.integers(0, 10_000)
REQUESTS = st.builds(
    Told,
    hour=st.integers(0, 60),
    tenant=st.sampled_from(["acme", "Beta", "ümlaut"]),
    prompt_tokens=TOKENS,
    completion_tokens=TOKENS,
    cached_tokens=TOKENS,
    charged=st.frozensets(st.sampled_from(["lim_a", "lim_b"])),
    end=st.sampled_from(["settle", "crash", "crash after progress"]),
)


@given(st.lists(REQUESTS, max_size=12), st.integers(1, 8), st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
def test_any_history_is_clean_once_what_is_open_is_recovered(
    stores: Callable[[], Store], requests: list[Told], group_size: int, random: Random
) -> None:
    store = stores()
    add_price(store)
    of_each = [deque(request.records(number)) for number, request in enumerate(requests)]
    whose_turn = [records for records in of_each for _ in records]
    random.shuffle(whose_turn)
    told = [records.popleft() for records in whose_turn]
    for start in range(0, len(told), group_size):
        write(store, *told[start : start + group_size])
    recover(store, clock=lambda: NOON + 61 * 3600)

    report = verify(store)

    assert report.findings == ()
    assert report.checked.settles == len(requests)
