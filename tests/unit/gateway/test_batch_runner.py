"""How batches are run: how many lines at once, how often a line is tried, and what interrupts them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.batch_line import Broken, Later, LineRunner
from gateway.batch_output import BatchOutput
from gateway.batch_runner import BatchRunner
from gateway.batches import WINDOW_S, Batch, Batches, BatchOptions, Endpoint, Wish
from gateway.errors import StoreUnavailable
from gateway.events import Line
from gateway.files import FileOptions, Files
from gateway.metrics import Metrics
from gateway.store import Store
from gateway.virtual_keys import VirtualKey

if TYPE_CHECKING:
    from tests.conftest import FakeClock

CHAT: Endpoint = "/v1/chat/completions"
Result = Line | Later | Broken | None


class Lines(LineRunner):
    """Tries as a test says, and what was tried: number and try of each line. Answers go to the store by themselves."""

    def __init__(self, batches: Batches, act: Callable[[int, int], Result] = lambda number, attempt: None) -> None:
        self.tried: list[tuple[int, int]] = []
        self.of_batch: list[tuple[str, int]] = []
        self.running = self.most_running = 0
        self.hangs: set[int] = set()
        self.gate = asyncio.Event()  # all lines wait until it is open
        self.gate.set()
        self._batches = batches
        self._act = act

    async def attempt(self, batch: Batch, number: int, attempt: int, body: bytes) -> Result:
        self.tried.append((number, attempt))
        self.of_batch.append((batch.id, number))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if number in self.hangs:
                await asyncio.Event().wait()
            await self.gate.wait()
            result = self._act(number, attempt)
        finally:
            self.running -= 1
        if result is None:
            await asyncio.to_thread(self._batches.keep_line, line_of(batch.id, number, 200))
        return result

    def given_up(self, batch: Batch, number: int, attempt: int) -> Line:
        return line_of(batch.id, number, 500)


class Place:
    """A store with one batch in it, and a runner of it."""

    def __init__(self, store: Store, folder: Path, clock: FakeClock) -> None:
        self._store = store
        self.files = Files(store, FileOptions(folder=str(folder / "kept")), clock)
        self.batches = Batches(store, self.files, clock)
        self.lines = Lines(self.batches)
        self.times_away = 0

    async def catch_up(self) -> None:
        if self.times_away:
            self.times_away -= 1
            raise StoreUnavailable("away")

    def runner(self, **options: int) -> BatchRunner:
        output = BatchOutput(self._store, self.batches, self.files)
        chosen = BatchOptions(**options)
        return BatchRunner(
            chosen, self.batches, self.files, self.lines, output, self.catch_up, Metrics(), max_line_bytes=1000
        )

    def begin(self, num_lines: int) -> str:
        lines = [
            {"custom_id": str(number), "method": "POST", "url": CHAT, "body": {"model": "m"}}
            for number in range(num_lines)
        ]
        with closing(self.files.draft()) as draft:
            draft.write("\n".join(map(json.dumps, lines)).encode())
            draft.finish()
            file = self.files.keep(draft, "acme", filename="a", purpose="batch")
        wish = Wish(endpoint=CHAT, input_file_id=file.id)
        return self.batches.create(VirtualKey(id="key", tenant="acme"), wish).id

    async def ended(self, batch_id: str) -> Batch:
        async with asyncio.timeout(20):
            while not (batch := await asyncio.to_thread(self.batches.get, batch_id)).is_over:
                await asyncio.sleep(0.01)
        return batch


@pytest.fixture
def place(store: Store, tmp_path: Path, clock: FakeClock) -> Place:
    return Place(store, tmp_path, clock)


def line_of(batch_id: str, number: int, status: int) -> Line:
    return Line(batch_id=batch_id, number=number, request_id=f"r{number}", status=status, body=b"{}")


async def test_no_more_lines_are_tried_at_once_than_one_batch_and_all_may(place: Place) -> None:
    ids = [place.begin(30) for _ in range(3)]
    place.lines.gate.clear()
    runner = place.runner(lines_at_once=4, all_lines_at_once=6)
    await runner.start()
    async with asyncio.timeout(20):
        while place.lines.running < 6:
            await asyncio.sleep(0.01)
    assert max(Counter(batch_id for batch_id, _ in place.lines.of_batch).values()) <= 4
    place.lines.gate.set()

    batches = [await place.ended(batch_id) for batch_id in ids]

    assert [(batch.status, batch.completed) for batch in batches] == [("completed", 30)] * 3
    assert place.lines.most_running == 6
    assert len(place.lines.tried) == 90


async def test_a_line_is_tried_again_after_a_failure_and_as_often_as_there_is_no_room(place: Place) -> None:
    batch_id = place.begin(1)
    broken = Broken(line_of(batch_id, 1, 500))
    results: list[Result] = [Later(0.0, was_admitted=False), Later(0.0, was_admitted=True), broken, None]
    place.lines = Lines(place.batches, lambda number, attempt: results.pop(0))
    runner = place.runner(retries=1)
    runner.take(batch_id)

    batch = await place.ended(batch_id)

    assert (batch.completed, batch.failed) == (1, 0)
    assert place.lines.tried == [(1, 0), (1, 0), (1, 1), (1, 2)]  # a try that the ledger knows is never used again


async def test_a_line_that_fails_too_often_is_in_the_error_file_and_the_rest_goes_on(place: Place) -> None:
    batch_id = place.begin(2)
    place.lines = Lines(place.batches, lambda number, _: Broken(line_of(batch_id, 1, 500)) if number == 1 else None)
    place.runner(retries=1).take(batch_id)

    batch = await place.ended(batch_id)

    assert (batch.status, batch.completed, batch.failed) == ("completed", 1, 1)
    assert sorted(place.lines.tried) == [(1, 0), (1, 1), (2, 0)]


async def test_a_batch_expires_when_its_window_is_over_and_its_running_lines_end(
    place: Place, clock: FakeClock
) -> None:
    batch_id = place.begin(3)
    place.lines.hangs = {2}
    place.runner().take(batch_id)
    async with asyncio.timeout(20):
        while len(await asyncio.to_thread(place.batches.done_numbers, batch_id)) < 2:
            await asyncio.sleep(0.01)

    clock.advance(WINDOW_S - 1)
    assert not (await asyncio.to_thread(place.batches.get, batch_id)).is_over
    clock.advance(1)
    batch = await place.ended(batch_id)

    assert (batch.status, batch.completed, batch.failed) == ("expired", 2, 1)
    assert place.lines.running == 0


async def test_a_runner_that_stopped_is_followed_by_one_that_runs_what_is_left(place: Place) -> None:
    batch_id = place.begin(3)
    place.lines.hangs = {2}
    first = place.runner()
    first.take(batch_id)
    async with asyncio.timeout(20):
        while len(await asyncio.to_thread(place.batches.done_numbers, batch_id)) < 2:
            await asyncio.sleep(0.01)
    await first.stop()
    assert place.lines.running == 0
    place.lines = Lines(place.batches)

    await place.runner().start()
    batch = await place.ended(batch_id)

    assert (batch.status, batch.completed) == ("completed", 3)
    assert place.lines.tried == [(2, 0)]


async def test_nothing_is_run_before_the_store_has_heard_all_of_earlier_runs(place: Place) -> None:
    batch_id = place.begin(1)
    place.times_away = 1
    runner = place.runner()
    runner.take(batch_id)
    async with asyncio.timeout(20):
        while place.times_away:
            await asyncio.sleep(0.01)
    assert place.lines.tried == []

    batch = await place.ended(batch_id)

    assert (batch.status, place.lines.tried) == ("completed", [(1, 0)])


async def test_a_batch_whose_input_is_lost_fails(place: Place) -> None:
    batch_id = place.begin(1)
    place.files.path(place.batches.get(batch_id).input_file_id).unlink()
    place.runner().take(batch_id)

    batch = await place.ended(batch_id)

    assert (batch.status, [fault.code for fault in batch.errors]) == ("failed", ["input_file_lost"])
