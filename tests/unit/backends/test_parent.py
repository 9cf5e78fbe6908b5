"""A child's tie to its parent, over real processes."""

from __future__ import annotations

import signal
import subprocess
import sys

IN_TIME_S = 20
TIED = (
    "import sys, time; from backends.parent import end_with_input, end_with_parent\n"
    "end_with_parent(); end_with_input(); print('tied', flush=True); time.sleep({})"
)


def child(stdin: int, sleep_s: float) -> subprocess.Popen[str]:
    """A process that has tied itself, and sleeps."""
    argv = [sys.executable, "-c", TIED.format(sleep_s)]
    process = subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "tied\n"
    return process


def test_it_ends_when_its_input_does() -> None:
    with child(subprocess.PIPE, 60) as process:
        assert process.stdin is not None
        process.stdin.close()

        assert process.wait(IN_TIME_S) == 1


def test_it_outlives_an_input_that_is_no_pipe_of_a_parent() -> None:
    with child(subprocess.DEVNULL, 0.1) as process:
        assert process.wait(IN_TIME_S) == 0


def test_it_ends_with_a_parent_that_is_killed_while_its_input_stays_open() -> None:
    spawns = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-c', {TIED.format(60)!r}], stdin=0)\n"
        "time.sleep(60)"
    )
    argv = [sys.executable, "-c", spawns]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as middle:
        assert middle.stdout is not None
        assert middle.stdout.readline() == "tied\n"
        middle.send_signal(signal.SIGKILL)

        assert middle.stdout.read() == ""  # until the grandchild has let go of it too
