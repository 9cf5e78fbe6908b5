"""The engine's process: several fronts on one engine, bad ones among them, and its ties to its parent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psutil
import pytest

from backends.errors import EngineDied, Unavailable
from backends.hf import server
from backends.hf.client import EngineClient
from backends.hf.heartbeat import HeartbeatReader, HeartbeatWriter
from backends.hf.local import EngineThread, LocalClient
from backends.hf.loop import EngineLoop
from backends.hf.messages import (
    PROTOCOL_VERSION,
    FrameReader,
    Hello,
    Refused,
    Submit,
    encode_frame,
    to_front_decoder,
)
from tests.unit.backends.hf.fake_engine import (
    CRASH_TOKEN,
    FakeEngine,
    answer_to,
    build,
    collect,
    short_folder,
    submit_of,
    until,
    welcome,
)


@pytest.fixture
def run_dir() -> Iterator[Path]:
    with short_folder() as folder:
        yield folder


@pytest.fixture
def engine(run_dir: Path) -> Iterator[FakeEngine]:
    """An engine on a socket of this process; what it holds can be looked at."""
    sockets = server.EngineServer(run_dir / "local.sock", max_unread_bytes=1 << 16)
    fake = FakeEngine(sockets.deliver, step_s=0.001)
    heartbeat = HeartbeatWriter(run_dir / "local.heartbeat")
    loop = EngineLoop(fake, heartbeat.beat)
    heartbeat.beat()
    sockets.start(loop, welcome())
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield fake
    loop.stop()
    thread.join()
    sockets.stop()
    heartbeat.close()


@contextlib.asynccontextmanager
async def front(run_dir: Path) -> AsyncIterator[EngineClient]:
    client = EngineClient(run_dir / "local.sock", run_dir / "local.heartbeat")
    await client.start()
    try:
        await until(lambda: client.status().ready)
        yield client
    finally:
        await client.stop()


async def raw_front(run_dir: Path, first: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that says what it likes."""
    reader, writer = await asyncio.open_unix_connection(run_dir / "local.sock")
    writer.write(first)
    await writer.drain()
    return reader, writer


async def test_closing_one_front_aborts_its_sequences_and_no_others(run_dir: Path, engine: FakeEngine) -> None:
    async with front(run_dir) as stays:
        stream = stays.submit([submit_of([1], max_tokens=1500)])
        async with front(run_dir) as leaves:
            leaves.submit([submit_of([2], max_tokens=10**6), submit_of([3], max_tokens=10**6)])
            await until(lambda: len(engine.live) == 3)
        await until(lambda: len(engine.live) <= 1)

        assert await collect(stream) == answer_to([1], 1500)


async def test_fronts_may_use_the_same_sequence_ids(run_dir: Path, engine: FakeEngine) -> None:
    async with front(run_dir) as one, front(run_dir) as other:
        mine, theirs = one.submit([submit_of([1], 50)]), other.submit([submit_of([2], 50)])

        assert mine.ids == theirs.ids
        assert [await collect(mine), await collect(theirs)] == [answer_to([1], 50), answer_to([2], 50)]


async def test_an_abort_reaches_the_engine(run_dir: Path, engine: FakeEngine) -> None:
    async with front(run_dir) as client:
        stream = client.submit([submit_of([1], max_tokens=10**6)])
        await stream.next()
        stream.close()
        stream.close()

        await until(lambda: not engine.live)


async def test_a_front_that_does_not_read_is_dropped_and_the_others_go_on(run_dir: Path, engine: FakeEngine) -> None:
    wish = encode_frame(Hello(PROTOCOL_VERSION)) + b"".join(
        encode_frame(Submit(id=i, prompt_ids=[1], max_tokens=10**6)) for i in range(2000)
    )
    _, writer = await raw_front(run_dir, wish)
    async with front(run_dir) as client:
        await until(lambda: engine.num_submitted == 2000)
        await until(lambda: not engine.live)  # its sequences went with it

        assert await collect(client.submit([submit_of([1])])) == answer_to([1], 5)
    writer.close()


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="not a frame"),
        pytest.param(b"\x03\x00\x00\x00abc", id="not a message"),
        pytest.param(encode_frame(Submit(id=1, prompt_ids=[1], max_tokens=1)), id="no greeting"),
        pytest.param(encode_frame(Hello(PROTOCOL_VERSION + 1)), id="another version"),
    ],
)
async def test_a_front_that_speaks_something_else_is_refused(run_dir: Path, engine: FakeEngine, first: bytes) -> None:
    reader, writer = await raw_front(run_dir, first)
    (body,) = FrameReader().feed(await reader.read())  # up to the end of the connection

    assert isinstance(to_front_decoder.decode(body), Refused)
    writer.close()
    async with front(run_dir) as client:
        assert await collect(client.submit([submit_of([1])])) == answer_to([1], 5)


async def test_the_socket_belongs_to_its_user_alone_and_goes_with_the_server(run_dir: Path) -> None:
    sockets = server.EngineServer(run_dir / "local.sock")
    sockets.start(EngineLoop(FakeEngine(sockets.deliver), lambda: None), welcome())

    assert (run_dir / "local.sock").stat().st_mode & 0o777 == 0o600
    sockets.stop()
    assert not (run_dir / "local.sock").exists()


def test_a_socket_that_cannot_be_made_stops_the_start(run_dir: Path) -> None:
    sockets = server.EngineServer(run_dir / "missing" / "local.sock")

    with pytest.raises(OSError, match="No such file"):
        sockets.start(EngineLoop(FakeEngine(sockets.deliver), lambda: None), welcome())


def test_the_pulse_appears_whole_ages_and_goes(run_dir: Path) -> None:
    path = run_dir / "local.heartbeat"
    path.write_bytes(b"old")
    writer = HeartbeatWriter(path)
    assert not path.exists()  # a load may be long: no pulse is no hang
    writer.beat()
    reader = HeartbeatReader(path)

    assert path.stat().st_size == 8
    assert 0 <= reader.age_s() < 5
    writer.close()
    assert not path.exists()
    reader.close()


def test_a_reader_never_meets_half_a_beat(run_dir: Path) -> None:
    path = run_dir / "local.heartbeat"
    code = (
        "import pathlib, sys\n"
        "from backends.hf.heartbeat import HeartbeatWriter\n"
        "writer = HeartbeatWriter(pathlib.Path(sys.argv[1]))\n"
        "for _ in range(300_000): writer.beat()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code, str(path)], env=environment) as beating:
        asyncio.run(until(path.exists))
        reader = HeartbeatReader(path)
        ages = [reader.age_s()]
        while beating.poll() is None:
            ages += [reader.age_s() for _ in range(1000)]
        reader.close()

    assert max(ages) < 60  # zeros would be the whole time since the machine started


@pytest.mark.parametrize("stdin", ["pipe", "null"])
def test_the_engine_ends_with_its_parent_however_that_ends(run_dir: Path, stdin: str) -> None:
    """The parent is killed, and cannot do anything about it."""
    child = [sys.executable, "-m", "tests.unit.backends.hf.fake_engine", "local", str(run_dir)]
    code = (
        "import subprocess, time\n"
        f"child = subprocess.Popen({child!r}, stdin=subprocess.{'PIPE' if stdin == 'pipe' else 'DEVNULL'})\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        engine = psutil.Process(int(parent.stdout.readline()))
        asyncio.run(until(lambda: (run_dir / "local.sock").exists()))
        parent.kill()

    asyncio.run(until(lambda: not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE))


@pytest.mark.parametrize(
    ("options", "names"), [('{"model": "m", "max_num_seqs": 0}', "max_num_seqs"), ('{"model": "m", "x": 1}', "x")]
)
def test_options_that_cannot_work_end_with_one_line_and_code_2(run_dir: Path, options: str, names: str) -> None:
    command = [sys.executable, "-m", "backends.hf.server", "--name", "local", "--run-dir", str(run_dir)]
    command += ["--options", options, "--lanes", "{}"]
    run = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)

    assert run.returncode == server.EXIT_CONFIG
    assert run.stderr.startswith("backends.local: ")
    assert names in run.stderr
    assert run.stderr.count("\n") == 1


async def test_an_engine_in_a_thread_speaks_through_the_same_client() -> None:
    made: list[FakeEngine] = []
    thread = EngineThread(build(step_s=0.001, made=made))
    thread.start()
    one, other = LocalClient(thread), LocalClient(thread)
    await one.start()
    await other.start()
    stream = one.submit([submit_of([1], 100)])
    other.submit([submit_of([2], 10**6)])
    await until(lambda: len(made[0].live) == 2)
    await other.stop()

    assert one.status().ready
    assert one.welcome == welcome()
    assert await collect(stream) == answer_to([1], 100)
    await until(lambda: not made[0].live)
    await one.stop()
    thread.stop()
    with pytest.raises(Unavailable):
        one.submit([submit_of([1])])


async def test_an_engine_that_dies_in_its_thread_fails_its_streams() -> None:
    thread = EngineThread(build())
    thread.start()
    client = LocalClient(thread)
    await client.start()

    with pytest.raises(EngineDied):
        await collect(client.submit([submit_of([CRASH_TOKEN])]))
    await until(lambda: not client.status().ready)
    assert client.num_sequences == 0
    await client.stop()
    thread.stop()


def test_what_building_an_engine_raises_comes_out_of_start() -> None:
    def broken(deliver: object) -> tuple[FakeEngine, object]:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        EngineThread(broken).start()  # type: ignore[arg-type]
