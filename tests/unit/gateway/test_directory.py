"""The store in memory: whole states, as fresh as can be, and kept while the store is away."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import text

from gateway.accounts import Accounts, NewKey
from gateway.directory import Directory
from gateway.rules import Scope
from gateway.store import Store, StoreOptions
from gateway.tables import audit, keys, revisions
from gateway.virtual_keys import VirtualKey, digest
from tests.conftest import FakeClock
from tests.stores import Postgres

KEY = VirtualKey(id="key_static", tenant="acme", project="web")


@pytest.fixture
def accounts(store: Store) -> Accounts:
    return Accounts(store, "cli:olga")


@pytest.fixture
def directory(store: Store, clock: FakeClock) -> Iterator[Directory]:
    directory = Directory(store, clock, look_every_s=0.05)
    directory.start()
    yield directory
    directory.stop()


def soon(directory: Directory, is_so: Callable[[], bool]) -> None:
    """What another process did is seen: at the next call on SQLite, within a moment on Postgres."""
    for _ in range(1000):
        directory.freshen()
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("not seen within 10 s")


def change(store: Store, statement: str) -> None:
    with store.changing() as connection:
        connection.execute(text(statement))


def ids(directory: Directory, key: VirtualKey, model: str) -> list[str]:
    return [rule.id for rule in directory.rules(key, model)]


def test_what_another_process_commits_is_seen(store_options: StoreOptions, directory: Directory, store: Store) -> None:
    with closing(Store.open(store_options)) as other:
        elsewhere = Accounts(other, "cli:olga")
        made = elsewhere.create_key(NewKey(tenant="acme"))
        keyed = digest(made.secret.encode(), store.pepper())
        soon(directory, lambda: directory.find(keyed) is not None)

        entry = directory.find(keyed)
        assert entry is not None
        assert (entry.id, entry.tenant, entry.revoked_at) == (made.row.id, "acme", None)

        elsewhere.revoke_key(made.row.id)
        soon(directory, lambda: (directory.state.keys[made.row.id].revoked_at or 0) > 0)


def test_on_sqlite_a_change_is_seen_by_the_very_next_call(sqlite_store: Store, clock: FakeClock) -> None:
    directory = Directory(sqlite_store, clock)
    directory.start()
    accounts = Accounts(sqlite_store, "cli:olga")
    for number in range(20):
        made = accounts.create_key(NewKey(tenant=f"t{number}"))
        directory.freshen()
        assert made.row.id in directory.state.keys
        accounts.revoke_key(made.row.id)
        directory.freshen()
        assert directory.state.keys[made.row.id].revoked_at is not None
    directory.stop()


def test_a_commit_that_changes_no_revision_changes_no_state(directory: Directory, store: Store) -> None:
    before = directory.state

    with store.changing() as connection:
        connection.execute(audit.insert().values(created_at=1, actor="a", action="b", target="c", detail="{}"))
    directory.freshen()

    assert directory.state is before


def test_a_change_replaces_the_state_and_leaves_the_old_one_as_it_was(directory: Directory, accounts: Accounts) -> None:
    first = accounts.create_key(NewKey(tenant="acme", rpm=1)).row
    soon(directory, lambda: first.id in directory.state.keys)
    before = directory.state

    second = accounts.create_key(NewKey(tenant="acme", rpm=1)).row
    soon(directory, lambda: second.id in directory.state.keys)

    assert list(before.keys) == [first.id]
    assert len(before.limits) == 1
    assert directory.state.keys[first.id] is before.keys[first.id]
    assert directory.state.revision > before.revision


def test_a_server_is_keyless_only_while_there_never_was_a_key(
    store: Store, accounts: Accounts, clock: FakeClock
) -> None:
    directory = Directory(store, clock, look_every_s=0.05)
    assert directory.has_ever_had_key, "who has not read the store does not take the server for open"
    directory.start()
    assert not directory.has_ever_had_key

    key = accounts.create_key(NewKey(tenant="acme")).row
    accounts.revoke_key(key.id)
    soon(directory, lambda: directory.has_ever_had_key)
    directory.stop()

    again = Directory(store, clock)
    again.start()
    assert again.has_ever_had_key
    again.stop()


def test_a_limit_that_ends_or_changes_holds_no_more(directory: Directory, accounts: Accounts) -> None:
    accounts.create_tenant("acme")
    limit = accounts.set_limit(Scope("tenant", "acme"), "rpm", 1)
    soon(directory, lambda: ids(directory, KEY, "m") == [limit.id])

    accounts.set_limit(Scope("tenant", "acme"), "rpm", 9)
    soon(directory, lambda: [rule.amount for rule in directory.rules(KEY, "m")] == [9])

    accounts.end_limit(limit.id)
    soon(directory, lambda: ids(directory, KEY, "m") == [])


def test_while_the_store_cannot_be_read_the_last_state_stays_and_ages(
    directory: Directory, accounts: Accounts, store: Store, clock: FakeClock
) -> None:
    key = accounts.create_key(NewKey(tenant="acme")).row
    soon(directory, lambda: key.id in directory.state.keys)
    change(store, "ALTER TABLE revisions RENAME TO lost")
    soon(directory, lambda: directory.is_away)
    before = directory.age_s

    clock.advance(30)
    directory.freshen()

    assert directory.is_away
    assert directory.age_s >= before + 30
    assert key.id in directory.state.keys

    change(store, "ALTER TABLE lost RENAME TO revisions")
    soon(directory, lambda: not directory.is_away)
    assert directory.age_s < 30
    accounts.revoke_key(key.id)
    soon(directory, lambda: directory.state.keys[key.id].revoked_at is not None)


def test_an_older_copy_of_the_store_is_read_anew_and_does_not_open_the_server(
    directory: Directory, accounts: Accounts, store: Store
) -> None:
    accounts.create_tenant("acme")
    key = accounts.create_key(NewKey(tenant="acme")).row
    soon(directory, lambda: key.id in directory.state.keys)

    with store.changing() as connection:
        connection.execute(keys.delete())
        connection.execute(revisions.update().values(value=1))
    soon(directory, lambda: directory.state.revision == 1)

    assert directory.state.keys == {}
    assert directory.has_ever_had_key


def test_a_stopped_postgres_is_told_at_once_and_found_again(
    postgres: Postgres, postgres_url: str, clock: FakeClock
) -> None:
    with closing(Store.open(StoreOptions(url=postgres_url))) as store:
        accounts = Accounts(store, "cli:olga")
        key = accounts.create_key(NewKey(tenant="acme")).row
        directory = Directory(store, clock, look_every_s=0.05)
        directory.start()

        postgres.stop()
        soon(directory, lambda: directory.is_away)
        assert key.id in directory.state.keys

        postgres.start()
        soon(directory, lambda: not directory.is_away)
        accounts.revoke_key(key.id)
        soon(directory, lambda: directory.state.keys[key.id].revoked_at is not None)
        directory.stop()


def test_a_postgres_that_says_nothing_counts_as_away(postgres_url: str, clock: FakeClock) -> None:
    with closing(Store.open(StoreOptions(url=postgres_url))) as store:
        directory = Directory(store, clock, look_every_s=0.05)
        directory.start()
        with store.changing() as connection:
            connection.execute(text("LOCK TABLE revisions IN ACCESS EXCLUSIVE MODE"))
            time.sleep(0.2)
            clock.advance(6)
            assert directory.is_away

        soon(directory, lambda: not directory.is_away)
        directory.stop()
