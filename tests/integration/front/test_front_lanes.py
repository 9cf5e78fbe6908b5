"""Lanes seen from outside: refused at the bound, refused in time, and served in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from gateway.lanes import LaneOptions
from tests.integration.front.front_server import connect, eventually, leave, read_until

if TYPE_CHECKING:
    import httpx

    from tests.integration.front.front_server import Front, Serve

CHAT = "/v1/chat/completions"


def body(**script: object) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": "x"}], "script": script}


@contextmanager
def slot_taken(front: Front) -> Iterator[None]:
    """Somebody holds a slot until the end of the block."""
    holder = connect(front, stream=True, tokens=["a"], first_delay_s=600)
    eventually(lambda: front.count("running") == 1, "the slot is taken")
    yield
    leave(holder)


def assert_come_back(reply: httpx.Response) -> None:
    assert reply.status_code == 503
    assert (reply.json()["error"]["type"], reply.json()["error"]["code"]) == ("service_unavailable", "overloaded")
    assert int(reply.headers["retry-after"]) >= 1
    assert reply.headers["content-type"] == "application/json"


def test_a_full_lane_refuses_at_once_and_others_do_not_notice(serve: Serve) -> None:
    front = serve(capacity=1, lanes={"batch": LaneOptions(priority=2, max_queue=0)})

    with slot_taken(front), front.client() as client:
        refused = client.post(CHAT, json={**body(tokens=["b"]), "stream": True}, headers={"X-Laneway-Lane": "batch"})
        waiting = connect(front, stream=False, tokens=["c"])
        eventually(lambda: front.waiting() == 1, "it waits")

    assert_come_back(refused)
    assert read_until(waiting, b'"c"').startswith(b"HTTP/1.1 200")
    leave(waiting)


@pytest.mark.parametrize("stream", [True, False])
def test_a_wait_ends_at_max_wait_and_what_runs_goes_on(serve: Serve, stream: bool) -> None:
    front = serve(capacity=1, lanes={"standard": LaneOptions(priority=1, max_wait=0.05)})

    with slot_taken(front), front.client() as client:
        refused = client.post(CHAT, json={**body(tokens=["b"]), "stream": stream})
        still_running = front.count("running"), front.count("cancelled")

    assert_come_back(refused)
    assert still_running == (1, 0)
    assert front.count("started") == 1


def test_the_interactive_lane_goes_first(serve: Serve) -> None:
    front = serve(capacity=1, lanes={"batch": LaneOptions(priority=2, floor=0)})
    lanes = ["batch", "batch", "interactive"]
    with slot_taken(front):
        waiting = []
        for lane in lanes:
            waiting.append(connect(front, stream=True, lane=lane, tokens=["a"], first_delay_s=600))
            eventually(lambda: front.waiting() == len(waiting), "it waits")
        # The slot comes free; whoever gets it keeps it.
    eventually(lambda: front.waiting() == 2, "one got the slot")

    with front.client() as client:
        metrics = client.get("/metrics").text
    assert 'laneway_running{lane="interactive"} 1.0' in metrics
    assert 'laneway_waiting{lane="batch"} 2.0' in metrics
    for client_socket in waiting:
        leave(client_socket)
