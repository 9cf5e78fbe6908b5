"""One state of the store: which limits and prices apply, and what a change of it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from sqlalchemy import Connection

from gateway.accounts import Accounts, NewKey
from gateway.directory import Directory
from gateway.rules import Scope
from gateway.snapshot import MOST_APPLYING, Reading
from gateway.store import Store
from gateway.tables import keys, projects, revisions, tenants
from gateway.virtual_keys import VirtualKey
from tests.conftest import FakeClock


@pytest.fixture
def accounts(sqlite_store: Store) -> Accounts:
    return Accounts(sqlite_store, "cli:olga")


@pytest.fixture
def directory(sqlite_store: Store, clock: FakeClock) -> Iterator[Directory]:
    directory = Directory(sqlite_store, clock)
    directory.start()
    yield directory
    directory.stop()


def ids(directory: Directory, key: VirtualKey, model: str) -> list[str]:
    return [rule.id for rule in directory.rules(key, model)]


def test_rules_are_of_tenant_project_key_and_model_in_this_order(directory: Directory, accounts: Accounts) -> None:
    key = accounts.create_key(NewKey(tenant="acme", project="web")).row
    caller = VirtualKey(id=key.id, tenant="acme", project="web")
    accounts.create_tenant("other")
    scopes = [Scope("tenant", "acme"), Scope("project", "acme/web"), Scope("key", key.id), Scope("model", "m")]
    made = [accounts.set_limit(scope, "rpm", 1).id for scope in scopes]
    only_m = accounts.set_limit(Scope("tenant", "acme"), "usd", 1, model="m").id
    for scope in (Scope("tenant", "other"), Scope("model", "m2")):
        accounts.set_limit(scope, "rpm", 1)
    ended = accounts.set_limit(Scope("tenant", "acme"), "tpm", 1).id
    accounts.end_limit(ended)

    directory.freshen()

    assert ids(directory, caller, "m") == [*sorted([made[0], only_m]), *made[1:]]
    assert ids(directory, caller, "m3") == made[:3]
    assert directory.rules(caller, "m") is directory.rules(caller, "m")
    assert len(directory.all_rules()) == 7


def test_a_key_that_the_store_does_not_know_comes_under_the_limits_of_its_tenant(
    directory: Directory, accounts: Accounts
) -> None:
    accounts.create_tenant("acme")
    accounts.create_project("acme", "web")
    made = [accounts.set_limit(scope, "rpm", 1).id for scope in (Scope("tenant", "acme"), Scope("project", "acme/web"))]

    directory.freshen()

    assert ids(directory, VirtualKey(id="key_of_the_config", tenant="acme", project="web"), "m") == made
    assert ids(directory, VirtualKey(id="key_of_the_config", tenant="unknown"), "m") == []


def test_a_budget_follows_the_time_zone_of_its_tenant(directory: Directory, accounts: Accounts) -> None:
    accounts.create_tenant("acme", time_zone="Europe/Berlin")
    key = accounts.create_key(NewKey(tenant="acme", project="web", budget_nano=1)).row
    for scope in (Scope("tenant", "acme"), Scope("project", "acme/web"), Scope("model", "m")):
        accounts.set_limit(scope, "usd", 1)
    caller = VirtualKey(id=key.id, tenant="acme", project="web")

    def zones() -> list[str]:
        directory.freshen()
        return [rule.time_zone for rule in directory.rules(caller, "m")]

    assert zones() == ["Europe/Berlin"] * 3 + ["UTC"]
    accounts.change_tenant("acme", time_zone="Asia/Tokyo")
    assert zones() == ["Asia/Tokyo"] * 3 + ["UTC"]
    assert sorted({rule.time_zone for rule in directory.all_rules()}) == ["Asia/Tokyo", "UTC"]


def test_every_key_of_a_line_comes_under_the_same_limits(
    directory: Directory, accounts: Accounts, sqlite_store: Store, clock: FakeClock
) -> None:
    first = accounts.create_key(NewKey(tenant="acme", project="web", budget_nano=1)).row
    second = accounts.rotate_key(first.id).row
    directory.freshen()
    third = accounts.rotate_key(second.id).row
    directory.freshen()
    accounts.revoke_key(first.id)
    fresh = Directory(sqlite_store, clock)  # reads the line all at once, its first key last
    fresh.start()

    for reader in (directory, fresh):
        seen = {reader.rules(VirtualKey(id=key.id, tenant="acme"), "m") for key in (first, second, third)}
        assert len(seen) == 1
        assert [rule.scope.id for rule in seen.pop()] == [first.id]
    fresh.stop()


def test_the_price_of_a_model_is_its_newest_or_that_of_all(directory: Directory, accounts: Accounts) -> None:
    assert directory.price("m") is None
    every = accounts.set_price("*", 1, 1, 1)
    accounts.set_price("m", 5, 5, 5)
    newest = accounts.set_price("m", 0, 0, 0)

    directory.freshen()

    assert directory.price("m") == newest
    assert directory.price("m2") == every


def test_a_tenant_weighs_what_the_store_says_or_one(directory: Directory, accounts: Accounts) -> None:
    accounts.create_tenant("acme", weight=4)

    directory.freshen()

    assert (directory.weight("acme"), directory.weight("nobody")) == (4, 1)


def test_what_is_kept_of_rules_stays_bounded(directory: Directory) -> None:
    for number in range(MOST_APPLYING + 5):
        directory.rules(VirtualKey(id="key_1"), f"model-{number}")

    assert len(directory.state.applying) == 5


def test_one_change_among_ten_thousand_keys_reads_one_row(sqlite_store: Store, clock: FakeClock) -> None:
    with sqlite_store.changing() as connection:
        put_keys(connection, 10_000)
    directory = Directory(sqlite_store, clock)
    directory.start()
    before = directory.state

    Accounts(sqlite_store, "cli:olga").revoke_key("key_77")
    with closing(sqlite_store.raw_connection()) as raw:
        changes = Reading("sqlite").changes(raw.cursor(), before.revision)
    directory.freshen()

    assert [len(rows) for rows in (changes.tenants, changes.projects, changes.limits, changes.prices)] == [0, 0, 0, 0]
    assert [row["id"] for row in changes.keys] == ["key_77"]
    assert directory.state.keys["key_77"].revoked_at is not None
    assert sum(key is not before.keys[key.id] for key in directory.state.keys.values()) == 1
    directory.stop()


def put_keys(connection: Connection, num_keys: int) -> None:
    given = {"created_at": 1, "revision": 1}
    connection.execute(revisions.update().values(value=1))
    connection.execute(tenants.insert().values(name="acme", weight=1, time_zone="UTC", **given))
    connection.execute(projects.insert().values(tenant="acme", name="web", **given))
    row = {"hint": "lw-", "tenant": "acme", "project": "web", "name": "", "role": "user"} | given
    connection.execute(
        keys.insert(), [row | {"id": f"key_{n}", "digest": n.to_bytes(32, "big")} for n in range(num_keys)]
    )
