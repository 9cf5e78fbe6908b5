"""The admin API over Postgres, from the first key to the proof of the ledger."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from gateway.store import StoreOptions
from tests.integration.admin.admin_server import Serve


def eventually(holds: Callable[[], bool]) -> None:
    """On Postgres a change reaches the server within a second."""
    give_up_at = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


def test_an_operator_gets_by_on_postgres(serve: Serve, postgres_url: str, tmp_path: Path) -> None:
    server = serve(StoreOptions(url=postgres_url, spool=str(tmp_path / "spool.db")))
    with server.client() as anybody:
        assert anybody.get("/keys").status_code == 403
        first = server.key("admin", "ops")
        eventually(lambda: anybody.get("/keys").status_code == 401)
    with server.client(first) as admin:
        eventually(lambda: admin.get("/keys").status_code == 200)
        made = admin.post("/keys", json={"tenant": "acme", "role": "manager", "rpm": 7}).json()
        limit = {"scope_kind": "key", "scope_id": made["id"], "meter": "usd", "amount": 10**9}
        assert admin.put("/limits", json=limit).status_code == 200
        assert admin.put("/limits", json={**limit, "scope_id": "no\x00pe"}).status_code == 400
        assert admin.get("/usage", params={"tenant": "\x00"}).status_code == 400
        assert admin.get("/usage", params={"by": "tenant,day"}).json() == []
        assert admin.post("/ledger/verify").json()["findings"] == []
        assert [row["action"] for row in admin.get("/audit?limit=2").json()["data"]] == ["limit.set", "limit.set"]
        with server.client(made["key"]) as manager:
            eventually(lambda: manager.get("/keys").status_code == 200)
            assert [row["id"] for row in manager.get("/keys").json()["data"]] == [made["id"]]
            eventually(lambda: len(manager.get("/limits/state").json()["data"]) == 2)
            admin.delete(f"/keys/{made['id']}")
            eventually(lambda: manager.get("/keys").status_code == 401)
        assert admin.get("/state").json()["dialect"] == "postgresql"
