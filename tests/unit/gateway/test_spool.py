from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from backends.errors import ConfigError
from gateway.events import Charge, Record
from gateway.spool import Spool, SpoolFailed
from tests.records import admit, answer, note, settle


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "spool.db"


@pytest.fixture
def spool(path: Path) -> Iterator[Spool]:
    with closing(Spool(path, max_mb=1)) as spool:
        yield spool


@pytest.fixture
def fill(spool: Spool) -> Callable[[], int]:
    """Append until it is full; the number of groups."""

    def fill() -> int:
        num_groups = 0
        while not spool.is_full:
            spool.append([settle(num_groups, answer=answer(num_groups, "name", bytes(10_000)))])
            num_groups += 1
        return num_groups

    return fill


def test_records_come_out_as_they_went_in_oldest_first(spool: Spool) -> None:
    first: list[Record] = [
        admit(1),
        note(1, 1),
        settle(1, [Charge("budget", 0, 2**60)], answer(1, "name", b"\x00\xff")),
    ]
    spool.append(first)
    spool.append([admit(2)])

    assert spool.oldest(1000).records == [*first, admit(2)]
    assert spool.num_records == 4


def test_a_batch_has_whole_groups_until_it_has_enough_records(spool: Spool) -> None:
    for number in range(4):
        spool.append([admit(number), settle(number)])

    assert spool.oldest(1).records == [admit(0), settle(0)]
    assert len(spool.oldest(3).records) == 4


def test_only_what_was_in_the_batch_is_removed(spool: Spool) -> None:
    spool.append([admit(1), admit(2)])
    batch = spool.oldest(1000)
    spool.append([admit(3)])

    spool.remove(batch)

    assert (spool.num_records, spool.oldest(1000).records) == (1, [admit(3)])


def test_what_was_not_removed_is_there_for_the_next_run(path: Path) -> None:
    with closing(Spool(path, max_mb=1)) as spool:
        spool.append([admit(1), admit(2)])

    with closing(Spool(path, max_mb=1)) as spool:
        assert (spool.num_records, spool.oldest(1000).records) == (2, [admit(1), admit(2)])


def test_numbers_are_not_used_again_after_all_was_removed(spool: Spool) -> None:
    spool.append([admit(1)])
    batch = spool.oldest(1000)
    spool.remove(batch)
    spool.append([admit(2)])

    spool.remove(batch)

    assert spool.oldest(1000).records == [admit(2)]


def test_it_is_full_before_it_takes_no_more_so_that_running_requests_can_settle(
    spool: Spool, path: Path, fill: Callable[[], int]
) -> None:
    num_groups = fill()
    spool.append([settle(num_groups)])
    with pytest.raises(SpoolFailed, match=r"spool\.db \(store\.spool\) failed: database or disk is full"):
        while True:
            spool.append([settle(1, answer=answer(1, "name", bytes(10_000)))])

    assert path.stat().st_size <= 1 << 20
    assert spool.oldest(1).records[0].event == settle(0).event


def test_room_is_used_again_when_the_oldest_are_removed(spool: Spool, fill: Callable[[], int]) -> None:
    fill()

    spool.remove(spool.oldest(20))

    assert not spool.is_full
    assert fill() == 20


def test_the_disk_is_given_back_when_all_is_removed(spool: Spool, path: Path, fill: Callable[[], int]) -> None:
    fill()
    while not spool.is_empty:
        spool.remove(spool.oldest(30))

    assert path.stat().st_size < 32_768
    assert Path(f"{path}-wal").stat().st_size == 0


def test_only_its_owner_reads_the_file(path: Path) -> None:
    path.touch(0o644)
    before = os.umask(0)
    try:
        with closing(Spool(path, max_mb=1)) as spool:
            spool.append([admit(1)])
            modes = {file.stat().st_mode & 0o777 for file in path.parent.glob("spool.db*")}
    finally:
        os.umask(before)

    assert modes == {0o600}


def test_a_group_that_cannot_be_read_is_put_aside_and_holds_up_no_other(
    spool: Spool, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        spool.append([admit(number)])
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE groups SET records = x'c1' WHERE number = 2")

    batch = spool.oldest(1000)
    spool.remove(batch)

    assert batch.records == [admit(0), admit(2)]
    assert "group 2 in" in caplog.text
    assert (spool.is_empty, spool.oldest(1000).records) == (True, [])
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT number, records FROM groups").fetchall() == [(2, b"\xc1")]


def test_two_processes_may_ship_one_file(spool: Spool, path: Path) -> None:
    with closing(Spool(path, max_mb=1)) as other:
        spool.append([admit(1)])
        other.append([admit(2)])
        other.remove(other.oldest(1000))
        spool.append([admit(3)])

        assert spool.oldest(1000).records == [admit(3)]
        spool.remove(spool.oldest(1000))
        spool.remove(spool.oldest(1000))

        assert (spool.is_empty, other.is_empty) == (True, True)


@pytest.mark.parametrize("name", ["nowhere/spool.db", "a-folder", "text"])
def test_a_file_that_cannot_be_used_is_refused_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / "a-folder").mkdir()
    (tmp_path / "text").write_text("this is no database" * 100)

    with pytest.raises(ConfigError, match=rf"^store\.spool: .*{name} cannot be used"):
        Spool(tmp_path / name, max_mb=1)
