"""Idempotency-Key: one answer for one key and body."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from gateway.errors import Conflict, InvalidBody
from gateway.events import Answer
from gateway.idempotency import KEPT_S, LINGER_S, MOST_ANSWER_BYTES, NOT_KEPT, Idempotency, Kept, Name, Recording
from tests.conftest import FakeClock

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Now = Callable[[], float]

HEAD = [(b"content-type", b"text/event-stream")]
NAME = Name.of("key_1", "once", "chat", b"{}")


class Shelf:
    """What a store would have kept."""

    def __init__(self) -> None:
        self.kept: list[Answer] = []

    def find(self, key_id: str, name_digest: bytes, since_ms: int) -> Answer | None:
        found = [one for one in self.kept if (one.key_id, one.name_digest) == (key_id, name_digest)]
        return next((one for one in found if one.at >= since_ms), None)


def made(now: Now, shelf: Shelf | None = None) -> Idempotency:
    return Idempotency(shelf or Shelf(), clock=now, wall_clock=now)


async def says(recording: Recording, *pieces: bytes, pause_s: float = 1.0) -> bool:
    recording.begin(200, HEAD)
    for piece in pieces:
        await asyncio.sleep(pause_s)
        recording.add(piece)
    return True


async def read(recording: Recording) -> bytes:
    return b"".join([piece async for piece in recording.follow()])


def test_those_who_come_while_it_is_made_get_all_of_it(run_virtually: Run, now: Now) -> None:
    async def main() -> None:
        replays = made(now)
        first = replays.record(NAME, "r1", lambda recording: says(recording, b"a", b"b", b"c"))
        early = asyncio.create_task(read(first))
        await asyncio.sleep(2.5)
        found = await replays.find(NAME)
        assert found is first
        assert [await early, await read(first)] == [b"abc", b"abc"]

    run_virtually(main())


def test_it_is_kept_for_ten_minutes_and_then_forgotten(run_virtually: Run, now: Now) -> None:
    async def main() -> None:
        replays = made(now)
        recording = replays.record(NAME, "r1", lambda recording: says(recording, b"a", pause_s=0))
        await asyncio.sleep(KEPT_S - 1)
        assert await replays.find(NAME) is recording
        assert await read(recording) == b"a"
        await asyncio.sleep(2)
        replays.purge()
        assert replays.num_kept == 0

    run_virtually(main())


def test_another_body_under_the_same_key_is_a_conflict(run_virtually: Run, now: Now) -> None:
    async def main() -> None:
        replays = made(now)
        replays.record(NAME, "r1", lambda recording: says(recording, b"a"))
        with pytest.raises(Conflict, match="another request"):
            await replays.find(Name.of("key_1", "once", "chat", b'{"other": 1}'))
        with pytest.raises(Conflict):
            await replays.find(Name.of("key_1", "once", "completions", b"{}"))

    run_virtually(main())


async def test_keys_of_others_do_not_meet(clock: FakeClock) -> None:
    replays = made(clock)
    replays.record(NAME, "r1", lambda recording: says(recording, b"a", pause_s=0))

    assert await replays.find(Name.of("key_2", "once", "chat", b"{}")) is None


def test_a_failure_is_told_to_those_who_follow_and_then_forgotten(run_virtually: Run, now: Now) -> None:
    async def fails(recording: Recording) -> bool:
        recording.begin(503, HEAD)
        await asyncio.sleep(1)
        recording.add(b"sorry")
        return False

    async def main() -> None:
        replays = made(now)
        recording = replays.record(NAME, "r1", fails)
        assert await read(recording) == b"sorry"
        await asyncio.sleep(0)
        assert replays.num_kept == 0

    run_virtually(main())


def test_work_goes_on_for_a_client_that_comes_back(run_virtually: Run, now: Now) -> None:
    async def main() -> None:
        replays = made(now)
        recording = replays.record(NAME, "r1", lambda recording: says(recording, b"a", pause_s=2 * LINGER_S))
        replays.enter(recording)
        replays.leave(recording)
        await asyncio.sleep(LINGER_S - 1)
        replays.enter(recording)
        assert await read(recording) == b"a"

    run_virtually(main())


def test_work_that_nobody_waits_for_ends(run_virtually: Run, now: Now) -> None:
    async def main() -> None:
        replays = made(now)
        recording = replays.record(NAME, "r1", lambda recording: says(recording, b"a", pause_s=10 * LINGER_S))
        replays.enter(recording)
        replays.leave(recording)
        await asyncio.sleep(LINGER_S + 1)
        assert recording.is_over
        assert replays.num_kept == 0

    run_virtually(main())


def test_an_answer_too_large_to_keep_reaches_its_clients_and_is_not_made_again(run_virtually: Run, now: Now) -> None:
    half = b"x" * (MOST_ANSWER_BYTES // 2 + 1)

    async def main() -> None:
        replays = made(now)
        recording = replays.record(NAME, "r1", lambda recording: says(recording, half, half))
        marker = recording.answer(half + half, "text/plain", 0)
        assert (marker.body, marker.content_type) == (b"", NOT_KEPT)
        assert len(await read(recording)) == 2 * len(half)
        await asyncio.sleep(0)
        with pytest.raises(Conflict, match="req_r1"):
            await replays.find(NAME)

    run_virtually(main())


async def test_what_the_store_kept_is_found_after_a_restart(clock: FakeClock) -> None:
    shelf = Shelf()
    recording = Recording(NAME, "r1", clock())
    recording.add(b"first ")
    answer = recording.answer(b"last", "text/plain", int(clock() * 1000))
    assert answer is not None
    shelf.kept.append(answer)
    after = made(clock, shelf)

    assert await after.find(NAME) == Kept("r1", "text/plain", b"first last")
    with pytest.raises(Conflict):
        await after.find(Name.of("key_1", "once", "chat", b"other"))
    clock.advance(KEPT_S + 1)
    assert await after.find(NAME) is None


def test_a_key_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidBody, match="300 characters"):
        Name.of("key_1", "x" * 300, "chat", b"{}")


def test_stopping_ends_all_work(run_virtually: Run, now: Now) -> None:
    async def main() -> None:
        replays = made(now)
        recording = replays.record(NAME, "r1", lambda recording: says(recording, b"a", pause_s=1000))
        await asyncio.sleep(0)
        await replays.stop()
        assert recording.is_over

    run_virtually(main())


async def test_one_that_was_too_large_is_not_made_again_after_a_restart_either(clock: FakeClock) -> None:
    shelf = Shelf()
    marker = Recording(NAME, "r1", clock()).answer(b"x" * (MOST_ANSWER_BYTES + 1), "text/plain", int(clock() * 1000))
    shelf.kept.append(marker)

    with pytest.raises(Conflict, match="req_r1"):
        await made(clock, shelf).find(NAME)


def test_a_client_that_comes_back_has_its_own_time_to_leave_again(run_virtually: Run, now: Now) -> None:
    async def main() -> None:
        replays = made(now)
        recording = replays.record(NAME, "r1", lambda recording: says(recording, b"a", pause_s=10 * LINGER_S))
        replays.enter(recording)
        replays.leave(recording)
        await asyncio.sleep(LINGER_S - 1)
        replays.enter(recording)
        replays.leave(recording)
        await asyncio.sleep(LINGER_S - 1)
        assert not recording.is_over

    run_virtually(main())
