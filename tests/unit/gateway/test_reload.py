"""A changed configuration: what differs, what takes effect, and the way to a front."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest

from backends.errors import ConfigError
from gateway.config import Settings, load_settings
from gateway.reload import Change, Reload, Reloads, changes, flatten, with_live

BASE = """
[server]
port = 8000
[[auth.key]]
key = "first-secret"
tenant = "acme"
[lanes.batch]
max_queue = 10
[backends.test]
type = "scripted"
models = ["a", "b"]
"""


def settings(tmp_path: Path, toml: str) -> Settings:
    file = tmp_path / "laneway.toml"
    file.write_text(toml, encoding="utf-8")
    return load_settings(file, environ={})


def test_changes_are_named_whole_and_say_whether_they_take_effect(tmp_path: Path) -> None:
    before = settings(tmp_path, BASE)
    after = settings(
        tmp_path,
        BASE.replace("8000", "9000").replace("max_queue = 10", "max_queue = 20").replace('["a", "b"]', '["a"]'),
    )

    assert changes(flatten(before), flatten(after)) == [
        Change(field="backends.test.models", before='["a","b"]', after='["a"]', is_live=False),
        Change(field="lanes.batch.max_queue", before="10", after="20", is_live=True),
        Change(field="server.port", before="8000", after="9000", is_live=False),
    ]


def test_a_secret_is_never_shown_but_a_change_of_it_is(tmp_path: Path) -> None:
    before = flatten(settings(tmp_path, BASE))
    after = flatten(settings(tmp_path, BASE.replace("first-secret", "other-secret")))

    (change,) = changes(before, after)
    assert change.field == "auth.key[0].key"
    assert change.is_live
    shown = json.dumps([before, after])
    assert "first-secret" not in shown
    assert "other-secret" not in shown


def test_settings_that_need_a_restart_stay_as_they_were(tmp_path: Path) -> None:
    before = settings(tmp_path, BASE)
    after = settings(
        tmp_path,
        BASE.replace("8000", "9000").replace("first-secret", "other-secret").replace("max_queue = 10", "floor = 0.2"),
    )

    live = with_live(before, after)

    assert (live.server.port, live.auth.key[0].key) == (8000, "other-secret")
    assert (live.lanes["batch"].max_queue, live.lanes["batch"].floor) == (1000, 0.05)
    assert {change.field for change in changes(flatten(live), flatten(after))} == {"server.port", "lanes.batch.floor"}


async def test_a_request_to_reload_gets_what_came_of_it(tmp_path: Path) -> None:
    found = settings(tmp_path, BASE)
    asked: list[str] = []
    reloads = Reloads(lambda: asked.append("asked"))
    applied: list[Settings] = []
    change = Change(field="x", before="1", after="2", is_live=True)

    def apply(new: Settings) -> list[Change]:
        applied.append(new)
        return [change]

    reloads.start(apply)
    waiting = asyncio.create_task(reloads.request())
    await asyncio.sleep(0)
    line = msgspec.json.encode(Reload(settings=found, pending=("server.port",)))
    await asyncio.to_thread(reloads.receive, line)

    done = await waiting
    assert (asked, applied) == (["asked"], [found])
    assert (done.changed, done.pending) == ((change,), ("server.port",))


async def test_a_configuration_that_is_wrong_is_told_and_changes_nothing() -> None:
    reloads = Reloads(lambda: None)
    reloads.start(lambda _: pytest.fail("applied"))
    waiting = asyncio.create_task(reloads.request())
    await asyncio.sleep(0)
    reloads.receive(msgspec.json.encode(Reload(error="server.port: 70000 is out of range")))

    with pytest.raises(ConfigError, match="70000"):
        await waiting


async def test_without_a_parent_there_is_nobody_to_read_it() -> None:
    with pytest.raises(ConfigError, match="laneway serve"):
        await Reloads().request()
