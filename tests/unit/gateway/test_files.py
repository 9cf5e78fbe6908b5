"""Files by the clock: until when they are there, and what a sweep takes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from backends.errors import ConfigError
from gateway.errors import NoSuchObject, StoreUnavailable
from gateway.files import MARK, FileOptions, Files, StoredFile
from gateway.store import Store, StoreOptions

if TYPE_CHECKING:
    from tests.conftest import FakeClock


@pytest.fixture
def files(store: Store, tmp_path: Path, clock: FakeClock) -> Files:
    return Files(store, FileOptions(folder=str(tmp_path / "kept")), clock)


def kept(files: Files, expires_after_s: int | None = None, tenant: str = "acme") -> StoredFile:
    with closing(files.draft()) as draft:
        draft.write(b"hello")
        draft.finish()
        return files.keep(draft, tenant, filename="a.txt", purpose="batch", expires_after_s=expires_after_s)


def names_in(files: Files) -> list[str]:
    return sorted(path.name for path in files.folder.iterdir() if path.name != MARK)


def test_a_file_is_gone_when_its_time_is_over_and_its_bytes_with_the_next_sweep(files: Files, clock: FakeClock) -> None:
    lasting, brief = kept(files), kept(files, 3600)
    clock.advance(3599)
    assert files.sweep() == 0
    assert files.find("acme", brief.id) == brief

    clock.advance(1)
    with pytest.raises(NoSuchObject):
        files.find("acme", brief.id)

    assert files.sweep() == 1
    assert names_in(files) == [lasting.id]


def test_a_sweep_takes_more_than_a_batch_of_files(files: Files, clock: FakeClock) -> None:
    for _ in range(103):
        kept(files, 3600)
    clock.advance(3600)

    assert files.sweep() == 103
    assert names_in(files) == []


def test_a_draft_that_is_given_up_leaves_nothing(files: Files) -> None:
    with closing(files.draft()) as draft:
        draft.write(b"half")

    assert names_in(files) == []
    with pytest.raises(StoreUnavailable):
        draft.finish()


def test_a_reader_keeps_what_it_opened_when_the_file_is_deleted(files: Files) -> None:
    file = kept(files)
    with files.path(file.id).open("rb") as reading:
        files.delete("acme", file.id)

        assert reading.read() == b"hello"
    with pytest.raises(NoSuchObject):
        files.content("acme", file.id)


def test_a_file_whose_bytes_are_lost_is_told_as_one_that_is_not_there(files: Files) -> None:
    file = kept(files)
    files.path(file.id).unlink()

    with pytest.raises(NoSuchObject, match=file.id):
        files.content("acme", file.id)


def test_a_folder_of_another_store_is_refused_and_left_as_it_is(files: Files, tmp_path: Path) -> None:
    file = kept(files)
    with closing(Store.open(StoreOptions(url=f"sqlite:///{tmp_path}/another.db"))) as another:
        theirs = Files(another, FileOptions(folder=str(files.folder)))

        with pytest.raises(ConfigError, match=r"files\.folder: .* belongs to another store"):
            theirs.tidy()
        with pytest.raises(ConfigError):
            theirs.draft()

    files.tidy()
    assert files.content("acme", file.id)[0] == file


def test_a_folder_that_takes_nothing_is_told_as_a_store_that_is_away(store: Store, tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")

    with pytest.raises(StoreUnavailable):
        Files(store, FileOptions(folder=str(tmp_path / "taken" / "below"))).draft()


def test_without_an_option_the_folder_is_beside_the_store(store: Store) -> None:
    beside = store.file if store.dialect == "sqlite" else store.options.spool

    assert str(Files(store, FileOptions()).folder) == f"{beside}-files"
