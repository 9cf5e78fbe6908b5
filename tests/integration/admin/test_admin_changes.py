"""What operators change through the admin API: accounts, keys, limits, prices; each with its audit row."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx
import pytest

from tests.integration.admin.admin_server import AdminServer, Serve


@pytest.fixture
def admin(server: AdminServer) -> Iterator[httpx.Client]:
    with server.as_role("admin", "ops") as client:
        yield client


def last_change(server: AdminServer) -> tuple[str, str, str]:
    row = server.accounts.audit(limit=1)[0]
    return row.actor, row.action, row.target


def admin_id(server: AdminServer) -> str:
    return next(row.id for row in server.accounts.keys("ops") if row.role == "admin")


def test_a_tenant_is_made_changed_and_ended(server: AdminServer, admin: httpx.Client) -> None:
    made = admin.post("/tenants", json={"name": "acme", "weight": 2, "models": ["m"]})
    changed = admin.patch("/tenants/acme", json={"time_zone": "Europe/Berlin", "models": None})
    ended = admin.delete("/tenants/acme")

    assert made.status_code == 201
    assert {name: made.json()[name] for name in ("weight", "models", "lanes")} == {
        "weight": 2.0,
        "models": ["m"],
        "lanes": None,
    }
    assert {name: changed.json()[name] for name in ("weight", "time_zone", "models")} == {
        "weight": 2.0,
        "time_zone": "Europe/Berlin",
        "models": None,
    }
    assert ended.json()["ended_at"] is not None
    assert [row["name"] for row in admin.get("/tenants").json()["data"]] == ["ops"]
    assert [row["name"] for row in admin.get("/tenants?ended=true").json()["data"]] == ["acme", "ops"]


def test_every_change_is_audited_under_the_key_that_made_it(server: AdminServer, admin: httpx.Client) -> None:
    me, seen = admin_id(server), []

    def change(method: str, path: str, body: Any = None) -> Any:
        reply = admin.request(method, path, json=body)
        assert reply.is_success, reply.text
        seen.append(last_change(server))
        return reply.json()

    change("POST", "/tenants", {"name": "acme"})
    change("PATCH", "/tenants/acme", {"weight": 3})
    change("POST", "/tenants/acme/projects", {"name": "web"})
    key = change("POST", "/keys", {"tenant": "acme", "project": "web"})["id"]
    limit = change(
        "PUT",
        "/limits",
        {"scope_kind": "key", "scope_id": key, "meter": "tokens", "amount": 10, "period": "prepaid"},
    )["id"]
    change("POST", f"/limits/{limit}/top-up", {"amount": 5})
    change("DELETE", f"/limits/{limit}")
    change("POST", f"/keys/{key}/rotate", {"overlap_s": 60})
    change("DELETE", f"/keys/{key}")
    change("PUT", "/prices", {"model": "m", "prompt_nano": 1, "completion_nano": 2, "cached_nano": 0})
    change("DELETE", "/tenants/acme/projects/web")
    change("DELETE", "/tenants/acme")

    assert {actor for actor, _, _ in seen} == {me}
    assert [action for _, action, _ in seen] == [
        *("tenant.create", "tenant.change", "project.create", "key.create", "limit.set", "limit.top_up"),
        *("limit.end", "key.rotate", "key.revoke", "price.set", "project.end", "tenant.end"),
    ]
    assert [target for _, _, target in seen][3:7] == [key, limit, limit, limit]
    listed = admin.get("/audit?limit=12").json()["data"]
    assert [(row["actor"], row["action"], row["target"]) for row in reversed(listed)] == seen


def test_a_refused_change_leaves_no_audit_row(server: AdminServer, admin: httpx.Client) -> None:
    before = server.accounts.audit()

    assert admin.post("/tenants", json={"name": "no spaces please"}).status_code == 400
    assert admin.post("/tenants", json={"name": "ops"}).status_code == 409
    assert server.accounts.audit() == before


def test_a_key_comes_with_its_limits_and_has_the_shape_of_the_command(server: AdminServer, admin: httpx.Client) -> None:
    made = admin.post(
        "/keys",
        json={
            "tenant": "acme",
            "project": "web",
            "name": "CI",
            "rpm": 60,
            "tpm": 1000,
            "concurrency": 2,
            "budget_nano": 5_000_000_000,
            "budget_period": "day",
            "expires_at": 4_000_000_000,
        },
    )
    limits = admin.get(f"/limits?scope_kind=key&scope_id={made.json()['id']}").json()["data"]

    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    assert {"id", "key", "tenant", "project", "name"} < made.json().keys()
    assert {row["meter"]: (row["amount"], row["period"]) for row in limits} == {
        "rpm": (60, None),
        "tpm": (1000, None),
        "concurrency": (2, None),
        "usd": (5_000_000_000, "day"),
    }


def test_both_keys_work_while_a_rotation_overlaps(server: AdminServer, admin: httpx.Client) -> None:
    old = admin.post("/keys", json={"tenant": "acme", "role": "viewer"}).json()
    new = admin.post(f"/keys/{old['id']}/rotate", json={"overlap_s": 600}).json()

    assert (new["replaces"], new["role"], new["scope_id"]) == (old["id"], "viewer", old["id"])
    for secret in (old["key"], new["key"]):
        with server.client(secret) as client:
            assert client.get("/keys").status_code == 200
    assert admin.post(f"/keys/{old['id']}/rotate").status_code == 409


def test_a_secret_is_in_the_reply_that_makes_it_and_nowhere_else(serve: Serve, tmp_path: Any) -> None:
    server = serve()
    with server.as_role("admin", "ops") as admin:
        made = admin.post("/keys", json={"tenant": "acme", "name": "x"}).json()
        rotated = admin.post(f"/keys/{made['id']}/rotate").json()
        secrets = [made["key"], rotated["key"]]
        paths = (
            *("/keys?ended=true", f"/keys/{made['id']}", f"/keys/{rotated['id']}", "/audit", "/limits", "/usage"),
            *("/tenants", "/state", "/config", "/ledger/state", "/limits/state", "/requests", "/prices"),
        )
        later = [admin.get(path) for path in paths]
        later += [admin.delete(f"/keys/{made['id']}"), admin.post(f"/keys/{made['id']}/rotate")]

    assert all(secret.startswith("lw-") and len(secret) == 41 for secret in secrets)
    for secret in secrets:
        assert [reply.url for reply in later if secret[3:35] in reply.text] == []
        assert [place for place, value in every_value(tmp_path / "laneway.db") if secret.encode()[3:35] in value] == []
        for file in tmp_path.iterdir():
            assert not file.is_file() or secret.encode()[3:35] not in file.read_bytes()


def every_value(path: Any) -> Iterator[tuple[str, bytes]]:
    """All columns of all tables."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        for table in tables:
            for row in connection.execute(f'SELECT * FROM "{table}"'):
                yield from ((table, value if isinstance(value, bytes) else str(value).encode()) for value in row)


def test_a_limit_that_is_set_again_keeps_its_id(server: AdminServer, admin: httpx.Client) -> None:
    admin.post("/tenants", json={"name": "acme"})
    body = {"scope_kind": "tenant", "scope_id": "acme", "meter": "usd", "amount": 7, "mode": "soft"}
    first, second = admin.put("/limits", json=body).json(), admin.put("/limits", json={**body, "amount": 9}).json()

    assert (first["id"], first["period"]) == (second["id"], "month")
    assert [(row["amount"], row["mode"]) for row in admin.get("/limits").json()["data"]] == [(9, "soft")]


def test_credit_is_added_to_prepaid_budgets_only(server: AdminServer, admin: httpx.Client) -> None:
    admin.post("/tenants", json={"name": "acme"})
    body = {"scope_kind": "tenant", "scope_id": "acme", "meter": "usd", "amount": 7}
    prepaid = admin.put("/limits", json={**body, "period": "prepaid"}).json()["id"]
    monthly = admin.put("/limits", json=body).json()["id"]

    assert admin.post(f"/limits/{prepaid}/top-up", json={"amount": 3}).json()["amount"] == 10
    assert admin.post(f"/limits/{monthly}/top-up", json={"amount": 3}).status_code == 409


def test_a_new_price_has_a_new_version(server: AdminServer, admin: httpx.Client) -> None:
    body = {"model": "m", "prompt_nano": 150_000_000, "completion_nano": 600_000_000, "cached_nano": 75_000_000}
    first, second = (admin.put("/prices", json={**body, "cached_nano": cached}).json() for cached in (1, 2))

    assert second["version"] > first["version"]
    assert admin.get("/prices").json()["data"] == [second]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "param", "code"),
    [
        ("POST", "/keys", {}, 400, "tenant", "missing_required_parameter"),
        ("POST", "/keys", {"tenant": "acme", "rmp": 5}, 400, "rmp", "unknown_parameter"),
        ("POST", "/keys", {"tenant": "acme", "role": "root"}, 400, "role", "invalid_value"),
        ("POST", "/keys", {"tenant": "acme", "rpm": 0}, 400, "rpm", "integer_below_min_value"),
        ("POST", "/keys", {"tenant": "acme", "rpm": "5"}, 400, "rpm", "invalid_type"),
        ("POST", "/keys", {"tenant": "acme", "lanes": ["fast"]}, 400, "lanes", "invalid_value"),
        ("POST", "/keys", {"tenant": "acme", "default_lane": "fast"}, 400, "default_lane", "invalid_value"),
        ("POST", "/keys", {"tenant": "acme", "expires_at": 5}, 400, "expires_at", "invalid_value"),
        ("POST", "/keys", {"tenant": "acme", "models": [""]}, 400, "models[0]", "string_below_min_length"),
        ("POST", "/keys", {"tenant": "../etc"}, 400, "tenant", "invalid_value"),
        ("POST", "/keys", {"tenant": "acme", "budget_nano": 1, "budget_period": "x"}, 400, "budget_period", None),
        ("POST", "/keys", {"tenant": "acme", "budget_period": "day"}, 400, "budget_period", None),
        ("POST", "/tenants", {"name": "a" * 300}, 400, "name", "string_above_max_length"),
        ("PATCH", "/tenants/ops", {"weight": -1}, 400, "weight", "decimal_below_min_value"),
        ("PATCH", "/tenants/ops", {"weight": None}, 400, "weight", "invalid_type"),
        ("PATCH", "/tenants/ops", {"time_zone": "Mars/Olympus"}, 400, "time_zone", "invalid_value"),
        ("PATCH", "/tenants/none", {"weight": 1}, 404, None, "tenant_not_found"),
        ("POST", "/tenants", {"name": "ops"}, 409, "name", "conflict"),
        ("GET", "/keys/none", None, 404, None, "key_not_found"),
        ("DELETE", "/limits/none", None, 404, None, "limit_not_found"),
        ("PUT", "/limits", {"scope_kind": "key", "scope_id": "none", "meter": "rpm", "amount": 1}, 404, None, None),
        ("PUT", "/limits", {"scope_kind": "team", "scope_id": "x"}, 400, "meter", "missing_required_parameter"),
        ("POST", "/limits/check", {"key_id": "none", "model": "m", "prompt_tokens": 1}, 400, "max_tokens", None),
        ("PUT", "/prices", {"model": "m", "prompt_nano": 1, "completion_nano": 2}, 400, "cached_nano", None),
        ("GET", "/keys?limit=5000", None, 400, "limit", "integer_above_max_value"),
        ("GET", "/keys?limit=many", None, 400, "limit", "invalid_type"),
        ("GET", "/keys?limit=1&limit=2", None, 400, "limit", None),
        ("GET", "/keys?tenent=acme", None, 400, "tenent", "unknown_parameter"),
        ("GET", "/state?verbose=1", None, 400, "verbose", "unknown_parameter"),
        ("GET", "/usage?by=color", None, 400, "by", None),
        ("GET", "/usage?since=yesterday", None, 400, "since", "invalid_value"),
        ("GET", "/usage?until=-", None, 400, "until", "invalid_value"),
        ("GET", "/usage?format=xml", None, 400, "format", "invalid_value"),
        ("GET", "/requests/none", None, 404, None, "request_not_found"),
    ],
)
def test_an_error_names_the_field(
    shared_admin: httpx.Client, method: str, path: str, body: Any, status: int, param: str | None, code: str | None
) -> None:
    reply = shared_admin.request(method, path, json=body)
    error = reply.json()["error"]

    assert (reply.status_code, error["param"]) == (status, param), reply.text
    assert code in (None, error["code"]), reply.text


def test_bodies_are_bounded_and_must_be_objects(shared_admin: httpx.Client) -> None:
    long = b'{"name": "%s"}' % (b"x" * 65536)

    assert shared_admin.post("/tenants", content=long).status_code == 413
    assert shared_admin.post("/tenants", content=b"[]").status_code == 400
    assert shared_admin.post("/tenants", content=b'{"name": ').status_code == 400
    assert shared_admin.post("/tenants", content=b'{"a":' * 5000).status_code == 400


@pytest.mark.parametrize("text", ["' OR 1=1 --", '"; DROP TABLE keys; --', "%", "_", "\\", "\x00", "é" * 50, "%_%_%"])
def test_no_text_is_taken_for_a_statement_or_a_pattern(shared_admin: httpx.Client, text: str) -> None:
    replies = [
        shared_admin.get("/keys", params={"tenant": text}),
        shared_admin.get("/keys", params={"after": text}),
        shared_admin.get("/limits", params={"scope_id": text}),
        shared_admin.get("/usage", params={"tenant": text}),
        shared_admin.post("/tenants", json={"name": text}),
        shared_admin.put("/limits", json={"scope_kind": "tenant", "scope_id": text, "meter": "rpm", "amount": 1}),
    ]

    assert {reply.status_code for reply in replies} <= {200, 400, 404}
    assert [reply.json()["data"] for reply in replies[:1] if reply.is_success] in ([], [[]])
    assert replies[4].status_code == 400
    assert len(shared_admin.get("/keys").json()["data"]) == 1
