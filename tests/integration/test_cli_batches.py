"""`laneway batches`: how far the batches of all tenants are, and the end of one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.batches import Batches, Wish
from gateway.events import Line
from gateway.files import FileOptions, Files
from gateway.store import Store, StoreOptions
from gateway.virtual_keys import VirtualKey
from tests.integration.commands import Commands, one_line


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    config = tmp_path / "laneway.toml"
    config.write_text('[store]\nurl = "sqlite:///laneway.db"\n')
    return Commands(config)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store.open(StoreOptions(url=f"sqlite:///{tmp_path}/laneway.db"))) as store:
        yield store


def made(store: Store, tenant: str) -> str:
    """A batch with four lines, of which one is done."""
    files = Files(store, FileOptions())
    with closing(files.draft()) as draft:
        draft.write(b"{}")
        draft.finish()
        file = files.keep(draft, tenant, filename="a.jsonl", purpose="batch")
    batches = Batches(store, files)
    wish = Wish(endpoint="/v1/chat/completions", input_file_id=file.id)
    batch = batches.create(VirtualKey(id="key", tenant=tenant), wish)
    batches.move(batch.id, "in_progress", total=4)
    batches.keep_line(Line(batch_id=batch.id, number=2, request_id="r", status=400, body=b"{}"))
    return batch.id


def test_batches_of_all_tenants_or_of_one_are_listed_with_how_far_they_are(commands: Commands, store: Store) -> None:
    ids = [made(store, "acme"), made(store, "rival")]

    rows = commands.json("batches", "list")

    assert [(row["id"], row["tenant"], row["total"], row["failed"]) for row in rows] == [
        (ids[1], "rival", 4, 1),
        (ids[0], "acme", 4, 1),
    ]
    assert [row["id"] for row in commands.json("batches", "list", "--tenant", "acme")] == ids[:1]
    assert "25 %" in commands.run("batches", "list").out


def test_a_batch_is_shown_and_cancelled_by_its_id(commands: Commands, store: Store) -> None:
    batch_id = made(store, "acme")

    shown = commands.run("batches", "show", batch_id)
    assert (shown.code, batch_id in shown.out, "in_progress" in shown.out) == (0, True, True)
    assert commands.json("batches", "cancel", batch_id)["status"] == "cancelling"
    assert commands.json("batches", "show", batch_id)["status"] == "cancelling"


def test_what_cannot_be_done_is_one_line(commands: Commands, store: Store) -> None:
    batch_id = made(store, "acme")
    Batches(store, Files(store, FileOptions())).fail(batch_id, ())

    for words in (("show", "batch_0"), ("cancel", "batch_0"), ("cancel", batch_id)):
        done = commands.run("batches", *words)
        assert (done.code, one_line(done.err)) == (1, True)
