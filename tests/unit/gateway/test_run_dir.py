"""The parent's folder, and what a parent that was killed leaves behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.run_dir import MARK, run_dir, sweep

HOLDS = "with r.run_dir(['b']) as folder: print(folder, flush=True); input()"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of this test alone, however long its path is."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("gateway.run_dir.SOCKET_PATH_BYTES", 1000)
    return tmp_path


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Another process that holds a folder beside, and that folder."""
    code = f"import gateway.run_dir as r, tempfile; tempfile.tempdir = {str(tmp_path)!r}; r.SOCKET_PATH_BYTES = 1000\n"
    argv = [sys.executable, "-c", code + HOLDS]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_a_folder_is_private_and_goes_with_its_parent(temporary: Path) -> None:
    with run_dir(["local"]) as folder:
        assert (folder.parent, folder.stat().st_mode & 0o777) == (temporary, 0o700)

    assert list(temporary.iterdir()) == []


def test_a_place_too_long_for_a_sockets_path_is_left_for_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with run_dir(["x" * 64]) as folder:
        assert folder.parent == Path("/tmp")


def test_the_folder_of_a_killed_parent_is_swept_at_the_next_start(
    temporary: Path, parent: tuple[subprocess.Popen[str], Path]
) -> None:
    process, left = parent
    (left / "front.beat").touch()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert left.exists()

    with run_dir(["local"]) as folder:
        assert [path for path in temporary.iterdir() if path.is_dir()] == [folder]


def test_the_folder_of_a_living_parent_stays(temporary: Path, parent: tuple[subprocess.Popen[str], Path]) -> None:
    with run_dir(["local"]):
        assert parent[1].exists()


def test_nothing_else_that_is_called_alike_is_touched(tmp_path: Path) -> None:
    notes, elsewhere = tmp_path / "laneway-notes", tmp_path / "elsewhere"
    for folder in (notes, elsewhere):
        folder.mkdir()
        (folder / "work.txt").touch()
    (elsewhere / MARK).touch()
    (tmp_path / "laneway-link").symlink_to(elsewhere)
    (tmp_path / "laneway-file").touch()

    sweep(tmp_path)

    assert (notes / "work.txt").exists()
    assert (elsewhere / "work.txt").exists()
    assert (tmp_path / "laneway-file").exists()
