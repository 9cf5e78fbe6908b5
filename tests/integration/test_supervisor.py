"""The supervisor over real processes: small scripts that end, refuse, hang or will not go."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.supervisor import EXIT_CONFIG, Backoff, Child, ChildSpec, Supervisor

STAYS = "import sys; sys.stdin.read()"
TELLS = """
import signal, sys
def end(number, frame):
    print(sys.argv[2], file=open(sys.argv[1], "a"))
    sys.exit(0)
signal.signal(signal.SIGTERM, end)
open(sys.argv[1] + sys.argv[2], "w").close()
signal.pause()
"""  # when it is ready, and when it is told to end
IN_TIME_S = 20.0


def child(name: str, script: str, *arguments: object, **spec: object) -> Child:
    """A child that runs `script`, with a back-off short enough for a test."""
    argv = (sys.executable, "-S", "-E", "-c", script, *map(str, arguments))
    options = ChildSpec(name=name, argv=argv, **spec)  # type: ignore[arg-type]
    return Child(options, Backoff(first_s=0.01, longest_s=0.05))


@asynccontextmanager
async def running(
    *engines: Child, fronts: tuple[Child, ...] = ()
) -> AsyncIterator[tuple[Supervisor, asyncio.Task[int]]]:
    """A supervisor at work; ended at the latest when the block ends."""
    supervisor = Supervisor(engines, fronts)
    task = asyncio.create_task(supervisor.run())
    try:
        yield supervisor, task
    finally:
        supervisor.kill()
        await asyncio.wait_for(task, IN_TIME_S)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what other processes do."""
    async with asyncio.timeout(IN_TIME_S):
        while not condition():
            await asyncio.sleep(0.01)


def lives(pid: int) -> bool:
    """Whether the process exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pid_of(place: Child) -> int:
    """The process that fills the place now."""
    assert place.process is not None
    return place.process.pid


async def test_a_process_that_ends_is_started_again_and_the_log_says_when(caplog: pytest.LogCaptureFixture) -> None:
    engine = child("engine x", "import sys; sys.exit(7)")

    async with running(engine):
        await until(lambda: engine.starts >= 3)

    assert any("ended with exit code 7; start 2 follows in 0.01 s" in line for line in caplog.messages)
    assert any("start 3 follows in 0.02 s" in line for line in caplog.messages)


async def test_a_killed_process_is_replaced_and_its_neighbour_stays() -> None:
    engine, front = child("engine", STAYS), child("front", STAYS)

    async with running(engine, fronts=(front,)):
        await until(lambda: engine.process is not None and front.process is not None)
        kept, killed = pid_of(engine), pid_of(front)
        os.kill(killed, signal.SIGKILL)
        await until(lambda: front.starts == 2 and pid_of(front) != killed)

        assert pid_of(engine) == kept
        assert lives(kept)


async def test_a_process_that_cannot_be_spawned_is_tried_again_and_its_neighbour_stays(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = Child(ChildSpec(name="engine", argv=("/no/such/program",)), Backoff(first_s=0.01, longest_s=0.05))
    front = child("front", STAYS)

    async with running(engine, fronts=(front,)) as (supervisor, task):
        await until(lambda: engine.starts >= 3 and front.process is not None)

        assert (supervisor.is_stopping, task.done()) == (False, False)
        assert front.starts == 1

    assert any("engine could not be started (No such file or directory); start 2" in line for line in caplog.messages)


async def test_a_process_whose_heart_stops_is_killed_and_replaced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    beat = tmp_path / "beat"
    script = "import sys, time; open(sys.argv[1], 'wb').write(b'beat'); time.sleep(60)"
    engine = child("engine", script, beat, heartbeat=beat, hang_after_s=0.3)

    async with running(engine):
        await until(lambda: engine.starts >= 2)

    assert any("did not move any more and was killed" in line for line in caplog.messages)


async def test_a_process_that_refuses_its_settings_at_first_start_stops_everything() -> None:
    engine, front = child("engine", f"import sys; sys.exit({EXIT_CONFIG})"), child("front", STAYS)

    async with running(engine, fronts=(front,)) as (_, task):
        code = await asyncio.wait_for(task, IN_TIME_S)

    assert (code, engine.starts) == (EXIT_CONFIG, 1)
    assert not lives(pid_of(front))


async def test_the_same_exit_code_after_a_life_is_a_failure_like_others(tmp_path: Path) -> None:
    beat = tmp_path / "beat"
    script = f"import sys, time; open(sys.argv[1], 'wb').write(b'beat'); time.sleep(0.2); sys.exit({EXIT_CONFIG})"
    engine = child("engine", script, beat, heartbeat=beat, hang_after_s=0.5)

    async with running(engine):
        await until(lambda: engine.starts >= 2)


async def test_stop_ends_fronts_before_engines(tmp_path: Path) -> None:
    order = tmp_path / "order"
    engine, front = child("engine", TELLS, order, "engine"), child("front", TELLS, order, "front")

    async with running(engine, fronts=(front,)) as (supervisor, task):
        await until(lambda: Path(f"{order}engine").exists() and Path(f"{order}front").exists())
        supervisor.stop()
        code = await asyncio.wait_for(task, IN_TIME_S)

    assert code == 0
    assert order.read_text().split() == ["front", "engine"]


class Slow(Child):
    """A child whose process is there a while before `start` returns."""

    def __init__(self, spec: ChildSpec) -> None:
        super().__init__(spec)
        self.made, self.goes_on = asyncio.Event(), asyncio.Event()

    async def start(self) -> None:
        self.made.set()
        await self.goes_on.wait()
        await super().start()


async def test_an_engine_that_is_being_made_at_the_stop_ends_after_the_fronts_too(tmp_path: Path) -> None:
    order = tmp_path / "order"
    engine = Slow(child("engine", TELLS, order, "engine").spec)
    front = child("front", TELLS, order, "front", stop_within_s=IN_TIME_S)

    async with running(engine, fronts=(front,)) as (supervisor, task):
        await until(lambda: engine.made.is_set() and Path(f"{order}front").exists())
        os.kill(pid_of(front), signal.SIGSTOP)  # it has answers to finish
        supervisor.stop()
        engine.goes_on.set()
        await until(Path(f"{order}engine").exists)
        os.kill(pid_of(front), signal.SIGCONT)

        assert await asyncio.wait_for(task, IN_TIME_S) == 0

    assert order.read_text().split() == ["front", "engine"]


async def test_a_process_that_is_being_made_at_a_kill_is_killed() -> None:
    engine = Slow(child("engine", "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()").spec)

    async with running(engine) as (supervisor, task):
        await engine.made.wait()
        supervisor.kill()
        engine.goes_on.set()

        assert await asyncio.wait_for(task, IN_TIME_S) == 130


async def test_a_process_that_ignores_sigterm_is_killed_in_the_end(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = "import signal, sys; signal.signal(15, signal.SIG_IGN); open(sys.argv[1], 'w').close(); signal.pause()"
    engine = child("engine", script, ready, stop_within_s=0.2)

    async with running(engine) as (supervisor, task):
        await until(ready.exists)
        supervisor.stop()

        assert await asyncio.wait_for(task, IN_TIME_S) == 0


async def test_a_stop_during_back_off_does_not_wait_for_it() -> None:
    backoff = Backoff(first_s=3600, longest_s=3600)
    engine = Child(
        ChildSpec(name="engine", argv=(sys.executable, "-S", "-E", "-c", "import sys; sys.exit(7)")), backoff
    )

    async with running(engine) as (supervisor, task):
        await until(lambda: backoff.failures == 1)
        supervisor.stop()

        assert await asyncio.wait_for(task, IN_TIME_S) == 0


async def test_kill_ends_everything_at_once() -> None:
    stubborn = "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"
    engine = child("engine", stubborn, stop_within_s=3600)

    async with running(engine) as (supervisor, task):
        await until(lambda: engine.process is not None)
        supervisor.stop()
        supervisor.kill()

        assert await asyncio.wait_for(task, IN_TIME_S) == 130


async def test_a_child_reads_its_first_input_and_then_the_end_of_its_parent(tmp_path: Path) -> None:
    got = tmp_path / "got"
    script = "import os, sys; line = os.read(0, 100); open(sys.argv[1], 'wb').write(line); os.read(0, 1)"
    engine = child("engine", script, got, first_input=b"settings\n")

    async with running(engine):
        await until(lambda: got.exists() and got.read_bytes() == b"settings\n")

        assert engine.starts == 1
