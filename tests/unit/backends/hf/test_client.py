"""The front's side of the engine's socket: streams, cancels, and every way in which an engine can go away."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from backends.errors import EngineDied, Unavailable
from backends.hf.client import EngineClient
from backends.hf.heartbeat import HeartbeatWriter
from backends.hf.messages import PROTOCOL_VERSION, FrameReader, Refused, Stats, Welcome, encode_frame
from tests.unit.backends.hf.fake_engine import (
    CRASH_TOKEN,
    HANG_TOKEN,
    answer_to,
    collect,
    running,
    short_folder,
    submit_of,
    until,
    welcome,
)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


@contextlib.asynccontextmanager
async def connected(run_dir: Path, stale_s: float = 5.0) -> AsyncIterator[EngineClient]:
    client = EngineClient(run_dir / "local.sock", run_dir / "local.heartbeat", stale_s)
    await client.start()
    try:
        await until(lambda: client.status().ready)
        yield client
    finally:
        await client.stop()


async def test_a_stream_carries_what_the_engine_computes(run_dir: Path) -> None:
    with running(run_dir):
        async with connected(run_dir) as client:
            streams = [client.submit([submit_of([i, i + 1])]) for i in range(20)]
            answers = await asyncio.gather(*(collect(stream) for stream in streams))

            assert answers == [answer_to([i, i + 1], 5) for i in range(20)]
            assert client.num_sequences == 0


async def test_sequences_of_one_request_share_a_stream(run_dir: Path) -> None:
    with running(run_dir):
        async with connected(run_dir) as client:
            stream = client.submit([submit_of([1]), submit_of([2])])
            tokens: dict[int, list[int]] = {sequence_id: [] for sequence_id in stream.ids}
            while stream.live or not all(len(ids) == 5 for ids in tokens.values()):
                output = await stream.next()
                tokens[output.id] += output.token_ids

            assert list(tokens.values()) == [answer_to([1], 5), answer_to([2], 5)]


async def test_two_hundred_cancels_at_random_moments_leave_nothing_behind(run_dir: Path) -> None:
    rng = random.Random(4)
    with running(run_dir, step_s=0.001):
        async with connected(run_dir) as client:

            async def use() -> None:
                stream = client.submit([submit_of([5, 6], max_tokens=1900), submit_of([7], max_tokens=3)])
                try:
                    while True:
                        await stream.next()
                finally:
                    stream.close()

            for _ in range(200):
                task = asyncio.create_task(use())
                await asyncio.sleep(rng.random() * 0.004)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

            assert client.num_sequences == 0
            assert await collect(client.submit([submit_of([9])])) == answer_to([9], 5)
            await until(lambda: client.stats.running == 0)


async def test_a_killed_engine_fails_its_streams_and_is_not_ready(run_dir: Path) -> None:
    with running(run_dir, step_s=0.01) as engine:
        async with connected(run_dir) as client:
            streams = [client.submit([submit_of([i], max_tokens=1900)]) for i in range(3)]
            engine.kill()
            for stream in streams:
                with pytest.raises(EngineDied):
                    await collect(stream)

            assert not client.status().ready
            assert client.num_sequences == 0
            assert client.stats == Stats()
            with pytest.raises(Unavailable) as caught:
                client.submit([submit_of([1])])
            assert caught.value.retry_after_s is not None


async def test_a_new_engine_on_the_socket_is_found_again(run_dir: Path) -> None:
    with running(run_dir) as engine:
        async with connected(run_dir) as client:
            engine.kill()
            await until(lambda: not client.status().ready)
            with running(run_dir):
                await until(lambda: client.status().ready)

                assert await collect(client.submit([submit_of([8])])) == answer_to([8], 5)


async def test_an_engine_whose_step_raises_ends_and_fails_its_streams(run_dir: Path) -> None:
    with running(run_dir) as engine:
        async with connected(run_dir) as client:
            with pytest.raises(EngineDied):
                await collect(client.submit([submit_of([CRASH_TOKEN])]))

            assert await asyncio.to_thread(engine.wait, 20) == 1


async def test_a_hung_engine_is_not_ready_and_an_idle_one_is(run_dir: Path) -> None:
    with running(run_dir):
        async with connected(run_dir, stale_s=0.8) as client:
            await asyncio.sleep(1.0)  # the point is that nothing happens for longer than `stale_s`
            assert client.status().ready

            client.submit([submit_of([HANG_TOKEN])])
            await until(lambda: not client.status().ready)

            assert "has not moved" in client.status().detail
            with pytest.raises(Unavailable):
                client.submit([submit_of([1])])


async def test_a_stopped_client_fails_its_streams_as_unavailable(run_dir: Path) -> None:
    with running(run_dir, step_s=0.01):
        async with connected(run_dir) as client:
            stream = client.submit([submit_of([1], max_tokens=1900)])
            await client.stop()

            with pytest.raises(Unavailable) as caught:
                await collect(stream)
            assert not isinstance(caught.value, EngineDied)


async def test_a_client_that_cannot_connect_says_what_it_waits_for(run_dir: Path) -> None:
    client = EngineClient(run_dir / "local.sock", run_dir / "local.heartbeat")
    await client.start()
    await asyncio.sleep(0)

    assert client.status().detail == "waiting for the engine"
    await client.stop()


@pytest.mark.parametrize("answer", [Refused("the engine speaks protocol 9"), welcome(version=9)])
async def test_another_protocol_version_is_named_and_not_ready(run_dir: Path, answer: Refused | Welcome) -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(encode_frame(answer))
        writer.close()

    HeartbeatWriter(run_dir / "local.heartbeat").beat()
    async with await asyncio.start_unix_server(greet, run_dir / "local.sock"):
        client = EngineClient(run_dir / "local.sock", run_dir / "local.heartbeat")
        await client.start()
        await until(lambda: "protocol 9" in client.status().detail)

        assert not client.status().ready
        await client.stop()


async def test_an_engine_that_sends_nonsense_is_left_and_tried_again(run_dir: Path) -> None:
    greetings = 0

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal greetings
        greetings += 1
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_unix_server(greet, run_dir / "local.sock"):
        client = EngineClient(run_dir / "local.sock", run_dir / "local.heartbeat")
        await client.start()
        await until(lambda: greetings >= 2)

        assert not client.status().ready
        await client.stop()


async def test_the_engine_ends_cleanly_on_sigterm_and_ignores_ctrl_c(run_dir: Path) -> None:
    with running(run_dir) as engine:
        async with connected(run_dir) as client:
            engine.send_signal(signal.SIGINT)
            assert await collect(client.submit([submit_of([3])])) == answer_to([3], 5)
            engine.terminate()

            assert await asyncio.to_thread(engine.wait, 20) == 0
            assert list(run_dir.iterdir()) == []


def test_frames_are_cut_wherever_the_bytes_are_split() -> None:
    frames = b"".join(encode_frame(Refused("x" * size)) for size in (0, 1, 300))
    for portion in (1, 2, 3, 7, len(frames)):
        reader = FrameReader()
        bodies = [body for at in range(0, len(frames), portion) for body in reader.feed(frames[at : at + portion])]

        assert [len(body) for body in bodies] == [len(encode_frame(Refused("x" * size))) - 4 for size in (0, 1, 300)]


def test_the_protocol_version_is_part_of_both_greetings() -> None:
    assert welcome().version == PROTOCOL_VERSION
