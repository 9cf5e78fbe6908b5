"""What operators do: every change is checked, whole, audited, and seen by nobody when it fails."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import cast

import pytest
from msgspec import UNSET
from sqlalchemy import select

from gateway.accounts import Accounts, NewKey
from gateway.errors import Conflict, GatewayError, InvalidBody, NotFound
from gateway.rules import NANO, Meter, Scope, ScopeKind
from gateway.store import Store, StoreOptions
from gateway.tables import ROLLUP_SUMS, audit, budget_windows, keys, limits, revisions, tenants, usage_hours
from gateway.virtual_keys import Role, digest, is_well_formed

NOW = int(dt.datetime(2026, 11, 18, 10, 20, tzinfo=dt.UTC).timestamp())  # a Wednesday
HOUR = 3600
DAY = 24 * HOUR


class Now:
    """The operator's clock."""

    def __init__(self) -> None:
        self.now = float(NOW)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def at() -> Now:
    return Now()


@pytest.fixture
def accounts(store: Store, at: Now) -> Accounts:
    return Accounts(store, "cli:olga", at)


def revision(store: Store) -> int:
    with store.reading() as connection:
        return int(connection.execute(select(revisions.c.value)).scalar_one())


def windows(store: Store, rule_id: str) -> dict[int, tuple[int, int]]:
    """`starts_at` → opening, used."""
    query = select(budget_windows).where(budget_windows.c.rule_id == rule_id)
    with store.reading() as connection:
        return {row.starts_at: (row.opening, row.used) for row in connection.execute(query)}


def use(store: Store, starts_at: int, **values: object) -> None:
    """One row of the rollup of hours."""
    row: dict[str, object] = {"tenant": "acme", "project": "default", "key_id": "key_x", "model": "m"}
    row |= {"lane": "standard", "outcome": "ok", "source": "reported"} | dict.fromkeys(ROLLUP_SUMS, 0) | values
    with store.changing() as connection:
        connection.execute(usage_hours.insert().values(starts_at=starts_at, **row))


def test_a_tenant_is_made_changed_listed_and_ended(accounts: Accounts) -> None:
    made = accounts.create_tenant("acme", weight=2.5, time_zone="Europe/Berlin", models=["m", "m"], lanes=["batch"])

    assert (made.name, made.weight, made.time_zone) == ("acme", 2.5, "Europe/Berlin")
    assert (made.models, made.lanes, made.created_at, made.ended_at) == (("m",), ("batch",), NOW, None)

    changed = accounts.change_tenant("acme", weight=1, models=None)
    assert (changed.weight, changed.time_zone, changed.models, changed.lanes) == (1, "Europe/Berlin", None, ("batch",))
    assert accounts.change_tenant("acme", models=UNSET, lanes=UNSET) == changed

    ended = accounts.end_tenant("acme")
    assert ended.ended_at == NOW
    assert accounts.end_tenant("acme") == ended
    assert accounts.tenants() == [ended]


def test_a_name_is_given_once_even_when_its_owner_has_ended(accounts: Accounts) -> None:
    accounts.create_tenant("acme")
    accounts.create_project("acme", "web")
    with pytest.raises(Conflict, match="'web'"):
        accounts.create_project("acme", "web")
    accounts.end_project("acme", "web")
    with pytest.raises(Conflict, match="'web'"):
        accounts.create_project("acme", "web")
    with pytest.raises(Conflict, match="has ended"):
        accounts.create_key(NewKey(tenant="acme", project="web"))
    accounts.end_tenant("acme")
    for change in (
        lambda: accounts.create_tenant("acme"),
        lambda: accounts.change_tenant("acme", weight=2),
        lambda: accounts.create_project("acme", "api"),
        lambda: accounts.create_key(NewKey(tenant="acme")),
        lambda: accounts.set_limit(Scope("tenant", "acme"), "rpm", 1),
    ):
        with pytest.raises(Conflict, match="'acme'"):
            change()


def test_a_key_is_made_with_its_tenant_its_project_and_its_limits(accounts: Accounts, store: Store) -> None:
    made = accounts.create_key(
        NewKey(
            tenant="acme",
            project="web",
            name="ci",
            role="manager",
            models=["gpt-*"],
            lanes=["batch", "standard"],
            default_lane="batch",
            expires_at=NOW + 0.5,
            rpm=60,
            tpm=1000,
            concurrency=2,
            budget_nano=5 * NANO,
            budget_period="day",
        )
    )

    row = made.row
    assert is_well_formed(made.secret.encode())
    assert row.hint[:7] == made.secret[:7]
    assert (row.tenant, row.project, row.name, row.role, row.state) == ("acme", "web", "ci", "manager", "live")
    assert (row.models, row.lanes, row.default_lane) == (("gpt-*",), ("batch", "standard"), "batch")
    assert (row.expires_at, row.revoked_at, row.replaces, row.scope_id) == (NOW + 1, None, None, row.id)
    assert [tenant.name for tenant in accounts.tenants()] == ["acme"]
    assert [project.name for project in accounts.projects("acme")] == ["web"]
    limited = {limit.meter: (limit.amount, limit.period) for limit in accounts.limits(Scope("key", row.id))}
    assert limited == {"rpm": (60, None), "tpm": (1000, None), "concurrency": (2, None), "usd": (5 * NANO, "day")}
    assert accounts.key(row.id) == row
    with store.reading() as connection:
        kept = connection.execute(select(keys.c.digest)).scalar_one()
    assert kept == digest(made.secret.encode(), store.pepper())


def test_a_secret_is_nowhere_but_in_the_hand_of_who_made_the_key(accounts: Accounts, store: Store) -> None:
    made = accounts.create_key(NewKey(tenant="acme"))

    assert made.secret not in repr(made)
    with store.reading() as connection:
        for table in (keys, audit, limits, tenants):
            assert made.secret not in repr(connection.execute(select(table)).all())


def test_every_change_is_audited_with_who_did_what_to_what(accounts: Accounts) -> None:
    made = accounts.create_key(NewKey(tenant="acme", name="ci", rpm=3))
    new = accounts.rotate_key(made.row.id, 60)
    limit = accounts.set_limit(Scope("tenant", "acme"), "usd", 7, period="prepaid")
    accounts.top_up(limit.id, 5)
    accounts.end_limit(limit.id)
    accounts.revoke_key(new.row.id)
    accounts.set_price("m", 1, 2, 0)
    accounts.change_tenant("acme", lanes=["batch"])
    accounts.end_project("acme", "default")
    accounts.end_tenant("acme")

    rows = accounts.audit()
    assert [row.action for row in reversed(rows)] == [
        *("tenant.create", "project.create", "key.create", "limit.set", "key.rotate", "limit.set", "limit.top_up"),
        *("limit.end", "key.revoke", "price.set", "tenant.change", "project.end", "tenant.end"),
    ]
    assert {(row.actor, row.created_at) for row in rows} == {("cli:olga", NOW)}
    rotation = next(row for row in rows if row.action == "key.rotate")
    assert (rotation.target, rotation.detail["into"]) == (made.row.id, new.row.id)
    assert next(row for row in rows if row.action == "tenant.change").detail == {"lanes": ["batch"]}
    assert [row.id for row in accounts.audit(limit=2, before=rows[3].id)] == [rows[4].id, rows[5].id]


def test_what_is_there_already_is_not_done_and_audited_again(accounts: Accounts) -> None:
    made = accounts.create_key(NewKey(tenant="acme", rpm=3))
    limit = accounts.limits()[0]
    revoked = accounts.revoke_key(made.row.id)
    ended = accounts.end_limit(limit.id)
    before = accounts.audit()

    assert accounts.revoke_key(made.row.id) == revoked
    assert accounts.end_limit(limit.id) == ended
    assert accounts.audit() == before


@pytest.mark.parametrize(
    ("param", "change"),
    [
        ("name", lambda a: a.create_tenant("-acme")),
        ("name", lambda a: a.create_tenant("a/b")),
        ("name", lambda a: a.create_tenant("x" * 65)),
        ("name", lambda a: a.create_tenant("acme\n")),
        ("name", lambda a: a.create_project("acme", "")),
        ("weight", lambda a: a.create_tenant("new", weight=0)),
        ("weight", lambda a: a.create_tenant("new", weight=float("nan"))),
        ("time_zone", lambda a: a.create_tenant("new", time_zone="Mars/Base")),
        ("time_zone", lambda a: a.create_tenant("new", time_zone="../etc/passwd")),
        ("time_zone", lambda a: a.create_tenant("new", time_zone="America")),
        ("lanes", lambda a: a.create_tenant("new", lanes=["fast"])),
        ("lanes", lambda a: a.create_tenant("new", lanes=[])),
        ("models", lambda a: a.change_tenant("acme", models=["a*b"])),
        ("tenant", lambda a: a.create_key(NewKey(tenant="a b"))),
        ("project", lambda a: a.create_key(NewKey(tenant="acme", project="?"))),
        ("name", lambda a: a.create_key(NewKey(tenant="acme", name="\x1b[2J"))),
        ("role", lambda a: a.create_key(NewKey(tenant="acme", role=cast("Role", "root")))),
        ("default_lane", lambda a: a.create_key(NewKey(tenant="acme", lanes=["batch"], default_lane="standard"))),
        ("default_lane", lambda a: a.create_key(NewKey(tenant="acme", default_lane="fast"))),
        ("expires_at", lambda a: a.create_key(NewKey(tenant="acme", expires_at=NOW))),
        ("expires_at", lambda a: a.create_key(NewKey(tenant="acme", expires_at=float("inf")))),
        ("rpm", lambda a: a.create_key(NewKey(tenant="acme", rpm=0))),
        ("budget_nano", lambda a: a.create_key(NewKey(tenant="acme", budget_nano=2**53))),
        ("period", lambda a: a.create_key(NewKey(tenant="acme", budget_nano=1, budget_period="year"))),
        ("scope_kind", lambda a: a.set_limit(Scope(cast("ScopeKind", "team"), "acme"), "rpm", 1)),
        ("scope_id", lambda a: a.set_limit(Scope("model", "gpt-*"), "rpm", 1)),
        ("meter", lambda a: a.set_limit(Scope("tenant", "acme"), "eur", 1)),
        ("mode", lambda a: a.set_limit(Scope("tenant", "acme"), "usd", 1, mode="maybe")),
        ("mode", lambda a: a.set_limit(Scope("tenant", "acme"), "rpm", 1, mode="soft")),
        ("amount", lambda a: a.set_limit(Scope("tenant", "acme"), "rpm", -1)),
        ("period", lambda a: a.set_limit(Scope("tenant", "acme"), "rpm", 1, period="day")),
        ("period", lambda a: a.set_limit(Scope("tenant", "acme"), "usd", 1, period="rolling:367d")),
        ("model", lambda a: a.set_limit(Scope("tenant", "acme"), "rpm", 1, model="")),
        ("model", lambda a: a.set_limit(Scope("model", "m"), "rpm", 1, model="other")),
        ("cached_nano", lambda a: a.set_price("m", 0, 0, -1)),
        ("model", lambda a: a.set_price("gpt-*", 0, 0, 0)),
    ],
)
def test_a_value_that_does_not_fit_is_named_and_changes_nothing(
    sqlite_store: Store, param: str, change: Callable[[Accounts], object]
) -> None:
    accounts = Accounts(sqlite_store, "cli:olga", Now())
    accounts.create_tenant("acme")
    before = revision(sqlite_store), accounts.audit(), accounts.keys(), accounts.limits()

    with pytest.raises(InvalidBody) as caught:
        change(accounts)

    assert caught.value.param == param
    assert (revision(sqlite_store), accounts.audit(), accounts.keys(), accounts.limits()) == before


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("tenant_not_found", lambda a: a.change_tenant("nobody", weight=1)),
        ("tenant_not_found", lambda a: a.end_tenant("nobody")),
        ("tenant_not_found", lambda a: a.create_project("nobody", "web")),
        ("project_not_found", lambda a: a.end_project("acme", "nothing")),
        ("key_not_found", lambda a: a.key("key_nothing")),
        ("key_not_found", lambda a: a.rotate_key("key_nothing")),
        ("key_not_found", lambda a: a.revoke_key("key_nothing")),
        ("limit_not_found", lambda a: a.end_limit("lim_nothing")),
        ("limit_not_found", lambda a: a.top_up("lim_nothing", 1)),
        ("tenant_not_found", lambda a: a.set_limit(Scope("tenant", "acme/web"), "rpm", 1)),
        ("project_not_found", lambda a: a.set_limit(Scope("project", "acme"), "rpm", 1)),
        ("key_not_found", lambda a: a.set_limit(Scope("key", "key_nothing"), "rpm", 1)),
    ],
)
def test_what_is_not_there_cannot_be_changed(
    sqlite_store: Store, code: str, change: Callable[[Accounts], object]
) -> None:
    accounts = Accounts(sqlite_store, "cli:olga", Now())
    accounts.create_tenant("acme")

    with pytest.raises(NotFound) as caught:
        change(accounts)

    assert caught.value.code == code


def test_keys_are_listed_by_tenant_and_project_and_by_whether_they_live(accounts: Accounts, at: Now) -> None:
    first = accounts.create_key(NewKey(tenant="acme", expires_at=NOW + 10)).row
    at.now += 1
    second = accounts.create_key(NewKey(tenant="acme", project="web")).row
    at.now += 1
    third = accounts.create_key(NewKey(tenant="other")).row
    accounts.revoke_key(third.id)

    assert accounts.keys() == [first, second]
    assert [row.id for row in accounts.keys("acme", "web")] == [second.id]
    at.now += 8
    assert [(row.id, row.state) for row in accounts.keys(ended=True)] == [
        (first.id, "expired"),
        (second.id, "live"),
        (third.id, "revoked"),
    ]
    assert accounts.keys("other") == []


def test_the_end_of_a_tenant_ends_its_projects_keys_and_limits_and_no_others(accounts: Accounts) -> None:
    for tenant in ("acme", "acme-2"):
        key = accounts.create_key(NewKey(tenant=tenant, project="web", rpm=1)).row
        for scope in (Scope("tenant", tenant), Scope("project", f"{tenant}/web"), Scope("key", key.id)):
            accounts.set_limit(scope, "tokens", 100)
    accounts.set_limit(Scope("model", "acme"), "rpm", 1)

    accounts.end_tenant("acme")

    assert [row.tenant for row in accounts.keys(ended=False)] == ["acme-2"]
    assert {row.ended_at for row in accounts.projects("acme")} == {NOW}
    assert [row.state for row in accounts.keys("acme", ended=True)] == ["revoked"]
    assert sorted(f"{row.scope.kind}:{row.meter}" for row in accounts.limits()) == [
        *("key:rpm", "key:tokens", "model:rpm", "project:tokens", "tenant:tokens")
    ]


def test_the_end_of_a_project_ends_its_keys_and_limits_and_no_others(accounts: Accounts) -> None:
    kept = accounts.create_key(NewKey(tenant="acme", project="api", rpm=1)).row
    accounts.create_key(NewKey(tenant="acme", project="web", rpm=1))
    for scope in (Scope("tenant", "acme"), Scope("project", "acme/web"), Scope("project", "acme/api")):
        accounts.set_limit(scope, "rpm", 5)

    ended = accounts.end_project("acme", "web")

    assert accounts.end_project("acme", "web") == ended
    assert accounts.keys() == [kept]
    assert {str(row.scope) for row in accounts.limits()} == {f"key:{kept.id}", "tenant:acme", "project:acme/api"}


def test_a_rotated_key_lives_on_for_the_overlap_and_no_longer_than_it_would_have(accounts: Accounts, at: Now) -> None:
    forever = accounts.create_key(NewKey(tenant="acme", name="ci", models=["m"], lanes=["batch"], default_lane="batch"))
    short = accounts.create_key(NewKey(tenant="acme", expires_at=NOW + 10))

    new = accounts.rotate_key(forever.row.id, 60)
    newer = accounts.rotate_key(short.row.id)

    assert new.secret != forever.secret
    same = ("tenant", "project", "name", "role", "models", "lanes", "default_lane")
    assert [getattr(new.row, name) for name in same] == [getattr(forever.row, name) for name in same]
    assert (new.row.expires_at, new.row.replaces) == (None, forever.row.id)
    assert accounts.key(forever.row.id).expires_at == NOW + 60
    assert (newer.row.expires_at, accounts.key(short.row.id).expires_at) == (NOW + 10, NOW + 10)
    at.now += 60
    assert accounts.key(forever.row.id).state == "expired"


def test_a_key_rotated_without_overlap_ends_at_once(accounts: Accounts) -> None:
    old = accounts.create_key(NewKey(tenant="acme")).row

    accounts.rotate_key(old.id, 0)

    assert accounts.key(old.id).state == "expired"


def test_only_a_living_key_is_rotated_and_only_once(accounts: Accounts) -> None:
    old = accounts.create_key(NewKey(tenant="acme")).row
    new = accounts.rotate_key(old.id).row
    with pytest.raises(Conflict, match=new.id):
        accounts.rotate_key(old.id)
    accounts.revoke_key(new.id)
    with pytest.raises(Conflict, match="revoked"):
        accounts.rotate_key(new.id)
    for overlap_s in (-1, float("nan"), float("inf")):
        with pytest.raises(InvalidBody, match="overlap_s"):
            accounts.rotate_key(old.id, overlap_s)


def test_a_rotation_never_doubles_a_limit(accounts: Accounts) -> None:
    first = accounts.create_key(NewKey(tenant="acme", budget_nano=NANO)).row
    budget = accounts.limits()[0]
    second = accounts.rotate_key(first.id).row
    third = accounts.rotate_key(second.id).row

    assert (second.scope_id, third.scope_id) == (first.id, first.id)
    assert accounts.limits() == [budget]
    for key in (first, second, third):
        assert accounts.limits(Scope("key", key.id)) == [budget]

    larger = accounts.set_limit(Scope("key", third.id), "usd", 2 * NANO)

    assert (larger.id, larger.amount, larger.scope_id) == (budget.id, 2 * NANO, first.id)
    assert accounts.limits() == [larger]


def test_a_limit_replaces_the_same_one_and_keeps_its_id_and_windows(accounts: Accounts, store: Store) -> None:
    accounts.create_tenant("acme")
    use(store, NOW // HOUR * HOUR, cost_nano=30)
    scope = Scope("tenant", "acme")
    first = accounts.set_limit(scope, "usd", 100)
    before = windows(store, first.id)
    use(store, NOW // HOUR * HOUR, cost_nano=30, model="later")

    again = accounts.set_limit(scope, "usd", 200, period="month")
    others = [
        accounts.set_limit(scope, "usd", 100, period="day"),
        accounts.set_limit(scope, "usd", 100, mode="shadow"),
        accounts.set_limit(scope, "usd", 100, model="m"),
        accounts.set_limit(scope, "tokens", 100),
    ]

    assert (again.id, again.amount, again.period) == (first.id, 200, "month")
    assert windows(store, first.id) == before
    assert len({row.id for row in accounts.limits(scope)}) == 1 + len(others)
    accounts.end_limit(first.id)
    assert accounts.set_limit(scope, "usd", 200).id != first.id


@pytest.mark.parametrize(
    ("meter", "opening"),
    [("usd", 1000 + 200), ("tokens", (100 - 40 + 7) + 5)],
)
def test_a_new_budget_begins_with_what_was_used_in_its_window(
    accounts: Accounts, store: Store, meter: Meter, opening: int
) -> None:
    accounts.create_tenant("acme")
    month = int(dt.datetime(2026, 11, 1, tzinfo=dt.UTC).timestamp())
    use(store, month - HOUR, cost_nano=9999, prompt_tokens=9999)
    use(store, month, cost_nano=1000, prompt_tokens=100, cached_tokens=40, completion_tokens=7, reasoning_tokens=6)
    use(store, NOW // HOUR * HOUR, cost_nano=200, prompt_tokens=5, outcome="client_abort")
    use(store, NOW // HOUR * HOUR, cost_nano=9999, prompt_tokens=9999, tenant="other")

    limit = accounts.set_limit(Scope("tenant", "acme"), meter, 10**6)

    assert windows(store, limit.id) == {month: (opening, 0)}


def test_cached_tokens_open_a_budget_where_they_count(store: Store, at: Now) -> None:
    accounts = Accounts(store, "cli:olga", at, count_cached=True)
    use(store, NOW // HOUR * HOUR, prompt_tokens=100, cached_tokens=40)

    limit = accounts.set_limit(Scope("model", "m"), "tokens", 10**6, period="hour")

    assert windows(store, limit.id) == {NOW // HOUR * HOUR: (100, 0)}


def test_a_budget_opens_for_what_its_scope_and_its_model_say(accounts: Accounts, store: Store) -> None:
    hour = NOW // HOUR * HOUR
    first = accounts.create_key(NewKey(tenant="acme", project="web")).row
    second = accounts.rotate_key(first.id).row
    use(store, hour, cost_nano=1, key_id=first.id, project="web")
    use(store, hour, cost_nano=10, key_id=second.id, project="web", model="m2")
    use(store, hour, cost_nano=100)
    use(store, hour, cost_nano=1000, tenant="other", model="m2")

    def opening(scope: Scope, model: str | None = None) -> int:
        return windows(store, accounts.set_limit(scope, "usd", 1, period="hour", model=model).id)[hour][0]

    assert opening(Scope("key", second.id)) == 11
    assert opening(Scope("project", "acme/web")) == 11
    assert opening(Scope("tenant", "acme")) == 111
    assert opening(Scope("tenant", "acme"), "m2") == 10
    assert opening(Scope("model", "m2")) == 1010


def test_a_day_begins_in_the_tenants_time_zone_and_its_first_hour_counts_whole(
    accounts: Accounts, store: Store
) -> None:
    accounts.create_tenant("acme", time_zone="Asia/Kolkata")  # UTC+5:30
    day = int(dt.datetime(2026, 11, 17, 18, 30, tzinfo=dt.UTC).timestamp())
    use(store, day - 30 * 60 - HOUR, cost_nano=1)
    use(store, day - 30 * 60, cost_nano=20)

    limit = accounts.set_limit(Scope("tenant", "acme"), "usd", 100, period="day")

    assert windows(store, limit.id) == {day: (20, 0)}


def test_a_rolling_budget_opens_each_hour_that_still_counts(accounts: Accounts, store: Store) -> None:
    accounts.create_tenant("acme")
    hour = NOW // HOUR * HOUR
    for age, cost in ((0, 1), (1, 2), (24, 4), (25, 8)):
        use(store, hour - age * HOUR, cost_nano=cost)

    limit = accounts.set_limit(Scope("tenant", "acme"), "usd", 100, period="rolling:24h")

    assert windows(store, limit.id) == {hour: (1, 0), hour - HOUR: (2, 0), hour - 24 * HOUR: (4, 0)}


def test_prepaid_credit_begins_unused_and_grows_by_top_ups(accounts: Accounts, store: Store) -> None:
    accounts.create_tenant("acme")
    use(store, NOW // HOUR * HOUR, cost_nano=30)
    monthly = accounts.set_limit(Scope("tenant", "acme"), "usd", 100)
    credit = accounts.set_limit(Scope("tenant", "acme"), "usd", 100, period="prepaid")

    assert windows(store, credit.id) == {}
    assert accounts.top_up(credit.id, 50).amount == 150
    for wrong in (0, -5, 2**53 - 100):
        with pytest.raises(InvalidBody):
            accounts.top_up(credit.id, wrong)
    with pytest.raises(Conflict, match="no prepaid"):
        accounts.top_up(monthly.id, 50)
    accounts.end_limit(credit.id)
    with pytest.raises(Conflict, match="no prepaid"):
        accounts.top_up(credit.id, 50)


def test_a_price_is_a_new_version_and_the_newest_holds(accounts: Accounts) -> None:
    first = accounts.set_price("m", 10, 20, 5)
    accounts.set_price("*", 1, 1, 1)
    second = accounts.set_price("m", 0, 30, 0)

    assert second.version > first.version
    assert [(price.model, price.prompt_nano, price.completion_nano) for price in accounts.prices()] == [
        ("*", 1, 1),
        ("m", 0, 30),
    ]


def test_of_two_who_make_the_same_tenant_at_once_one_wins(store_options: StoreOptions, store: Store) -> None:
    others = [Store.open(store_options) for _ in range(4)]
    refused: list[GatewayError] = []
    start = threading.Barrier(len(others))

    def create(own: Store, number: int) -> None:
        start.wait()
        own_accounts = Accounts(own, f"cli:{number}")
        try:
            own_accounts.create_tenant("acme")
        except GatewayError as error:
            refused.append(error)
        own_accounts.create_key(NewKey(tenant="both", project="one"))

    threads = [threading.Thread(target=create, args=(own, number)) for number, own in enumerate(others)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own in others:
        own.close()

    accounts = Accounts(store, "cli:olga")
    assert [type(error) for error in refused] == [Conflict] * 3
    assert [tenant.name for tenant in accounts.tenants()] == ["acme", "both"]
    assert len(accounts.keys("both", "one")) == 4
    assert len({row.id for row in accounts.audit() if row.action == "tenant.create"}) == 2
