"""What the intake was given is found again, whole and in its order, however its process ended."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from backends.errors import ConfigError
from gateway.events import Record
from gateway.intake import LONGEST_S, MOST_BYTES, REST_S, SIDES, Intake, IntakeBusy
from tests.conftest import FakeClock
from tests.records import admit, answer, settle


@pytest.fixture
def place(tmp_path: Path) -> str:
    """The store's file, beside which the intake is."""
    return f"{tmp_path}/laneway.db"


@pytest.fixture
def intake(place: str) -> Iterator[Intake]:
    with closing(Intake(place)) as intake:
        yield intake


@pytest.fixture
def folders(tmp_path_factory: pytest.TempPathFactory) -> pytest.TempPathFactory:
    return tmp_path_factory


def pair(number: int) -> list[Record]:
    """A request that was let in and is over."""
    return [admit(number), settle(number)]


def left_over(place: str) -> list[Record]:
    with closing(Intake(place)) as intake:
        return [record for batch in intake.left_over(1000) for record in batch]


@contextmanager
def no_room_beyond(num_bytes: int) -> Iterator[None]:
    """No file may grow beyond that, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_a_process_left_is_found_in_its_order(place: str) -> None:
    with closing(Intake(place)) as intake:
        assert intake.append(pair(1))
        intake.turn()
        assert intake.append(pair(2))
        assert intake.append([admit(3)])

    assert left_over(place) == [*pair(1), *pair(2), admit(3)]


def test_it_comes_in_batches(place: str) -> None:
    with closing(Intake(place)) as intake:
        for number in range(5):
            intake.append(pair(number))

    with closing(Intake(place)) as again:
        assert [len(batch) for batch in again.left_over(4)] == [4, 4, 2]


def test_of_an_entry_that_was_cut_nothing_is_taken(place: str, intake: Intake) -> None:
    intake.append(pair(1))
    path = Path(f"{place}-intake-0")
    whole = path.stat().st_size
    intake.append(pair(2))
    intake.close()
    content = path.read_bytes()

    for cut in range(whole, len(content)):
        path.write_bytes(content[:cut])
        assert left_over(place) == pair(1)


def test_nothing_is_taken_from_what_was_damaged_on(
    place: str, intake: Intake, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        intake.append(pair(number))
    intake.close()
    path = Path(f"{place}-intake-0")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    assert left_over(place) == pair(0)
    assert "not written whole" in caplog.text


def test_a_side_is_empty_once_it_is_cleared(place: str, intake: Intake) -> None:
    intake.append(pair(1))
    side = intake.turn()
    intake.append(pair(2))
    assert not intake.has_spare

    intake.clear(side)
    assert intake.has_spare
    assert Path(f"{place}-intake-{side}").stat().st_size == 0
    intake.close()
    assert left_over(place) == pair(2)


def test_a_full_disk_is_said_and_leaves_nothing_half(place: str) -> None:
    clock = FakeClock()
    with closing(Intake(place, clock=clock)) as intake:
        intake.append(pair(1))
        size = Path(f"{place}-intake-0").stat().st_size
        for room in (size, size + 10):
            with no_room_beyond(room):
                assert not intake.append(pair(2))
            assert not intake.append(pair(2))  # it is left alone for a while
            clock.advance(REST_S)
        assert intake.append(pair(3))

    assert left_over(place) == [*pair(1), *pair(3)]


def test_after_half_an_entry_that_cannot_be_taken_back_nothing_is_appended(place: str) -> None:
    clock = FakeClock()
    with closing(Intake(place, clock=clock)) as intake:
        intake.append(pair(1))
        size = Path(f"{place}-intake-0").stat().st_size
        with no_room_beyond(size + 10), mock.patch("os.ftruncate", side_effect=OSError(5, "Input/output error")):
            assert not intake.append(pair(2))
        clock.advance(REST_S)
        assert not intake.append(pair(3))
        intake.turn()
        assert intake.append(pair(4))

    assert left_over(place) == [*pair(1), *pair(4)]


def test_a_slow_disk_is_left_alone_for_a_while(place: str) -> None:
    class SlowClock(FakeClock):
        def __call__(self) -> float:
            self.advance(LONGEST_S * 2)
            return super().__call__()

    clock = SlowClock()
    with closing(Intake(place, clock=clock)) as intake:
        assert intake.append(pair(1))
        assert not intake.append(pair(2))
        clock.advance(REST_S)
        assert intake.append(pair(3))

    assert left_over(place) == [*pair(1), *pair(3)]


def test_a_very_long_answer_is_left_to_the_store(place: str, intake: Intake) -> None:
    assert not intake.append([settle(1, answer=answer(1, "name", b"x" * MOST_BYTES))])
    assert intake.append(pair(2))
    intake.close()
    assert left_over(place) == pair(2)


def test_one_process_has_it_at_a_time(place: str, intake: Intake) -> None:
    with pytest.raises(IntakeBusy, match=r"laneway\.db-intake-0"):
        Intake(place)
    intake.close()
    Intake(place).close()


def test_it_is_free_when_its_process_was_killed_and_has_what_was_appended(place: str) -> None:
    code = (
        "import sys, time\n"
        "from gateway.intake import Intake\n"
        "from tests.records import admit, settle\n"
        "intake = Intake(sys.argv[1])\n"
        "assert intake.append([admit(1), settle(1)])\n"
        "print('told', flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, place], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "told\n"
        with pytest.raises(IntakeBusy):
            Intake(place)
        child.send_signal(signal.SIGKILL)

    assert left_over(place) == pair(1)


def test_only_its_owner_reads_it(place: str, intake: Intake) -> None:
    for side in SIDES:
        assert Path(f"{place}-intake-{side}").stat().st_mode & 0o777 == 0o600


def test_files_that_cannot_be_made_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"store\.url: .*nowhere/laneway\.db-intake-0 cannot be used"):
        Intake(f"{tmp_path}/nowhere/laneway.db")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(("append", "turn", "clear", "restart")), max_size=40))
def test_nothing_is_lost_or_reordered_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, acts: list[str]
) -> None:
    place = f"{tmp_path_factory.mktemp('intake')}/laneway.db"
    intake = Intake(place)
    in_store: list[Record] = []
    sides: dict[int, list[Record]] = {0: [], 1: []}
    at, turned, number = 0, None, 0
    for act in acts:
        if act == "append":
            number += 1
            assert intake.append(pair(number))
            sides[at] += pair(number)
        elif act == "turn" and intake.has_spare:
            turned = intake.turn()
            at = 1 - turned
        elif act == "clear" and turned is not None:
            in_store += sides[turned]
            sides[turned] = []
            intake.clear(turned)
            turned = None
        elif act == "restart":
            intake.close()
            intake = Intake(place)
            found = [record for batch in intake.left_over(3) for record in batch]
            in_store += found
            for side in SIDES:
                intake.clear(side)
            sides, at, turned = {0: [], 1: []}, 0, None
    intake.close()
    in_store += left_over(place)
    assert in_store == [record for done in range(1, number + 1) for record in pair(done)]
