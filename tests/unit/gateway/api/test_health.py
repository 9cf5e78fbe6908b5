"""Probes."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from backends.base import Backend
from backends.types import BackendHealth, GenerateRequest
from gateway.api.health import gpu_available, readiness
from gateway.lanes import DEFAULT_LANES, Lanes


class Stub:
    """A backend in some state."""

    def __init__(self, state: BackendHealth) -> None:
        self._state = state

    def health(self) -> BackendHealth:
        return self._state


def states(**ready: bool) -> dict[str, Backend]:
    return {
        name: cast(Backend, Stub(BackendHealth(ready=is_ready, waiting=4, detail="loading")))
        for name, is_ready in ready.items()
    }


def test_one_ready_backend_makes_the_front_ready() -> None:
    lanes = Lanes(DEFAULT_LANES)

    assert readiness(states(a=False, b=True), lanes).status == "ready"
    assert readiness(states(a=False, b=False), lanes).status == "not_ready"
    assert readiness({}, lanes).status == "not_ready"


def test_readiness_counts_who_waits_and_tells_of_each_backend() -> None:
    lanes = Lanes(DEFAULT_LANES)
    lanes.open("a", None)
    lanes.enter("a", GenerateRequest(request_id="r", route="chat", model="m"))

    seen = readiness(states(a=False), lanes)

    assert (seen.queue_depth, seen.active_requests) == (1, 0)
    assert (seen.backends["a"].waiting, seen.backends["a"].detail) == (4, "loading")


def test_a_gpu_shows_as_a_device_node(tmp_path: Path) -> None:
    (tmp_path / "nvidiactl").touch()
    assert not gpu_available(tmp_path)

    (tmp_path / "nvidia0").touch()
    assert gpu_available(tmp_path)
