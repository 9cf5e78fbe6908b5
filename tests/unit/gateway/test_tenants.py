"""Keys: who they stand for, what they may do now, and which are refused at the start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import text

from backends.errors import ConfigError
from gateway.accounts import Accounts, NewKey
from gateway.directory import Directory
from gateway.errors import StoreUnavailable
from gateway.store import Store, StoreOptions
from gateway.tenants import STALE_S, AuthOptions, KeyRing, StaticKey, VirtualKey
from gateway.virtual_keys import mint
from tests.conftest import FakeClock

ALICE = StaticKey(key="sk-alice-secret", tenant="alice", weight=3, lanes=("batch",), default_lane="batch")


def test_a_static_key_is_found_by_its_secret_and_never_keeps_it() -> None:
    ring = KeyRing(AuthOptions(key=(ALICE,)))

    key = ring.find(b"sk-alice-secret")

    assert key is not None
    assert (key.tenant, key.weight, key.lanes, key.default_lane) == ("alice", 3, ("batch",), "batch")
    assert "secret" not in repr(vars(ring))


def test_the_short_form_is_the_default_tenant_with_every_lane() -> None:
    key = KeyRing(AuthOptions(keys=("sk-short-form",))).find(b"sk-short-form")

    assert key is not None
    assert (key.tenant, key.lanes, key.default_lane) == ("default", ("interactive", "standard", "batch"), "standard")


@pytest.mark.parametrize("secret", [b"", b"sk-alice-secreT", b"sk-alice-secret ", b"\xff\xfe"])
def test_an_unknown_secret_finds_nothing(secret: bytes) -> None:
    assert KeyRing(AuthOptions(key=(ALICE,))).find(secret) is None


def test_a_static_key_says_its_project_role_models_and_name() -> None:
    static = StaticKey(key="sk-of-the-boss", project="web", role="admin", models=("gpt-*",), name="boss")

    key = KeyRing(AuthOptions(key=(static,))).find(b"sk-of-the-boss")

    assert key is not None
    assert (key.project, key.role, key.models, key.name) == ("web", "admin", ("gpt-*",), "boss")


def test_a_ring_without_keys_is_open() -> None:
    assert KeyRing(AuthOptions()).is_open
    assert not KeyRing(AuthOptions(keys=("sk-short-form",))).is_open


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (AuthOptions(keys=("sk-same-key", "sk-same-key")), "auth.keys[1]: the same key"),
        (AuthOptions(keys=("sk-alice-secret",), key=(ALICE,)), "auth.key[0]: the same key"),
        (AuthOptions(key=(StaticKey(key="sk-12345", lanes=("fast",), default_lane="fast"),)), '"fast" is not a lane'),
        (AuthOptions(key=(StaticKey(key="sk-12345", lanes=("batch",)),)), '"standard" is not among its lanes'),
        (AuthOptions(key=(StaticKey(key="sk-12345", lanes=()),)), "give it at least one"),
        (AuthOptions(key=(StaticKey(key="sk-12345", models=("gpt-*o",)),)), 'auth.key[0].models: "gpt-*o"'),
    ],
)
def test_a_key_that_cannot_work_stops_the_start_without_being_shown(options: AuthOptions, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KeyRing(options)

    assert words in str(caught.value)
    assert "sk-" not in str(caught.value)


@pytest.fixture
def accounts(sqlite_store: Store, clock: FakeClock) -> Accounts:
    return Accounts(sqlite_store, "cli:olga", clock)


@pytest.fixture
def directory(sqlite_store: Store, clock: FakeClock) -> Iterator[Directory]:
    directory = Directory(sqlite_store, clock)
    directory.start()
    yield directory
    directory.stop()


@pytest.fixture
def ring(directory: Directory, clock: FakeClock) -> KeyRing:
    return KeyRing(AuthOptions(key=(ALICE,)), directory=directory, clock=clock)


def found(ring: KeyRing, secret: str) -> VirtualKey:
    key = ring.find(secret.encode())
    assert key is not None
    return key


def test_a_key_of_the_store_is_found_by_its_secret(ring: KeyRing, accounts: Accounts) -> None:
    accounts.create_tenant("acme", weight=3)
    made = accounts.create_key(
        NewKey(tenant="acme", project="web", name="ci", role="viewer", models=["gpt-*"], expires_at=9999)
    )

    assert found(ring, made.secret) == VirtualKey(
        id=made.row.id,
        name="ci",
        tenant="acme",
        project="web",
        weight=3,
        models=("gpt-*",),
        role="viewer",
        expires_at=9999,
    )


def test_unknown_revoked_expired_and_ended_are_all_the_same(
    ring: KeyRing, accounts: Accounts, clock: FakeClock
) -> None:
    revoked, expired, tenant, project = (
        accounts.create_key(NewKey(tenant=f"t{number}", expires_at=2000 if number == 1 else None))
        for number in range(4)
    )
    assert all(ring.find(made.secret.encode()) for made in (revoked, expired, tenant, project))

    accounts.revoke_key(revoked.row.id)
    accounts.end_tenant("t2")
    accounts.end_project("t3", "default")
    clock.now = 2000

    assert [ring.find(made.secret.encode()) for made in (revoked, expired, tenant, project)] == [None] * 4
    assert ring.find(mint().encode()) is None


def test_a_rotated_key_works_until_the_overlap_is_over(ring: KeyRing, accounts: Accounts, clock: FakeClock) -> None:
    old = accounts.create_key(NewKey(tenant="acme"))
    new = accounts.rotate_key(old.row.id, 60)

    assert (found(ring, old.secret).id, found(ring, new.secret).id) == (old.row.id, new.row.id)
    clock.advance(59)
    assert found(ring, old.secret).id == old.row.id
    clock.advance(1)
    assert ring.find(old.secret.encode()) is None
    assert found(ring, new.secret).id == new.row.id


def test_a_key_revoked_by_another_process_is_refused_by_the_next_request(
    ring: KeyRing, accounts: Accounts, sqlite_store: Store
) -> None:
    made = accounts.create_key(NewKey(tenant="acme"))
    assert ring.find(made.secret.encode())

    with closing(Store.open(sqlite_store.options)) as other:
        Accounts(other, "cli:olga").revoke_key(made.row.id)

    assert ring.find(made.secret.encode()) is None


class Untouchable(Directory):
    """A directory that must not be asked."""

    def freshen(self) -> None:
        raise AssertionError("asked")

    def find(self, digest: bytes) -> None:
        raise AssertionError("asked")


@pytest.mark.parametrize(
    "secret",
    [b"", b"lw-", b"sk-something-else", mint().encode() + b"x", mint()[:-1].encode() + b"!"],
    ids=["nothing", "the prefix alone", "another kind", "one character more", "a wrong checksum"],
)
def test_garbage_is_refused_without_asking_the_store(sqlite_store: Store, secret: bytes) -> None:
    assert KeyRing(AuthOptions(), directory=Untouchable(sqlite_store)).find(secret) is None


def test_a_static_key_may_look_like_a_virtual_one(directory: Directory) -> None:
    ring = KeyRing(AuthOptions(keys=("lw-chosen-by-hand",)), directory=directory)

    assert ring.find(b"lw-chosen-by-hand")


LANE_CASES = [
    # key's lanes, its default, the project's, the tenant's → lanes and default
    (None, None, None, None, ("interactive", "standard", "batch"), "standard"),
    (None, "batch", None, None, ("interactive", "standard", "batch"), "batch"),
    (None, "interactive", None, ("standard", "batch"), ("standard", "batch"), "standard"),
    (("batch", "interactive"), None, None, None, ("batch", "interactive"), "interactive"),
    (None, None, ("batch", "standard"), ("batch", "interactive"), ("batch",), "batch"),
]


@pytest.mark.parametrize(("own", "default", "project", "tenant", "lanes", "default_lane"), LANE_CASES)
def test_a_key_may_ask_for_the_lanes_that_it_its_project_and_its_tenant_allow(
    ring: KeyRing,
    accounts: Accounts,
    own: tuple[str, ...] | None,
    default: str | None,
    project: tuple[str, ...] | None,
    tenant: tuple[str, ...] | None,
    lanes: tuple[str, ...],
    default_lane: str,
) -> None:
    accounts.create_tenant("acme", lanes=tenant)
    accounts.create_project("acme", "web", lanes=project)
    made = accounts.create_key(NewKey(tenant="acme", project="web", lanes=own, default_lane=default))

    key = found(ring, made.secret)

    assert (key.lanes, key.default_lane) == (lanes, default_lane)


def test_a_key_to_which_no_lane_is_left_may_use_no_model(ring: KeyRing, accounts: Accounts) -> None:
    accounts.create_tenant("acme", lanes=["batch"])
    made = accounts.create_key(NewKey(tenant="acme", lanes=["interactive"]))

    key = found(ring, made.secret)

    assert key.lanes == ()
    assert not key.may_use("m")


def test_a_key_may_use_the_models_that_it_its_project_and_its_tenant_allow(ring: KeyRing, accounts: Accounts) -> None:
    accounts.create_tenant("acme", models=["gpt-*", "llama"])
    accounts.create_project("acme", "web", models=["gpt-4*", "llama"])
    made = accounts.create_key(NewKey(tenant="acme", project="web", models=["gpt-4o", "gpt-3", "mistral"]))

    key = found(ring, made.secret)
    assert key.models == ("gpt-4o",)

    accounts.change_tenant("acme", models=["llama"])
    key = found(ring, made.secret)
    assert key.models == ()
    assert not key.may_use("gpt-4o")


def test_a_lane_that_the_server_does_not_have_is_no_lane(directory: Directory, accounts: Accounts) -> None:
    made = accounts.create_key(NewKey(tenant="acme", lanes=["batch", "standard"]))

    ring = KeyRing(AuthOptions(), ("interactive", "standard"), directory)

    assert found(ring, made.secret).lanes == ("standard",)


def test_a_static_key_is_bound_by_its_tenant_where_the_store_has_one(ring: KeyRing, accounts: Accounts) -> None:
    assert found(ring, "sk-alice-secret").models is None

    accounts.create_tenant("alice", weight=7, models=["llama"])
    bound = found(ring, "sk-alice-secret")
    assert (bound.models, bound.weight) == (("llama",), 3)

    accounts.end_tenant("alice")
    assert ring.find(b"sk-alice-secret") is None


def test_a_server_stays_closed_once_there_was_a_key(directory: Directory, accounts: Accounts) -> None:
    ring = KeyRing(AuthOptions(), directory=directory)
    assert ring.is_open

    made = accounts.create_key(NewKey(tenant="acme"))
    assert not ring.is_open

    accounts.revoke_key(made.row.id)
    assert not ring.is_open
    assert not KeyRing(AuthOptions(), directory=directory).is_open


def test_a_server_whose_static_keys_are_taken_away_does_not_open(directory: Directory) -> None:
    ring = KeyRing(AuthOptions(key=(ALICE,)), directory=directory)

    ring.rebuild(AuthOptions())

    assert not ring.is_open
    assert ring.find(b"sk-alice-secret") is None


def test_other_static_keys_hold_from_the_next_request_on(ring: KeyRing) -> None:
    before = found(ring, "sk-alice-secret")

    ring.rebuild(AuthOptions(key=(StaticKey(key="sk-alice-secret", tenant="bob"), StaticKey(key="sk-second-key"))))

    assert (found(ring, "sk-alice-secret").id, found(ring, "sk-alice-secret").tenant) == (before.id, "bob")
    assert ring.find(b"sk-second-key")


def test_static_keys_that_cannot_work_leave_the_ring_as_it_is(ring: KeyRing) -> None:
    with pytest.raises(ConfigError):
        ring.rebuild(AuthOptions(keys=("sk-same-key", "sk-same-key")))

    assert ring.find(b"sk-alice-secret")
    assert ring.find(b"sk-same-key") is None


def lose(store: Store) -> None:
    with store.changing() as connection:
        connection.execute(text("ALTER TABLE revisions RENAME TO lost"))


def restore(store: Store) -> None:
    with store.changing() as connection:
        connection.execute(text("ALTER TABLE lost RENAME TO revisions"))


def test_with_the_store_away_known_keys_go_on_for_a_minute_and_unknown_ones_are_not_judged(
    ring: KeyRing, accounts: Accounts, sqlite_store: Store, clock: FakeClock
) -> None:
    made = accounts.create_key(NewKey(tenant="acme"))
    revoked = accounts.create_key(NewKey(tenant="acme"))
    accounts.revoke_key(revoked.row.id)
    assert ring.find(made.secret.encode())
    lose(sqlite_store)

    clock.advance(STALE_S)
    assert ring.find(made.secret.encode())
    assert ring.find(revoked.secret.encode()) is None
    with pytest.raises(StoreUnavailable):
        ring.find(mint().encode())

    clock.advance(1)
    with pytest.raises(StoreUnavailable):
        ring.find(made.secret.encode())
    assert ring.find(revoked.secret.encode()) is None
    assert ring.find(b"sk-alice-secret"), "the config is there"
    assert ring.find(b"lw-garbage") is None

    restore(sqlite_store)
    assert ring.find(made.secret.encode())
    assert ring.find(mint().encode()) is None


def test_an_open_server_does_not_know_for_ever_that_it_is_open(
    directory: Directory, sqlite_store: Store, clock: FakeClock
) -> None:
    ring = KeyRing(AuthOptions(), directory=directory, clock=clock)
    assert ring.is_open
    lose(sqlite_store)

    clock.advance(STALE_S)
    assert ring.is_open
    clock.advance(1)
    with pytest.raises(StoreUnavailable):
        _ = ring.is_open


def test_a_revocation_reaches_a_running_server_on_either_database(store_options: StoreOptions, store: Store) -> None:
    directory = Directory(store)
    directory.start()
    ring = KeyRing(AuthOptions(), directory=directory)
    accounts = Accounts(store, "cli:olga")
    made = accounts.create_key(NewKey(tenant="acme"))

    def soon(is_so: Callable[[], bool]) -> None:
        for _ in range(1000):
            if is_so():
                return
            time.sleep(0.01)
        raise AssertionError("not within 10 s")

    soon(lambda: ring.find(made.secret.encode()) is not None)
    accounts.revoke_key(made.row.id)
    soon(lambda: ring.find(made.secret.encode()) is None)
    directory.stop()
