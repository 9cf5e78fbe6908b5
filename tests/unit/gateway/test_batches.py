"""Batches in the store: the statuses they pass through, their lines and tries, and what ends them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace
from sqlalchemy import Connection, select

from gateway import journal
from gateway.batch_input import MOST_FAULTS, BatchInput
from gateway.batch_output import BatchOutput
from gateway.batches import MOVES, Batch, Batches, Ending, Endpoint, Status, TokenSums, Tries, Wish, line_request_id
from gateway.errors import Conflict, NoSuchObject, StoreUnavailable
from gateway.events import Admitted, Detail, Kind, Line, Noted, Record, Settled
from gateway.files import FileOptions, Files, Page
from gateway.history import detail_text
from gateway.recovery import recover
from gateway.store import Store
from gateway.tables import batch_lines
from gateway.virtual_keys import VirtualKey
from tests import records

if TYPE_CHECKING:
    from tests.conftest import FakeClock

CHAT: Endpoint = "/v1/chat/completions"
KEY = VirtualKey(id="key", tenant="acme")
PATHS: dict[Status, tuple[Status, ...]] = {  # how a batch comes to a status
    "validating": (),
    "in_progress": ("in_progress",),
    "finalizing": ("in_progress", "finalizing"),
    "completed": ("in_progress", "finalizing", "completed"),
    "expired": ("in_progress", "finalizing", "expired"),
    "failed": ("failed",),
    "cancelling": ("cancelling",),
    "cancelled": ("cancelling", "cancelled"),
}


@pytest.fixture
def files(store: Store, tmp_path: Path, clock: FakeClock) -> Files:
    return Files(store, FileOptions(folder=str(tmp_path / "kept")), clock)


@pytest.fixture
def batches(store: Store, files: Files, clock: FakeClock) -> Batches:
    return Batches(store, files, clock)


@pytest.fixture
def write(store: Store) -> Iterator[Any]:
    with closing(store.raw_connection()) as connection:
        yield lambda *made: journal.commit(connection, made, store.dialect)


def line(number: int, **more: Any) -> dict[str, Any]:
    return {"custom_id": f"c{number}", "method": "POST", "url": CHAT, "body": {"model": "m"}, **more}


def keep(files: Files, content: bytes) -> str:
    with closing(files.draft()) as draft:
        draft.write(content)
        draft.finish()
        return files.keep(draft, "acme", filename="a.jsonl", purpose="batch").id


def create(batches: Batches, files: Files, num_lines: int = 3, **options: Any) -> Batch:
    content = "\n".join(json.dumps(line(number)) for number in range(1, num_lines + 1))
    wish = Wish(endpoint=CHAT, input_file_id=keep(files, content.encode()), **options)
    return batches.create(KEY, wish)


def settled(batch: Batch, number: int, attempt: int = 0, outcome: str = "ok", tokens: int = 10) -> list[Record]:
    """A try of a line from its admit to its settle."""
    request_id = line_request_id(batch.id, number, attempt)
    admit = replace(
        records.event(1, Kind.ADMIT),
        request_id=request_id,
        detail=detail_text(Detail(line=f"{batch.id}/{number}")),
    )
    settle = replace(
        admit,
        kind=Kind.SETTLE,
        outcome=outcome,
        source="reported",
        prompt_tokens=tokens,
        completion_tokens=1,
        detail="",
    )
    kept = Line(batch_id=batch.id, number=number, request_id=request_id, status=200, body=b'{"n":%d}' % number)
    return [Admitted(admit), Settled(settle, line=kept if outcome == "ok" else None)]


@pytest.mark.parametrize("status", PATHS)
def test_a_batch_moves_along_its_statuses_and_nowhere_else(
    batches: Batches, files: Files, clock: FakeClock, status: Status
) -> None:
    for wanted in PATHS:
        batch = create(batches, files)
        for step in PATHS[status]:
            batch = batches.move(batch.id, step)
        assert batch.status == status
        clock.advance(5)

        moved = batches.move(batch.id, wanted) if wanted != "validating" else batch

        is_allowed = wanted in MOVES.get(status, ())
        assert moved.status == (wanted if is_allowed else status)
        if is_allowed:
            assert getattr(moved, f"{wanted}_at") == batches.now
        assert moved.is_over == (moved.status in ("completed", "expired", "failed", "cancelled"))


@pytest.mark.parametrize("status", PATHS)
def test_only_a_batch_that_is_not_nearly_over_can_be_cancelled(batches: Batches, files: Files, status: Status) -> None:
    batch = create(batches, files)
    for step in PATHS[status]:
        batches.move(batch.id, step)

    if status in ("validating", "in_progress", "cancelling"):
        assert batches.cancel("acme", batch.id).status == "cancelling"
    else:
        with pytest.raises(Conflict, match=f"status '{status}'"):
            batches.cancel("acme", batch.id)


def test_batches_are_paged_by_id_and_belong_to_a_tenant(batches: Batches, files: Files, clock: FakeClock) -> None:
    ids = []
    for _ in range(3):
        ids.append(create(batches, files).id)
        clock.advance(1)

    first, is_more = batches.page("acme", Page(limit=2))
    rest, is_more_yet = batches.page("acme", Page(limit=2, after=first[-1].id))

    assert ([batch.id for batch in first], is_more) == ([ids[2], ids[1]], True)
    assert ([batch.id for batch in rest], is_more_yet) == ([ids[0]], False)
    assert batches.page("rival", Page(limit=2)) == ([], False)
    assert len(batches.page(None, Page(limit=9))[0]) == 3
    with pytest.raises(NoSuchObject):
        batches.find("rival", ids[0])


def test_the_answer_of_a_line_is_there_with_its_settle_and_only_of_the_first(
    batches: Batches, files: Files, write: Any
) -> None:
    batch = create(batches, files)
    batches.move(batch.id, "in_progress", total=3)
    admit, settle = settled(batch, 2)
    write(admit, settle)
    write(admit, settle)
    write(*settled(batch, 2, attempt=1))  # as two servers might

    assert batches.done_numbers(batch.id) == {2}
    (kept,) = batches.done_lines(batch.id)
    assert (kept.number, kept.request_id, kept.body) == (2, line_request_id(batch.id, 2, 0), b'{"n":2}')
    now = batches.get(batch.id)
    assert (now.total, now.completed, now.failed) == (3, 1, 0)


def test_more_lines_than_are_read_at_once_all_come_in_their_order(batches: Batches, files: Files) -> None:
    batch = create(batches, files)
    for number in range(450, 0, -1):
        batches.keep_line(Line(batch_id=batch.id, number=number, request_id="r", status=400, body=b"{}"))

    assert [kept.number for kept in batches.done_lines(batch.id)] == list(range(1, 451))


def test_tries_are_counted_from_the_ledger_and_never_of_another_batch(
    batches: Batches, files: Files, write: Any
) -> None:
    batch, other = create(batches, files), create(batches, files)
    write(*settled(batch, 1, 0, "backend_error"), *settled(batch, 1, 1, "stopped"), *settled(batch, 1, 2, "crash"))
    write(*settled(batch, 2, 0), settled(batch, 3, 4, "ok")[0], *settled(other, 9))

    assert batches.tries(batch.id) == {1: Tries(3, 2), 2: Tries(1, 0), 3: Tries(5, 0)}


def test_a_try_that_a_crash_cut_short_is_settled_with_nothing_whatever_was_noted(
    store: Store, batches: Batches, files: Files, write: Any
) -> None:
    batch = create(batches, files)
    admit = settled(batch, 1)[0]
    plain = records.admit(7)
    progress = [
        replace(event, kind=Kind.PROGRESS, seq=1, prompt_tokens=10, completion_tokens=5)
        for event in (admit.event, plain.event)
    ]
    write(admit, plain, *map(Noted, progress))

    found = {event.request_id: event for event in recover(store, dead={"run"})}

    cut, other = found[admit.event.request_id], found[plain.event.request_id]
    assert (cut.outcome, cut.prompt_tokens, cut.completion_tokens, cut.source) == ("crash", 0, 0, "none")
    assert (other.outcome, other.prompt_tokens, other.completion_tokens) == ("crash", 10, 5)


class AwayAtTheEnd(Batches):
    """As if the store went away before the commit."""

    def end(self, connection: Connection, batch_id: str, status: Status, ending: Ending) -> bool:
        super().end(connection, batch_id, status, ending)
        raise StoreUnavailable("away")


def ends_as(batches: Batches, store: Store, files: Files, batch: Batch) -> Batch:
    output = BatchOutput(store, batches, files)
    output.end(batch, BatchInput(files.path(batch.input_file_id), 1 << 20))
    return batches.get(batch.id)


def test_a_batch_ends_with_every_line_in_one_of_its_files(
    store: Store, batches: Batches, files: Files, write: Any, clock: FakeClock
) -> None:
    batch = create(batches, files, output_expires_after_s=3600)
    batches.move(batch.id, "in_progress", total=3)
    write(*settled(batch, 3), *settled(batch, 1))
    batches.keep_line(Line(batch_id=batch.id, number=2, request_id="r2", status=404, body=b'{"error":{}}'))

    done = ends_as(batches, store, files, batches.move(batch.id, "finalizing"))

    assert (done.status, done.completed, done.failed) == ("completed", 2, 1)
    assert done.usage == TokenSums(prompt=20, completion=2)
    assert batches.done_numbers(batch.id) == set()
    file = files.find("acme", done.output_file_id or "")
    assert file.expires_at == int(clock()) + 3600
    with files.path(file.id).open("rb") as reading:
        assert [json.loads(text)["custom_id"] for text in reading] == ["c1", "c3"]


def test_a_batch_that_ended_meanwhile_gets_no_second_pair_of_files(
    store: Store, batches: Batches, files: Files, write: Any
) -> None:
    batch = create(batches, files, num_lines=1)
    batches.move(batch.id, "in_progress", total=1)
    write(*settled(batch, 1))
    batch = batches.move(batch.id, "finalizing")

    first = ends_as(batches, store, files, batch)

    assert ends_as(batches, store, files, batch) == first
    assert {file.id for file in files.page("acme", Page(limit=9))[0]} == {batch.input_file_id, first.output_file_id}


@pytest.mark.parametrize(("status", "ending"), [("finalizing", "expired"), ("cancelling", "cancelled")])
def test_a_batch_with_lines_that_were_not_run_says_so_of_each(
    store: Store, batches: Batches, files: Files, write: Any, status: Status, ending: Status
) -> None:
    batch = create(batches, files)
    batches.move(batch.id, "in_progress", total=3)
    write(*settled(batch, 2))

    done = ends_as(batches, store, files, batches.move(batch.id, status))

    assert (done.status, done.completed, done.failed) == (ending, 1, 2)
    with files.path(done.error_file_id or "").open("rb") as reading:
        told = [json.loads(text) for text in reading]
    assert [(one["custom_id"], one["error"]["code"]) for one in told] == [
        ("c1", f"batch_{ending}"),
        ("c3", f"batch_{ending}"),
    ]
    assert len({one["id"] for one in told}) == 2


def test_an_end_that_does_not_come_through_leaves_all_as_it_was_and_can_come_again(
    store: Store, batches: Batches, files: Files, write: Any
) -> None:
    batch = create(batches, files)
    batches.move(batch.id, "in_progress", total=3)
    write(*settled(batch, 1), *settled(batch, 2), *settled(batch, 3))
    batch = batches.move(batch.id, "finalizing")

    with pytest.raises(StoreUnavailable):
        ends_as(AwayAtTheEnd(store, files), store, files, batch)

    assert (batches.get(batch.id).status, batches.done_numbers(batch.id)) == ("finalizing", {1, 2, 3})
    assert len(files.page("acme", Page(limit=9))[0]) == 1  # the input
    files.tidy()
    assert [path.name for path in files.folder.glob("file-*")] == [batch.input_file_id]
    assert ends_as(batches, store, files, batch).status == "completed"
    with store.reading() as connection:
        assert connection.execute(select(batch_lines)).all() == []


def check(tmp_path: Path, content: bytes, most_lines: int = 10) -> list[tuple[str, int | None]]:
    path = tmp_path / "input.jsonl"
    path.write_bytes(content)
    return [(fault.code, fault.line) for fault in BatchInput(path, 1000).check(CHAT, most_lines)]


def test_lines_are_found_whatever_ends_them_and_blank_ones_are_none(tmp_path: Path) -> None:
    path = tmp_path / "input.jsonl"
    one, two, three = (json.dumps(line(number)).encode() for number in (1, 2, 3))
    path.write_bytes(b"\xef\xbb\xbf" + one + b"\r\n\n   \n" + two + b"  \n" + three)

    found = BatchInput(path, 1000)

    assert found.check(CHAT, 3) == ()
    assert list(found.custom_ids()) == ["c1", "c2", "c3"]
    assert [json.loads(bytes(found.read(number).body)) for number in (3, 1)] == [{"model": "m"}] * 2


def test_every_line_with_a_fault_is_named_by_its_number_in_the_file(tmp_path: Path) -> None:
    good = json.dumps(line(1)).encode()
    long = json.dumps(line(2, body={"x": "y" * 1000})).encode()
    deep = b'{"custom_id":"d","body":' + b"[" * 400 + b"]" * 400 + b"}"
    surrogate = b'{"custom_id":"\\ud800"}'

    assert check(tmp_path, b"\n".join((good, b"", good, long, deep, b"\xff", surrogate))) == [
        ("duplicate_custom_id", 3),
        ("line_too_long", 4),
        ("missing_required_parameter", 5),
        ("invalid_json_line", 6),
        ("invalid_json_line", 7),
    ]


def test_a_file_of_nothing_but_faults_is_not_read_to_its_end(tmp_path: Path) -> None:
    assert len(check(tmp_path, b"x\n" * 500, most_lines=500)) == MOST_FAULTS


def test_ids_of_tries_are_ids_of_the_ledger_and_differ_in_batch_line_and_try() -> None:
    batches_of = [f"batch_{'0193f0c5e4d8'}{n:020x}" for n in (0, 1 << 40)]
    ids = [line_request_id(one, number, attempt) for one in batches_of for number in (1, 50_000) for attempt in (0, 70)]

    assert len(set(ids)) == 8
    assert {(len(one), one[:12]) for one in ids} == {(32, "0193f0c5e4d8")}
