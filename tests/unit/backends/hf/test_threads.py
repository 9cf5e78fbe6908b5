"""What OpenMP is told before torch is loaded."""

from __future__ import annotations

import os
import threading

from backends.hf import threads


def test_threads_are_bound_when_there_is_one_for_every_core() -> None:
    environ: dict[str, str] = {}

    threads.prepare(4, 4, environ)

    assert (environ["OMP_PROC_BIND"], environ["OMP_PLACES"]) == ("true", "cores")


def test_threads_on_a_part_of_the_cores_are_not_bound() -> None:
    environ: dict[str, str] = {}

    threads.prepare(2, 4, environ)

    assert "OMP_PROC_BIND" not in environ
    assert environ["GOMP_SPINCOUNT"] == threads.SPIN_COUNT


def test_what_the_operator_has_set_stays() -> None:
    environ = {"GOMP_SPINCOUNT": "7", "OMP_PROC_BIND": "false", "THP_MEM_ALLOC_ENABLE": "0"}

    threads.prepare(1, 1, environ)

    assert (environ["GOMP_SPINCOUNT"], environ["OMP_PROC_BIND"], environ["THP_MEM_ALLOC_ENABLE"]) == ("7", "false", "0")


def test_a_thread_born_bound_can_run_anywhere_again() -> None:
    allowed = threads.cores()
    found: list[frozenset[int]] = []

    def bound() -> None:
        os.sched_setaffinity(0, {min(allowed)})
        threads.run_anywhere(allowed)
        found.append(threads.cores())

    thread = threading.Thread(target=bound)
    thread.start()
    thread.join()

    assert found == [allowed]
