"""What operators read through the admin API: pages, usage, requests, limits, ledger, state, settings."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from backends.errors import ConfigError
from backends.types import Usage
from gateway.api.admin.config import HIDDEN, without_secrets
from gateway.cli.main import app
from gateway.ledger import End, Opening
from gateway.limits import Demand, LimitOptions
from gateway.request_id import new_id
from gateway.tenants import AuthOptions, StaticKey, VirtualKey
from tests.integration.admin.admin_server import AdminServer, Serve

USED = Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=40)


@pytest.fixture
def admin(server: AdminServer) -> Iterator[httpx.Client]:
    with server.as_role("admin", "ops") as client:
        yield client


def opening(tenant: str, request_id: str | None = None, **more: Any) -> Opening:
    return Opening(
        request_id=request_id or new_id(),
        tenant=tenant,
        project="default",
        key_id="key_x",
        model="scripted",
        route="chat",
        lane="standard",
        prompt_tokens=100,
        completion_tokens=50,
        **more,
    )


def settle(server: AdminServer, tenant: str, **more: Any) -> str:
    """One request from beginning to end; its id."""
    price = server.accounts.set_price("scripted", 50_000, 100_000, 50_000)
    made = opening(tenant, price_version=price.version, **more)

    async def work() -> None:
        entry = server.ledger.admit(made)
        entry.attempt("test", 0.005)
        entry.usage = USED
        await entry.settle(End(outcome="ok", source="reported", usage=USED, cost_nano=7, wait_ms=5, total_ms=30))

    server.in_loop(work)
    return made.request_id


def admit(server: AdminServer, tenant: str) -> str:
    """A request that goes on."""
    made = opening(tenant)

    async def work() -> None:
        server.ledger.admit(made).attempt("test", 0.0)
        await server.ledger.durable()

    server.in_loop(work)
    return made.request_id


def pages(client: httpx.Client, path: str, size: int) -> list[list[dict[str, Any]]]:
    """All pages of a list."""
    found, after = [], None
    while True:
        params = {"limit": size} if after is None else {"limit": size, "after": after}
        page = client.get(path, params=params).json()
        found.append(page["data"])
        after = page["next"]
        if after is None:
            return found


@pytest.mark.parametrize("path", ["/keys", "/limits", "/limits/state", "/tenants", "/audit", "/prices"])
def test_pages_join_to_the_whole_list(server: AdminServer, admin: httpx.Client, path: str) -> None:
    for number in range(4):
        server.key("user", f"tenant-{number}", rpm=9)
        server.accounts.set_price(f"model-{number}", 1, 1, 1)
    whole = admin.get(path, params={"limit": 1000}).json()

    cut = pages(admin, path, 3)

    assert whole["next"] is None
    assert [row for page in cut for row in page] == whole["data"]
    assert [len(page) for page in cut[:-1]] == [3] * (len(cut) - 1)


def test_a_key_that_goes_away_between_two_pages_takes_no_other_along(serve: Serve) -> None:
    server = serve(auth=AuthOptions(key=(StaticKey(key="root-of-all", role="admin"),)))
    for _ in range(5):
        server.key("user", "acme")
    with server.client("root-of-all") as admin:
        first = admin.get("/keys", params={"limit": 3}).json()
        admin.delete(f"/keys/{first['data'][-1]['id']}")
        rest = admin.get("/keys", params={"after": first["next"]}).json()

    assert len({row["id"] for row in first["data"] + rest["data"]}) == 5


def test_usage_is_what_the_command_says(server: AdminServer, admin: httpx.Client, tmp_path: Any) -> None:
    for tenant in ("acme", "acme", "other"):
        settle(server, tenant)
    config = tmp_path / "laneway.toml"
    config.write_text(f'[store]\nurl = "{server.store.options.url}"\n', encoding="utf-8")
    server.writer.flush(20)
    said = CliRunner().invoke(app, ["usage", "--by", "tenant,model", "--json", "--config", str(config)])

    told = admin.get("/usage", params={"by": "tenant,model"}).json()

    assert told == json.loads(said.stdout)
    assert told[0] == {
        "tenant": "acme",
        "model": "scripted",
        "requests": 2,
        "prompt_tokens": 200,
        "completion_tokens": 40,
        "cached_tokens": 80,
        "reasoning_tokens": 0,
        "cost_nano_usd": 14,
    }


def test_usage_is_restricted_by_every_dimension_and_by_time(server: AdminServer, admin: httpx.Client) -> None:
    settle(server, "acme")
    settle(server, "other")

    def total(**params: str) -> int:
        return sum(row["requests"] for row in admin.get("/usage", params=params).json())

    assert total() == 2
    assert total(tenant="acme", key="key_x", model="scripted", lane="standard", outcome="ok", source="reported") == 1
    assert total(by="day", until="2020-01-01", since="2019-01-01") == 0
    assert total(outcome="crash") == 0


def test_a_manager_sees_the_usage_of_its_tenant(server: AdminServer) -> None:
    settle(server, "acme")
    settle(server, "other")
    with server.as_role("manager", "acme") as manager:
        assert [row["tenant"] for row in manager.get("/usage").json()] == ["acme"]
        assert manager.get("/usage", params={"by": "model"}).json()[0]["requests"] == 1


def test_more_rows_of_usage_than_one_reply_holds_are_refused(
    server: AdminServer, admin: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for tenant in ("acme", "zeta"):
        settle(server, tenant)
    monkeypatch.setattr("gateway.api.admin.usage.MOST_ROWS", 1)
    reply = admin.get("/usage")

    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "by")
    assert "more than 1 rows" in reply.json()["error"]["message"]
    assert admin.get("/usage", params={"tenant": "acme"}).status_code == 200


def test_usage_as_csv_keeps_formulas_from_running(server: AdminServer, admin: httpx.Client) -> None:
    settle(server, "=cmd()")
    reply = admin.get("/usage", params={"format": "csv", "by": "tenant"})
    (row,) = csv.DictReader(io.StringIO(reply.text))

    assert reply.headers["content-type"].startswith("text/csv")
    assert row["requests"] == "1"
    assert not row["tenant"].startswith("=")


def test_a_request_is_explained_by_any_id_that_its_client_saw(server: AdminServer, admin: httpx.Client) -> None:
    request_id = settle(server, "acme", shown_id="my/own id")

    for shown in (request_id, f"req_{request_id}", f"chatcmpl-{request_id}", "my/own id"):
        told = admin.get(f"/requests/{shown}").json()
        assert told["request_id"] == request_id
    assert (told["outcome"], told["prompt_tokens"], told["cost_nano"]) == ("ok", 100, 7)
    assert [step["kind"] for step in told["steps"]] == ["admit", "settle"]


def test_a_request_of_another_tenant_is_explained_to_nobody_but_its_own(server: AdminServer) -> None:
    request_id = settle(server, "other")
    with server.as_role("manager", "acme") as manager, server.as_role("manager", "other") as own:
        assert manager.get(f"/requests/{request_id}").json()["error"]["code"] == "request_not_found"
        assert own.get(f"/requests/{request_id}").status_code == 200


def test_requests_in_flight_are_listed_and_counted(server: AdminServer, admin: httpx.Client) -> None:
    running = [admit(server, "acme"), admit(server, "other")]
    listed = admin.get("/requests").json()["data"]
    ledger = admin.get("/ledger/state").json()

    assert [row["request_id"] for row in listed] == sorted(running)
    assert {row["state"] for row in listed} == {"running"}
    assert [row["tenant"] for row in admin.get("/requests?tenant=other").json()["data"]] == ["other"]
    assert (ledger["open"], ledger["is_accepting"], ledger["writer"]["last_error"]) == (2, True, None)


def test_the_ledger_is_verified_on_demand(server: AdminServer, admin: httpx.Client) -> None:
    request_id = settle(server, "acme")
    clean = admin.post("/ledger/verify").json()
    with server.store.changing() as connection:
        connection.exec_driver_sql("UPDATE usage_hours SET prompt_tokens = prompt_tokens + 1")
    broken = admin.post("/ledger/verify").json()

    assert (clean["findings"], clean["checked"]["settles"]) == ([], 1)
    assert [finding["kind"] for finding in broken["findings"]] == ["hour"]
    assert request_id not in json.dumps(clean)


def test_a_budget_that_memory_counts_otherwise_than_the_store_is_a_finding(
    server: AdminServer, admin: httpx.Client
) -> None:
    made = admin.post("/keys", json={"tenant": "acme", "budget_nano": 1000}).json()

    async def charge_memory_alone() -> None:
        server.directory.freshen()
        rules = server.directory.rules(VirtualKey(id=made["id"], tenant="acme"), "scripted")
        demand = Demand(request_id="r", model="scripted", prompt_tokens=1, output_tokens=1, cost_nano=9)
        server.limits.reserve(rules, demand).settle(USED, 9)

    assert admin.post("/ledger/verify").json()["findings"] == []
    server.in_loop(charge_memory_alone)
    (finding,) = admin.post("/ledger/verify").json()["findings"]

    assert (finding["kind"], finding["expected"], finding["found"]) == ("window", "0", "9")


def test_a_check_says_what_the_limits_would_and_takes_nothing(server: AdminServer, admin: httpx.Client) -> None:
    made = admin.post("/keys", json={"tenant": "acme", "rpm": 1, "tpm": 100}).json()
    body = {"key_id": made["id"], "model": "scripted", "prompt_tokens": 60, "max_tokens": 30}
    fits = [admin.post("/limits/check", json=body).json() for _ in range(3)]
    never = admin.post("/limits/check", json={**body, "max_tokens": 50}).json()

    assert [verdict["allowed"] for verdict in fits] == [True] * 3
    assert {state["rule"]["meter"] for state in fits[0]["states"]} == {"rpm", "tpm"}
    assert (never["allowed"], never["report"]["asked"]) == (False, 110)
    assert {state["used"] for state in admin.get("/limits/state").json()["data"]} == {0}


def test_the_state_of_a_limit_is_what_is_used_and_reserved_now(server: AdminServer, admin: httpx.Client) -> None:
    made = admin.post("/keys", json={"tenant": "acme", "concurrency": 2}).json()

    async def reserve() -> None:
        server.directory.freshen()
        rules = server.directory.rules(VirtualKey(id=made["id"], tenant="acme"), "scripted")
        demand = Demand(request_id="r", model="scripted", prompt_tokens=1, output_tokens=1, cost_nano=None)
        server.limits.reserve(rules, demand)

    server.in_loop(reserve)
    (state,) = admin.get("/limits/state", params={"scope_kind": "key", "scope_id": made["id"]}).json()["data"]

    assert (state["used"], state["remaining"]) == (1, 1)


def test_limits_of_a_rotated_key_are_found_under_the_new_id_too(server: AdminServer, admin: httpx.Client) -> None:
    old = admin.post("/keys", json={"tenant": "acme", "rpm": 2}).json()
    new = admin.post(f"/keys/{old['id']}/rotate").json()

    for path in ("/limits", "/limits/state"):
        assert len(admin.get(path, params={"scope_id": new["id"]}).json()["data"]) == 1


def test_the_state_of_the_server_is_told(server: AdminServer, admin: httpx.Client) -> None:
    state = admin.get("/state").json()

    assert state["backends"].keys() == {"test"}
    assert state["lanes"].keys() == {"interactive", "standard", "batch"}
    assert state["dialect"] == "sqlite"
    assert state["uptime_s"] >= 0


CANARY = "canary-1f3a"


def test_the_settings_are_told_without_a_secret(serve: Serve) -> None:
    server = serve(
        auth=AuthOptions(keys=(f"{CANARY}-1",), key=(StaticKey(key=f"{CANARY}-2", tenant="ops", role="admin"),)),
        limits=LimitOptions(webhook_url=f"https://hooks.example/{CANARY}", webhook_secret=CANARY),
    )
    with server.client(f"{CANARY}-2") as admin:
        reply = admin.get("/config")
    told = reply.json()

    assert CANARY not in reply.text
    assert told["auth"]["keys"] == [HIDDEN]
    assert (told["auth"]["key"][0]["tenant"], told["auth"]["key"][0]["key"]) == ("ops", HIDDEN)
    assert told["limits"]["webhook_url"] == HIDDEN
    assert told["backends"]["test"]["type"] == "scripted"


@pytest.mark.parametrize(
    "backend",
    [
        {"key": CANARY},
        {"api_key": CANARY},
        {"api_keys": [CANARY]},
        {"headers": {"Authorization": CANARY}},
        {"headers": {"X-Custom": [CANARY]}},
        {"secret": {"value": CANARY}},
        {"url": f"http://user:{CANARY}@host/v1"},
        {"url": f"http://{CANARY}@host/v1"},
        {"url": f"http://host/v1?api-version=1&sig={CANARY}"},
        {"urls": [f"postgresql://host/db?user=x&password={CANARY}"]},
        {"nested": {"list": [{"token": CANARY}]}},
        {"password": 12345, "hf_token": CANARY},
    ],
)
def test_no_secret_of_a_backend_of_any_kind_is_shown(backend: dict[str, Any]) -> None:
    told = json.dumps(without_secrets({"backends": {"monkey": {"type": "x", "model": "org/m", **backend}}}))

    assert CANARY not in told
    assert "12345" not in told
    assert "org/m" in told


def test_what_is_no_secret_is_shown() -> None:
    plain = {
        "server": {"tls_key": "/etc/key.pem", "port": 8000, "host": "::1"},
        "store": {"url": "sqlite:////var/lib/laneway.db", "pepper_file": "/etc/pepper"},
        "backends": {"gpu": {"key_env": "GPU_KEY", "url": "http://127.0.0.1:8001/v1", "max_batched_tokens": 2048}},
    }

    assert without_secrets(plain) == plain


def test_a_reload_tells_what_changed_without_secrets(serve: Serve) -> None:
    async def reload() -> dict[str, Any]:
        changed = [
            {"field": "auth.keys", "before": "secret:0123456789ab", "after": f'["{CANARY}"]', "is_live": True},
            {"field": "lanes.batch.max_queue", "before": "1000", "after": "5", "is_live": True},
            {"field": "store.url", "before": None, "after": f'"postgresql://h/d?password={CANARY}"', "is_live": False},
            {"field": "store.spool", "before": None, "after": f'"file://h/d?pw={CANARY}"', "is_live": False},
        ]
        return {"changed": changed, "pending": ["store.url"]}

    server = serve(reload=reload)
    with server.as_role("admin") as admin:
        reply = admin.post("/config/reload")
    told = {change["field"]: (change["before"], change["after"]) for change in reply.json()["changed"]}

    assert CANARY not in reply.text and "0123456789ab" not in reply.text
    assert told["lanes.batch.max_queue"] == ("1000", "5")
    assert told["store.url"] == (None, f'"{HIDDEN}"')
    assert told["store.spool"] == (None, '"file://h/d"')
    assert reply.json()["pending"] == ["store.url"]
    assert server.accounts.audit(limit=1)[0].action == "config.reload"


def test_a_configuration_that_is_wrong_is_told_and_changes_nothing(serve: Serve) -> None:
    async def reload() -> dict[str, Any]:
        raise ConfigError("lanes.batch.max_queue: -1 is out of range; allowed: >= 0")

    server = serve(reload=reload)
    with server.as_role("admin") as admin:
        reply = admin.post("/config/reload")

    assert (reply.status_code, reply.json()["error"]["code"]) == (409, "invalid_config")
    assert "max_queue" in reply.json()["error"]["message"]


def test_no_reply_of_the_admin_api_is_kept_by_a_cache(admin: httpx.Client) -> None:
    for path in ("/keys", "/state", "/usage?format=csv"):
        assert admin.get(path).headers["cache-control"] == "no-store"
