"""Clients that leave, at every place where a request can be: the backend is told, and nothing stays behind."""

from __future__ import annotations

import random
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tests.integration.front.front_server import MESSAGES, connect, eventually, leave, read_until

if TYPE_CHECKING:
    from tests.integration.front.front_server import Front, Serve


def assert_nothing_is_left(front: Front) -> None:
    eventually(lambda: front.count("running") == 0, "the backend runs nothing")
    with front.client() as client:
        ready = client.get("/ready").json()
        assert (ready["queue_depth"], ready["active_requests"]) == (0, 0)
        assert client.post("/v1/chat/completions", json={"model": "scripted", "messages": MESSAGES}).status_code == 200


@pytest.mark.parametrize("capacity", [None, 1])
@pytest.mark.parametrize("stream", [True, False])
def test_leaving_before_the_first_token_cancels(serve: Serve, stream: bool, capacity: int | None) -> None:
    front = serve(capacity=capacity)
    client = connect(front, stream=stream, tokens=["a"], first_delay_s=60)
    eventually(lambda: front.count("running") == 1, "it runs")

    leave(client)

    eventually(lambda: front.count("cancelled") == 1, "the cancel arrives")
    assert_nothing_is_left(front)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_between_tokens_cancels(front: Front, stream: bool) -> None:
    client = connect(front, stream=stream, tokens=["a", "b"], fail={"after_tokens": 1, "kind": "hang"})
    if stream:
        read_until(client, b'"a"')
    eventually(lambda: front.count("running") == 1, "it runs")

    leave(client)

    eventually(lambda: front.count("cancelled") == 1, "the cancel arrives")
    assert_nothing_is_left(front)


def test_leaving_without_reading_cancels_a_stream_parked_behind_a_full_socket(front: Front) -> None:
    client = connect(front, stream=True, tokens=["x" * 10_000], eos=False)
    read_until(client, b"data:")
    eventually(lambda: front.health().running == 1, "it runs")

    leave(client)

    eventually(lambda: front.count("cancelled") == 1, "the cancel arrives")
    assert_nothing_is_left(front)


@pytest.mark.parametrize("stream", [True, False])
def test_leaving_the_queue_means_never_being_computed(serve: Serve, stream: bool) -> None:
    front = serve(capacity=1)
    holder = connect(front, stream=True, tokens=["a"], first_delay_s=60)
    eventually(lambda: front.count("running") == 1, "the slot is taken")
    queued = connect(front, stream=stream, tokens=["b"])
    eventually(lambda: front.waiting() == 1, "it waits")

    leave(queued)

    eventually(lambda: front.waiting() == 0, "it left the queue")
    assert front.count("started") == 1
    leave(holder)
    assert_nothing_is_left(front)
    assert front.count("started") == 2  # the holder and the last check


def test_leaving_in_the_middle_of_the_body_starts_nothing(front: Front) -> None:
    client = socket.create_connection(("127.0.0.1", front.port))
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")

    leave(client)

    assert_nothing_is_left(front)
    assert front.count("started") == 1


def test_a_cancelled_request_is_counted_as_one_the_client_left(front: Front) -> None:
    client = connect(front, stream=True, tokens=["a"], first_delay_s=60)
    eventually(lambda: front.count("running") == 1, "it runs")

    leave(client)

    line = 'inference_requests_total{model="scripted",route="chat",status="499"} 1.0'
    with front.client() as reader:
        eventually(lambda: line in reader.get("/metrics").text, "the request is counted")


def test_three_hundred_random_leavers_leave_no_slot_behind(serve: Serve) -> None:
    front = serve(capacity=4)
    chance = random.Random(7)

    def one(stream: bool, first_delay_s: float, stay_s: float) -> None:
        client = connect(front, stream=stream, tokens=["a", "b", "c"], first_delay_s=first_delay_s, delay_s=0.01)
        threading.Event().wait(stay_s)
        leave(client)

    plans = [(chance.random() < 0.5, chance.random() * 0.05, chance.random() * 0.1) for _ in range(300)]
    for start in range(0, 300, 30):
        threads = [threading.Thread(target=one, args=plan) for plan in plans[start : start + 30]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    eventually(lambda: front.waiting() == 0, "nobody waits")
    assert_nothing_is_left(front)
    holders = [connect(front, stream=True, tokens=["a"], first_delay_s=60) for _ in range(4)]
    eventually(lambda: front.count("running") == 4, "all four slots can be taken")
    for holder in holders:
        leave(holder)
    assert_nothing_is_left(front)
