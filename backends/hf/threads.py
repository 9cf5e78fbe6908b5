"""How the engine's compute threads wait and where they run: OpenMP's settings, made before torch is loaded. No torch.

Measured with SmolLM2 on two cores, a step of 16 decodes and 40 prompt tokens (docs/performance.md):
- by default a thread that waits for the others spins for milliseconds; as soon as another process wants a core, the
  spinner holds the core that its neighbour waits for, and a step of 27 ms takes seconds;
- after half a second of idleness the kernel wakes both threads on one core, and the first step takes three times as
  long; bound to cores they stay apart;
- weights in huge pages cost fewer look-ups, most of all when they were not touched for a while.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SPIN_COUNT = "2000"  # rounds, about 10 µs, before a waiting thread sleeps


def cores() -> frozenset[int]:
    """The cores this thread may run on; empty where the system does not tell."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def prepare(num_threads: int, allowed_cores: int, environ: MutableMapping[str, str]) -> None:
    """Set what OpenMP and torch read when they are loaded; what the operator has set stays.

    Threads are bound only when there is one for every core they may run on: bound to a part of the cores, two engines
    would crowd on the same ones, and so would two containers that share a machine by quotas of time.
    """
    environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)
    environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    if num_threads == allowed_cores:
        environ.setdefault("OMP_PROC_BIND", "true")
        environ.setdefault("OMP_PLACES", "cores")


def run_anywhere(allowed: frozenset[int]) -> None:
    """Free the calling thread from the binding it inherits: it does no computing, and must not wait for who does."""
    if allowed:
        os.sched_setaffinity(0, allowed)
