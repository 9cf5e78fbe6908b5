"""Who may call the admin API: roles and routes, an open server, and what one tenant sees of another."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from litestar import get
from litestar.routes import HTTPRoute

from gateway.api.admin.access import ACCESS, admin_guard
from gateway.api.admin.routes import ENDPOINTS
from gateway.tenants import AuthOptions, StaticKey
from tests.integration.admin.admin_server import AdminServer, Serve

# Said once more, in the words of the requirement rather than those of the table.
NOT_A_MANAGERS = {
    ("POST", "/tenants"),
    ("PATCH", "/tenants/{name}"),
    ("DELETE", "/tenants/{name}"),
    ("PUT", "/prices"),
    ("POST", "/ledger/verify"),
    ("GET", "/ledger/state"),
    ("GET", "/audit"),
    ("GET", "/config"),
    ("POST", "/config/reload"),
}


def routes(server: AdminServer) -> Iterator[tuple[str, str]]:
    """Method and path of everything that the router knows."""
    for route in server.app.routes:
        assert isinstance(route, HTTPRoute)
        yield from ((str(method), route.path_format) for method in route.methods if method != "OPTIONS")


def expected(role: str, method: str, path: str) -> bool:
    short = path.removeprefix("/admin/v1")
    if role == "manager":
        return (method, short) not in NOT_A_MANAGERS
    return role == "admin" or (role == "viewer" and method == "GET")


def is_refused(reply: httpx.Response) -> bool:
    return reply.status_code == 403 and reply.json()["error"]["code"] == "role_not_allowed"


@pytest.mark.parametrize("role", ["user", "viewer", "manager", "admin"])
def test_each_role_may_call_what_it_should_and_nothing_else(server: AdminServer, role: str) -> None:
    known = list(routes(server))
    with server.as_role(role) as client:
        allowed = {
            (method, path)
            for method, path in known
            if not is_refused(client.request(method, server.url + path.replace("{", "").replace("}", "")))
        }

    assert len(known) == len(ENDPOINTS) == len(ACCESS)
    assert allowed == {(method, path) for method, path in known if expected(role, method, path)}


def test_a_route_that_the_table_does_not_name_refuses_even_an_admin(server: AdminServer) -> None:
    @get("/admin/v1/new", guards=[admin_guard(server.gate)])
    async def new() -> str:
        return "secret"

    server.app.register(new)
    with server.as_role("admin") as client:
        reply = client.get("/new")

    assert (reply.status_code, reply.json()["error"]["code"]) == (403, "role_not_allowed")


def test_without_a_key_or_with_a_wrong_one_nothing_is_told(server: AdminServer) -> None:
    server.key("admin")
    for client in (server.client(), server.client("lw-nonsense")):
        with client:
            replies = [client.request(endpoint.method, endpoint.path) for endpoint in ENDPOINTS]

        assert {reply.status_code for reply in replies} == {401}


def test_a_revoked_admin_is_refused_at_its_next_call(server: AdminServer) -> None:
    with server.as_role("admin") as client:
        (row,) = client.get("/keys").json()["data"]
        assert client.delete(f"/keys/{row['id']}").json()["state"] == "revoked"

        assert client.get("/keys").status_code == 401


@pytest.mark.parametrize(
    "headers", [{}, {"host": "127.0.0.1"}, {"host": "localhost"}, {"authorization": "Bearer anything"}]
)
def test_an_open_server_is_administered_by_nobody(server: AdminServer, headers: dict[str, str]) -> None:
    with server.client(**headers) as client:
        replies = [client.request(endpoint.method, endpoint.path) for endpoint in ENDPOINTS]
        made = client.post("/keys", json={"tenant": "ops", "role": "admin"})

    assert {(reply.status_code, reply.json()["error"]["code"]) for reply in (*replies, made)} == {
        (403, "server_is_open")
    }
    assert "laneway init" in made.json()["error"]["message"]
    assert server.accounts.keys() == []


def test_the_first_key_of_the_store_opens_the_admin_api_to_its_holder_alone(server: AdminServer) -> None:
    with server.as_role("admin", "ops") as admin, server.client() as anybody:
        assert admin.get("/keys").status_code == 200
        assert anybody.get("/keys").status_code == 401


@pytest.fixture
def manager(server: AdminServer) -> Iterator[httpx.Client]:
    """A manager of `acme`, beside a tenant `other` with a key, a project and limits."""
    server.key("user", "other", name="foreign", rpm=5)
    with server.as_role("manager", "acme") as client:
        yield client


def foreign(server: AdminServer) -> tuple[str, str]:
    """Ids of the other tenant's key and of its limit."""
    (key,) = server.accounts.keys("other")
    (limit,) = [row for row in server.accounts.limits() if row.scope_id == key.id]
    return key.id, limit.id


def told(reply: httpx.Response, name: str) -> tuple[int, str]:
    """Status and message, without the name that was asked for."""
    return reply.status_code, reply.json()["error"]["message"].replace(name, "X")


def test_what_belongs_to_another_tenant_is_told_as_what_never_was(server: AdminServer, manager: httpx.Client) -> None:
    key_id, limit_id = foreign(server)
    asked = [
        ("GET", "/tenants/{}", "other", None),
        ("GET", "/tenants/{}/projects", "other", None),
        ("POST", "/tenants/{}/projects", "other", {"name": "p"}),
        ("DELETE", "/tenants/{}/projects/default", "other", None),
        ("GET", "/keys/{}", key_id, None),
        ("DELETE", "/keys/{}", key_id, None),
        ("POST", "/keys/{}/rotate", key_id, {}),
        ("GET", "/keys?tenant={}", "other", None),
        ("GET", "/usage?tenant={}", "other", None),
        ("GET", "/requests?tenant={}", "other", None),
        ("DELETE", "/limits/{}", limit_id, None),
        ("POST", "/limits/{}/top-up", limit_id, {"amount": 1}),
    ]

    for method, path, name, body in asked:
        real = manager.request(method, path.format(name), json=body)
        random = manager.request(method, path.format("random"), json=body)

        assert told(real, name) == told(random, "random"), path
        assert real.status_code == 404, path
    for kind, name in (("key", key_id), ("project", "other/default")):
        bodies = [{"scope_kind": kind, "scope_id": one, "meter": "rpm", "amount": 1} for one in (name, "random")]
        real, random = (manager.put("/limits", json=body) for body in bodies)

        assert told(real, name) == told(random, "random")
    assert [row.name for row in server.accounts.keys("other")] == ["foreign"]


def test_the_lists_of_a_manager_hold_only_its_tenant(server: AdminServer, manager: httpx.Client) -> None:
    own = manager.post("/keys", json={"name": "own", "rpm": 3}).json()
    lists = {
        path: manager.get(path).json()["data"]
        for path in ("/tenants", "/keys", "/limits", "/limits/state", "/requests", "/tenants/acme/projects")
    }

    assert [row["name"] for row in lists["/tenants"]] == ["acme"]
    assert {row["tenant"] for row in lists["/keys"]} == {"acme"}
    assert [row["scope_id"] for row in lists["/limits"]] == [own["id"]]
    assert [row["rule"]["scope"]["id"] for row in lists["/limits/state"]] == [own["id"]]
    assert lists["/requests"] == []
    assert manager.get("/usage").json() == []


def test_a_manager_makes_and_limits_keys_and_projects_of_its_tenant(server: AdminServer, manager: httpx.Client) -> None:
    assert manager.post("/tenants/acme/projects", json={"name": "web"}).status_code == 201
    made = manager.post("/keys", json={"project": "web"}).json()
    limits = [
        manager.put("/limits", json={"scope_kind": kind, "scope_id": name, "meter": "rpm", "amount": 9})
        for kind, name in (("key", made["id"]), ("project", "acme/web"))
    ]

    assert made["tenant"] == "acme"
    assert [reply.status_code for reply in limits] == [200, 200]
    assert manager.delete(f"/limits/{limits[0].json()['id']}").json()["ended_at"] is not None
    assert manager.delete("/tenants/acme/projects/web").json()["ended_at"] is not None


def test_a_manager_does_not_touch_limits_of_its_tenant_or_of_models(server: AdminServer, manager: httpx.Client) -> None:
    with server.as_role("admin", "ops") as admin:
        rows = [
            admin.put("/limits", json={"scope_kind": kind, "scope_id": name, "meter": "rpm", "amount": 9}).json()
            for kind, name in (("tenant", "acme"), ("model", "scripted"))
        ]
    asked = {"meter": "rpm", "amount": 999}

    assert manager.put("/limits", json={"scope_kind": "tenant", "scope_id": "acme", **asked}).status_code == 403
    assert manager.put("/limits", json={"scope_kind": "model", "scope_id": "scripted", **asked}).status_code == 403
    assert [manager.delete(f"/limits/{row['id']}").status_code for row in rows] == [403, 404]
    assert {row.amount for row in server.accounts.limits() if row.scope_kind in ("tenant", "model")} == {9}


def test_a_manager_does_not_touch_the_limits_of_its_own_key(server: AdminServer, manager: httpx.Client) -> None:
    own = next(row for row in server.accounts.keys("acme") if row.role == "manager")
    body = {"scope_kind": "key", "scope_id": own.id, "meter": "tokens", "amount": 9, "period": "prepaid"}
    with server.as_role("admin", "ops") as admin:
        limit = admin.put("/limits", json=body).json()["id"]
    successor = manager.post(f"/keys/{own.id}/rotate").json()
    with server.client(successor["key"]) as rotated:
        refused = [
            reply
            for client in (manager, rotated)
            for reply in (
                client.put("/limits", json={**body, "amount": 999}),
                client.put("/limits", json={**body, "scope_id": successor["id"], "meter": "rpm", "period": None}),
                client.post(f"/limits/{limit}/top-up", json={"amount": 1}),
                client.delete(f"/limits/{limit}"),
            )
        ]

    assert [(reply.status_code, reply.json()["error"]["code"]) for reply in refused] == [(403, "own_limit")] * 8
    assert [row.amount for row in server.accounts.limits() if row.scope_id == own.id] == [9]


def test_a_check_shows_a_manager_no_limits_over_all_tenants(server: AdminServer, manager: httpx.Client) -> None:
    made = manager.post("/keys", json={"rpm": 5}).json()
    body = {"key_id": made["id"], "model": "scripted", "prompt_tokens": 5, "max_tokens": 5}
    with server.as_role("admin", "ops") as admin:
        for kind, name, meter, amount in (("tenant", "acme", "rpm", 6), ("model", "scripted", "tpm", 1)):
            limit = {"scope_kind": kind, "scope_id": name, "meter": meter, "amount": amount}
            assert admin.put("/limits", json=limit).status_code == 200
        whole, own = (client.post("/limits/check", json=body).json() for client in (admin, manager))

    assert {state["rule"]["scope"]["kind"] for state in whole["states"]} == {"key", "tenant", "model"}
    assert {state["rule"]["scope"]["kind"] for state in own["states"]} == {"key", "tenant"}
    assert (whole["allowed"], own["allowed"]) == (False, False)


@pytest.mark.parametrize("role", ["viewer", "admin"])
def test_a_manager_neither_makes_nor_takes_over_keys_that_see_more(
    server: AdminServer, manager: httpx.Client, role: str
) -> None:
    server.key(role, "acme", name="above", project="top")
    (above,) = [row for row in server.accounts.keys("acme") if row.name == "above"]
    refused = [
        manager.post("/keys", json={"role": role}),
        manager.post(f"/keys/{above.id}/rotate"),
        manager.delete(f"/keys/{above.id}"),
        manager.delete("/tenants/acme/projects/top"),
        manager.put("/limits", json={"scope_kind": "key", "scope_id": above.id, "meter": "rpm", "amount": 1}),
    ]

    assert [is_refused(reply) for reply in refused] == [True] * 5
    assert server.accounts.key(above.id).state == "live"


def test_a_manager_makes_no_key_for_another_tenant_even_one_that_does_not_exist(manager: httpx.Client) -> None:
    replies = [manager.post("/keys", json={"tenant": tenant}) for tenant in ("other", "random")]

    assert {(reply.status_code, reply.json()["error"]["param"]) for reply in replies} == {(403, "tenant")}
    assert len({reply.text for reply in replies}) == 1


@pytest.mark.parametrize("role", ["manager", "admin"])
def test_a_key_never_gives_more_than_it_has(server: AdminServer, role: str) -> None:
    wide = server.accounts.key(_id(server, server.key("user", "acme", name="wide")))
    with server.as_role(role, "acme", models=["gpt-*"], lanes=["batch"], default_lane="batch") as client:
        given = client.post("/keys", json={"tenant": "acme"}).json()
        named = client.post("/keys", json={"tenant": "acme", "models": ["gpt-4"], "lanes": ["batch"]}).json()
        refused = [
            client.post("/keys", json={"tenant": "acme", "models": ["gpt-4", "claude"]}),
            client.post("/keys", json={"tenant": "acme", "models": ["*"]}),
            client.post("/keys", json={"tenant": "acme", "lanes": ["batch", "interactive"]}),
            client.post(f"/keys/{wide.id}/rotate"),
        ]

    assert (given["models"], given["lanes"]) == (["gpt-*"], ["batch"])
    assert (named["models"], named["lanes"]) == (["gpt-4"], ["batch"])
    assert [(reply.status_code, reply.json()["error"]["code"]) for reply in refused] == [(403, "grant_too_wide")] * 4
    assert [reply.json()["error"]["param"] for reply in refused[:3]] == ["models", "models", "lanes"]


def test_bounds_of_the_tenant_bind_both_keys_and_are_not_copied(server: AdminServer) -> None:
    server.accounts.create_tenant("acme", models=["a", "b"], lanes=["batch"])
    with server.as_role("manager", "acme") as client:
        made = client.post("/keys", json={}).json()
        rotated = client.post(f"/keys/{made['id']}/rotate")

    assert (made["models"], made["lanes"]) == (None, None)
    assert rotated.status_code == 201


def test_a_key_stays_within_its_maker_when_the_tenant_is_given_more(server: AdminServer) -> None:
    bounds = {"models": ["a"], "lanes": ["batch"]}
    server.accounts.create_tenant("acme", models=["a"], lanes=["batch"])
    server.accounts.create_project("acme", "small", models=["a"], lanes=["batch"])
    with (
        server.as_role("manager", "acme", **bounds) as bound_itself,
        server.as_role("manager", "acme", project="small") as bound_by_project,
    ):
        made = [client.post("/keys", json={}).json() for client in (bound_itself, bound_by_project)]
        beside = bound_by_project.post("/keys", json={"project": "small"}).json()

    assert [{name: key[name] for name in bounds} for key in made] == [bounds, bounds]
    assert (beside["models"], beside["lanes"]) == (None, None)


def test_an_admin_is_not_bound_by_what_its_own_tenant_may_use(server: AdminServer) -> None:
    server.accounts.create_tenant("ops", models=["small"], lanes=["batch"])
    with server.as_role("admin", "ops") as client:
        made = client.post("/keys", json={"tenant": "acme", "models": ["large"], "lanes": ["interactive"]})

    assert made.status_code == 201


def test_a_key_to_the_admin_api_does_not_outlive_its_maker(server: AdminServer) -> None:
    ends_at = 4_000_000_000
    eternal = _id(server, server.key("manager", "acme", name="eternal"))
    with server.as_role("manager", "acme", expires_at=ends_at) as client:
        replies = [
            client.post("/keys", json={"role": "manager"}),
            client.post("/keys", json={"role": "manager", "expires_at": ends_at + 1}),
            client.post(f"/keys/{eternal}/rotate"),
            client.post("/keys", json={"role": "manager", "expires_at": ends_at}),
            client.post("/keys", json={"role": "user"}),
        ]

    assert [reply.status_code for reply in replies] == [403, 403, 403, 201, 201]


def test_a_key_of_the_config_has_the_role_that_the_config_gives_it(serve: Serve) -> None:
    static = (StaticKey(key="root-of-all", role="admin"), StaticKey(key="just-a-user"))
    server = serve(auth=AuthOptions(key=static))
    with server.client("root-of-all") as admin, server.client("just-a-user") as user:
        made = admin.post("/keys", json={"tenant": "acme"})

        assert made.status_code == 201
        assert is_refused(user.get("/keys"))


def _id(server: AdminServer, secret: str) -> str:
    rows = server.accounts.keys("acme")
    return next(row.id for row in rows if row.hint.endswith(secret[-4:]))
