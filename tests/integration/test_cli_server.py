"""The commands on the store of a running server, which counts in memory what they read from the store."""

from __future__ import annotations

import json
import signal
import socket
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from sqlalchemy import update

from gateway.config import load_settings
from gateway.store import Store
from gateway.tables import budget_windows
from tests.integration.commands import Commands, one_line
from tests.integration.served import IN_TIME_S, Serve, eventually

TENANTS = """
[server]
port = 0
[store]
url = "sqlite:///laneway.db"
[backends.test]
type = "scripted"
models = ["scripted"]
"""


HELLO = [{"role": "user", "content": "hello there"}]


def chat(address: str, key: str) -> httpx.Response:
    """Two words in, two words out."""
    body = {"model": "scripted", "messages": HELLO}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{address}/v1/chat/completions", json=body, headers=headers, timeout=IN_TIME_S)


def test_a_key_made_beside_a_running_server_works_at_once_until_it_is_revoked(serve: Serve) -> None:
    served = serve(TENANTS)
    commands = Commands(served.config)
    key = commands.json("keys", "create", "--tenant", "acme", "--name", "ci")

    answered = chat(served.address, key["key"])
    commands.json("keys", "revoke", key["id"])
    refused = chat(served.address, key["key"])

    assert (answered.status_code, refused.status_code) == (200, 401)
    told = commands.json("explain", answered.json()["id"])
    assert (told["key_id"], told["outcome"], told["completion_tokens"]) == (
        key["id"],
        "ok",
        answered.json()["usage"]["completion_tokens"],
    )


def test_verify_asks_the_running_server_what_it_counts(serve: Serve) -> None:
    served = serve(TENANTS)
    commands = Commands(served.config)
    key = commands.json("keys", "create", "--tenant", "acme", "--name", "ci")
    commands.json("limits", "set", "--tenant", "acme", "--token-budget", 1000)
    for _ in range(3):
        assert chat(served.address, key["key"]).status_code == 200

    clean = commands.json("ledger", "verify")
    store = Store.open(load_settings(served.config).store)
    with store.changing() as connection:
        connection.execute(update(budget_windows).values(used=budget_windows.c.used + 1))
    store.close()
    dirty = commands.run("ledger", "verify", "--json")

    assert (clean["findings"], clean["checked"]["windows"]) == ([], 1)
    assert dirty.code == 1
    # The store contradicts its own events, and the server's memory.
    assert [finding["kind"] for finding in dirty.document["findings"]] == ["window", "window"]


def test_a_limit_set_beside_a_running_server_counts_what_was_used_before(serve: Serve) -> None:
    served = serve(TENANTS)
    commands = Commands(served.config)
    key = commands.json("keys", "create", "--tenant", "acme", "--name", "ci")["key"]
    used = chat(served.address, key).json()["usage"]["total_tokens"]

    commands.json("limits", "set", "--tenant", "acme", "--token-budget", used)
    (shown,) = commands.json("limits", "show", "--tenant", "acme")

    assert shown["used"] == used
    assert chat(served.address, key).status_code == 429


def test_a_dry_run_says_what_would_refuse_and_takes_nothing(serve: Serve) -> None:
    served = serve(TENANTS)
    commands = Commands(served.config)
    key = commands.json("keys", "create", "--tenant", "acme", "--name", "ci", "--rpm", 1, "--tpm", 100)
    asked = ("limits", "check", "--key", key["id"], "--model", "scripted")

    fits = commands.json(*asked, "--prompt-tokens", 40, "--max-tokens", 60)
    never = commands.run(*asked, "--prompt-tokens", 41, "--max-tokens", 60, "--json")
    answered = chat(served.address, key["key"])
    spent = commands.run(*asked)

    assert fits["allowed"]
    assert (never.code, never.document["report"]["meter"], never.document["report"]["retry_after_s"]) == (
        1,
        "tpm",
        None,
    )
    assert answered.status_code == 200
    assert (spent.code, "it would be refused: Rate limit reached" in spent.err) == (1, True)


def test_a_dry_run_tells_of_a_key_that_is_not_there_and_of_a_model_that_is_not_its_own(serve: Serve) -> None:
    served = serve(TENANTS)
    commands = Commands(served.config)
    key = commands.json("keys", "create", "--tenant", "acme", "--name", "ci", "--models", "other")

    unknown = commands.run("limits", "check", "--key", "key_unknown", "--model", "scripted")
    foreign = commands.run("limits", "check", "--key", key["id"], "--model", "scripted")

    assert (unknown.code, one_line(unknown.err), "key_unknown" in unknown.err) == (1, True, True)
    assert (foreign.code, foreign.out, one_line(foreign.err)) == (1, "", True)
    assert "may not use the model 'scripted'" in foreign.err


def test_top_shows_lanes_limits_and_requests_in_flight(serve: Serve) -> None:
    served = serve(TENANTS)
    commands = Commands(served.config)
    key = commands.json("keys", "create", "--tenant", "acme", "--name", "ci", "--rpm", 7)
    script = {"tokens": ["a"], "first_delay_s": 60}
    body = json.dumps({"model": "scripted", "stream": True, "messages": HELLO, "script": script}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key['key']}\r\n"
    port = urlsplit(served.address).port
    with socket.create_connection(("127.0.0.1", port or 0), IN_TIME_S) as caller:
        caller.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        eventually(lambda: bool(commands.json("top")["requests"]), "in flight")
        state = commands.json("top")
        shown = commands.run("top", "--once", terminal=True)

    (entry,) = state["requests"]
    assert (entry["tenant"], entry["key_id"], state["lanes"]["standard"]["running"]) == ("acme", key["id"], 1)
    assert [limit["used"] + limit["reserved"] for limit in state["limits"]] == [1]
    for words in ("standard", "key:" + key["id"], "1 in flight: acme 1"):
        assert words in shown.out


def test_without_a_server_there_is_nothing_to_watch(tmp_path: Path) -> None:
    config = tmp_path / "laneway.toml"
    config.write_text(TENANTS)
    commands = Commands(config)

    for arguments in (("top",), ("config", "diff"), ("config", "reload")):
        done = commands.run(*arguments)
        assert (done.code, one_line(done.err)) == (1, True)
        assert "no server on this machine" in done.err


def test_a_changed_file_differs_until_it_is_reloaded(serve: Serve) -> None:
    served = serve(TENANTS)
    commands = Commands(served.config)
    same = commands.json("config", "diff")
    served.config.write_text(TENANTS.replace("port = 0", 'port = 0\nlog_level = "debug"\nmax_body_bytes = 4096'))

    changed = commands.json("config", "diff")
    reloaded = commands.json("config", "reload")
    left = commands.json("config", "diff")
    again = commands.run("config", "reload")

    assert same == []
    assert {(change["field"], change["is_live"]) for change in changed} == {
        ("server.log_level", True),
        ("server.max_body_bytes", False),
    }
    assert [change["field"] for change in reloaded["changed"]] == ["server.log_level"]
    assert reloaded["pending"] == ["server.max_body_bytes"]
    assert [change["field"] for change in left] == ["server.max_body_bytes"]
    assert (again.code, again.out) == (0, "")
    assert again.err.splitlines() == [
        "nothing that takes effect at reload has changed",
        "after a restart: server.max_body_bytes",
    ]


def test_a_file_that_is_wrong_is_told_and_changes_nothing(serve: Serve) -> None:
    served = serve(TENANTS)
    commands = Commands(served.config)
    served.config.write_text(TENANTS.replace("port = 0", 'port = 0\nlog_level = "loud"'))

    # the command reads the file too, so the server is asked as `kill -HUP` does
    served.process.send_signal(signal.SIGHUP)
    eventually(lambda: "the configuration is not reloaded: server.log_level" in served.log, "told")

    assert commands.run("top").code == 2  # its own reading fails
    assert httpx.get(f"{served.address}/health").status_code == 200
