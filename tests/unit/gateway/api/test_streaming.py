"""What happens to the work when its client leaves, at each place where a request can be (table in the architecture)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any

import pytest

from backends.types import Chunk, Usage
from gateway.api.families import ANTHROPIC
from gateway.api.streaming import EventStream, while_client_stays

Run = Callable[[Coroutine[Any, Any, Any]], Any]


class Client:
    """Scripted `receive` and `send`. It reads `reads` messages, then no more; `leave` closes it."""

    def __init__(self, reads: int = 1_000_000) -> None:
        self._left = asyncio.Event()
        self._room = asyncio.Semaphore(reads)
        self.blocked = asyncio.Event()
        self.sent: list[Any] = []

    async def receive(self) -> Any:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if self._room.locked():
            self.blocked.set()
        await self._room.acquire()
        self.sent.append(message)

    def leave(self) -> None:
        self._left.set()

    def make_room(self, reads: int) -> None:
        for _ in range(reads):
            self._room.release()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)


class Source:
    """A chunk iterator that tells whether it was closed."""

    def __init__(self, texts: list[str], *, gap_s: float = 0.0, hangs: bool = False) -> None:
        self._texts, self._gap_s, self._hangs = texts, gap_s, hangs
        self.waiting = asyncio.Event()
        self.pulled = 0
        self.closed = False

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        try:
            for text in self._texts:
                if self._gap_s:
                    await asyncio.sleep(self._gap_s)
                self.pulled += 1
                yield Chunk(usage=Usage(completion_tokens=self.pulled), text=text)
            if self._hangs:
                self.waiting.set()
                await asyncio.Event().wait()
        finally:
            self.closed = True


def encode(chunk: Chunk) -> bytes:
    return chunk.text.encode()


def stream(client: Client, **options: Any) -> EventStream:
    return EventStream(client.send, encode, lambda: b"END", **{"keep_alive_s": 15.0, **options})


async def leave_when(client: Client, moment: asyncio.Event, work: Coroutine[Any, Any, Any]) -> Any:
    """Run `work` for `client`, which leaves at `moment`."""

    async def go() -> None:
        await moment.wait()
        client.leave()

    leaving = asyncio.create_task(go())
    try:
        async with asyncio.timeout(5):
            return await while_client_stays(client.receive, work)
    finally:
        await leaving


async def test_events_are_sent_one_by_one_under_one_head() -> None:
    client, source = Client(), Source(["a", "", "b"])

    await stream(client).run(source.chunks())

    assert [message["type"] for message in client.sent] == ["http.response.start"] + ["http.response.body"] * 3
    assert [message.get("body") for message in client.sent[1:]] == [b"a", b"b", b"END"]
    assert [message.get("more_body") for message in client.sent[1:]] == [True, True, False]
    assert source.closed


async def test_leaving_while_the_source_waits_closes_it_at_once() -> None:
    client, source = Client(), Source(["a"], hangs=True)

    result = await leave_when(client, source.waiting, stream(client).run(source.chunks()))

    assert (result, source.closed, client.body) == (None, True, b"a")


async def test_leaving_behind_a_slow_send_closes_a_source_parked_at_its_yield() -> None:
    client, source = Client(reads=2), Source(["a", "b", "c"])

    await leave_when(client, client.blocked, stream(client).run(source.chunks()))

    assert (source.closed, source.pulled, client.body) == (True, 2, b"a")


async def test_leaving_before_the_first_event_ends_the_wait() -> None:
    client, source = Client(), Source([], hangs=True)

    await leave_when(client, source.waiting, stream(client).run(source.chunks()))

    assert (source.closed, client.sent) == (True, [])


async def test_leaving_while_the_head_is_blocked_closes_the_source() -> None:
    client, source = Client(reads=0), Source(["a", "b"])

    await leave_when(client, client.blocked, stream(client).run(source.chunks()))

    assert (source.closed, source.pulled, client.sent) == (True, 1, [])


async def test_a_slow_reader_is_never_run_ahead_of() -> None:
    client, source = Client(reads=5), Source(["x"] * 1000)

    await leave_when(client, client.blocked, stream(client).run(source.chunks()))

    assert source.pulled == 5


async def test_the_source_is_closed_before_the_last_event_is_sent() -> None:
    client, source = Client(reads=2), Source(["a"])

    await leave_when(client, client.blocked, stream(client).run(source.chunks()))

    assert (source.closed, client.body) == (True, b"a")


async def test_work_that_ends_gives_its_result_and_leaves_no_task() -> None:
    client = Client()

    async def work() -> int:
        return 7

    assert await while_client_stays(client.receive, work()) == 7
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_cancel_from_elsewhere_is_not_taken_for_a_client_that_left() -> None:
    client, source = Client(), Source([], hangs=True)
    serving = asyncio.create_task(while_client_stays(client.receive, stream(client).run(source.chunks())))
    await source.waiting.wait()

    serving.cancel()

    with pytest.raises(asyncio.CancelledError):
        await serving
    assert source.closed


async def test_a_task_survives_the_client_it_served() -> None:
    """The server's task goes on to write the access line; its next await must not be cancelled too."""
    client, source = Client(), Source([], hangs=True)

    await leave_when(client, source.waiting, stream(client).run(source.chunks()))

    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_an_error_before_the_first_event_leaves_nothing_sent() -> None:
    client = Client()

    async def failing() -> AsyncGenerator[Chunk, None]:
        yield Chunk(usage=Usage())
        raise ValueError

    events = stream(client)
    with pytest.raises(ValueError):
        await events.run(failing())

    assert (events.has_begun, client.sent) == (False, [])


async def test_an_error_after_it_is_left_to_the_caller_to_end() -> None:
    client = Client()

    async def failing() -> AsyncGenerator[Chunk, None]:
        yield Chunk(usage=Usage(completion_tokens=3), text="a")
        raise ValueError

    events = stream(client)
    with pytest.raises(ValueError):
        await events.run(failing())

    assert (events.has_begun, client.body, client.sent[-1]["more_body"]) == (True, b"a", True)
    assert events.usage == Usage(completion_tokens=3)


def test_silence_is_broken_every_interval_once_the_head_is_out(run_virtually: Run) -> None:
    async def main() -> tuple[bytes, bytes]:
        talking, quiet = Client(), Client()
        await stream(talking).run(Source(["a", "b"], gap_s=14).chunks())
        await stream(quiet).run(Source(["a", "b"], gap_s=31).chunks())
        return talking.body, quiet.body

    comment = b": keep-alive\n\n"

    assert run_virtually(main()) == (b"abEND", b"a" + 2 * comment + b"bEND")


def test_an_interval_of_zero_sends_no_comment(run_virtually: Run) -> None:
    async def main() -> bytes:
        client = Client()
        await stream(client, keep_alive_s=0.0).run(Source(["a", "b"], gap_s=10_000).chunks())
        return client.body

    assert run_virtually(main()) == b"abEND"


def test_a_silence_is_broken_by_whatever_says_nothing_on_its_route(run_virtually: Run) -> None:
    async def main() -> bytes:
        client, source = Client(), Source(["a", "b"], gap_s=20)
        await stream(client, keep_alive=ANTHROPIC.keep_alive).run(source.chunks())
        return client.body

    assert run_virtually(main()) == b'aevent: ping\ndata: {"type":"ping"}\n\nbEND'


def test_a_comment_never_overtakes_or_piles_up_behind_a_slow_reader(run_virtually: Run) -> None:
    async def main() -> bytes:
        client, source = Client(reads=2), Source(["a"], hangs=True)

        async def go() -> None:
            await asyncio.sleep(100)
            client.leave()

        leaving = asyncio.create_task(go())
        await while_client_stays(client.receive, stream(client).run(source.chunks()))
        await leaving
        assert source.closed
        assert len(asyncio.all_tasks()) <= 2  # this one, and perhaps the cancelled comment
        return client.body

    assert run_virtually(main()) == b"a"


def test_a_comment_stuck_behind_the_last_piece_does_not_end_the_answer(run_virtually: Run) -> None:
    """The reader stops before the last piece, longer than the interval, and then reads on."""

    async def main() -> bytes:
        client, source = Client(reads=2), Source(["a", "b"])

        async def read_on() -> None:
            await asyncio.sleep(20)
            client.make_room(10)

        reading = asyncio.create_task(read_on())
        await while_client_stays(client.receive, stream(client).run(source.chunks()))
        await reading
        return client.body

    assert run_virtually(main()) == b"abEND"


def test_an_answer_that_is_its_end_alone_leaves_no_timer(run_virtually: Run) -> None:
    async def main() -> bytes:
        client = Client()
        await stream(client).run(Source([]).chunks())
        await asyncio.sleep(100)
        return client.body

    assert run_virtually(main()) == b"END"


async def test_closing_goes_through_every_wrapped_iterator_in_time() -> None:
    client, source = Client(), Source(["a"], hangs=True)

    async def outer() -> AsyncGenerator[Chunk, None]:
        async with aclosing(source.chunks()) as chunks:
            async for chunk in chunks:
                yield chunk

    await leave_when(client, source.waiting, stream(client).run(outer()))

    assert source.closed
