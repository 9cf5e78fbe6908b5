"""Deadlines and waits seen by callers: what ends when, what is never begun, and what is told of the queue."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.integration.front.books import Books, chat, says, send, slot_taken
from tests.integration.front.front_server import CHAT, eventually, leave, read_until

if TYPE_CHECKING:
    from tests.integration.front.front_server import Front, Serve

TOTAL, SILENCE, OF_NODE = "X-Request-Timeout", "x-stainless-read-timeout", "x-stainless-timeout"
NEVER = {"first_delay_s": 600}


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with closing(Books(tmp_path)) as books:
        yield books


def is_late(reply: httpx.Response) -> bool:
    return reply.status_code == 504 and reply.json()["error"]["code"] == "deadline_exceeded"


# What a deadline bounds.


def test_a_request_timeout_bounds_the_whole_answer(front: Front) -> None:
    script = {"tokens": ["a", "b"], "fail": {"kind": "hang", "after_tokens": 1}}
    with front.client(headers={TOTAL: "0.2"}) as client:
        whole = client.post(CHAT, json=chat(script=script))
        stream = client.post(CHAT, json=chat(stream=True, script=script))
        unbegun = client.post(CHAT, json=chat(stream=True, script=NEVER))

    assert is_late(whole) and is_late(unbegun)
    assert stream.status_code == 200
    assert stream.text.index('"a"') < stream.text.index('"deadline_exceeded"')
    assert front.count("running") == 0


def test_a_stream_that_goes_on_within_its_timeout_is_whole(front: Front) -> None:
    with front.client(headers={TOTAL: "20"}) as client:
        stream = client.post(CHAT, json=chat(stream=True, script=says(5, eos=True, delay_s=0.01)))

    assert stream.text.endswith("data: [DONE]\n\n") and "error" not in stream.text


def test_a_read_timeout_bounds_the_first_byte_of_a_stream_only(front: Front) -> None:
    slow = says(4, eos=True, delay_s=0.15, first_delay_s=0)
    with front.client(headers={SILENCE: "0.5"}) as client:
        stream = client.post(CHAT, json=chat(stream=True, script=slow))
        unbegun = client.post(CHAT, json=chat(stream=True, script=NEVER))

    assert all(f'"{number:03d} "' in stream.text for number in range(4))
    assert "deadline_exceeded" not in stream.text
    assert is_late(unbegun)


def test_a_read_timeout_bounds_all_of_a_whole_answer(front: Front) -> None:
    with front.client(headers={SILENCE: "0.3"}) as client:
        late = client.post(CHAT, json=chat(script=says(600, delay_s=0.15, first_delay_s=0)))

    assert is_late(late)


def test_a_request_timeout_that_makes_no_sense_is_refused_and_an_sdks_own_is_not(front: Front) -> None:
    with front.client() as client:
        for text in ("0", "-1", "nan", "inf", "soon", "1e9"):
            refused = client.post(CHAT, json=chat(), headers={TOTAL: text})
            served = [client.post(CHAT, json=chat(), headers={name: text}) for name in (SILENCE, OF_NODE)]
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, TOTAL)
            assert [reply.status_code for reply in served] == [200, 200]


# What is never begun.


@pytest.mark.parametrize("header", [TOTAL, SILENCE, OF_NODE])
def test_work_whose_caller_will_be_gone_is_not_begun(serve: Serve, header: str) -> None:
    front = serve(capacity=1)
    with front.client(headers={header: "0.1"}) as client:
        with slot_taken(front):
            late = [client.post(CHAT, json=chat(stream=stream)) for stream in (True, False)]
        assert front.count("started") == 1  # who held the slot
        in_time = client.post(CHAT, json=chat(), headers={header: "20"})

    assert all(is_late(reply) for reply in late)
    assert in_time.status_code == 200


def test_what_was_never_begun_costs_nothing_and_says_so(serve: Serve, books: Books) -> None:
    front = serve(store=books.options, capacity=1)
    with slot_taken(front), front.client(headers={TOTAL: "0.1"}) as client:
        late = client.post(CHAT, json=chat(50))

    assert "nothing was computed" in late.json()["error"]["message"]
    (row,) = books.rows_of(late)
    assert (row.outcome, row.source, row.prompt_tokens, row.ttft_ms) == ("deadline", "none", 0, None)
    assert row.wait_ms is not None and row.wait_ms >= 90


# What is told of the queue.


def test_an_answer_says_its_lane_its_position_and_its_wait(serve: Serve) -> None:
    front = serve(capacity=1)
    waiting: list[socket.socket] = []
    with slot_taken(front):
        for lane in ("standard", "standard", "batch", "standard", "batch"):
            body = chat(stream=True, script=says(1, eos=True))
            waiting.append(send(front, body, {"X-Laneway-Lane": lane}))
            eventually(lambda: front.waiting() == len(waiting), "it waits")
    heads = [read_until(client, b"[DONE]").partition(b"\r\n\r\n")[0].decode() for client in waiting]

    lanes, positions, waits = (
        [match[1] for head in heads if (match := re.search(rf"{name}: (\S+)", head))]
        for name in ("x-laneway-lane", "x-laneway-queue-position", "x-laneway-queue-wait-ms")
    )
    assert lanes == ["standard", "standard", "batch", "standard", "batch"]
    assert positions == ["0", "1", "0", "2", "1"]
    assert len(waits) == 5 and all(wait.isdecimal() for wait in waits)
    for client in waiting:
        leave(client)


def test_who_need_not_wait_is_told_so(serve: Serve) -> None:
    front = serve(capacity=1)
    with front.client() as client:
        replies = [client.post(CHAT, json=chat(stream=stream)) for stream in (True, False)]

    for reply in replies:
        assert reply.headers["x-laneway-queue-position"] == "0"
        assert int(reply.headers["x-laneway-queue-wait-ms"]) < 1000


def test_every_latency_that_is_told_includes_the_wait(serve: Serve, books: Books) -> None:
    """A caller that saw 20 s must not find 10 s in the metrics."""
    front = serve(store=books.options, capacity=1)
    held_s = 0.3
    with front.client() as client:
        with slot_taken(front):
            waiting = send(front, chat(script=says(1, eos=True)), {"X-Laneway-Lane": "batch"})
            eventually(lambda: front.waiting() == 1, "it waits")
            time.sleep(held_s)
        head = read_until(waiting, b'"000 "').decode()
        metrics = client.get("/metrics").text

    def total(name: str, labels: str) -> float:
        return float(next(line for line in metrics.splitlines() if line.startswith(f"{name}_sum{labels}")).split()[-1])

    assert total("laneway_queue_wait_seconds", '{lane="batch"}') >= held_s
    assert total("laneway_ttft_seconds", '{lane="batch"}') >= held_s
    assert total("inference_latency_seconds", '{model="scripted",route="chat"}') >= 2 * held_s  # the holder's too
    for name in ("x-laneway-queue-wait-ms", "openai-processing-ms"):
        told = re.search(rf"{name}: (\d+)", head)
        assert told is not None and int(told[1]) >= 1000 * held_s
    (row,) = (row for row in books.settled(2) if row.lane == "batch")
    assert row.wait_ms is not None and row.wait_ms >= 1000 * held_s
    assert row.ttft_ms is not None and row.ttft_ms >= row.wait_ms
    leave(waiting)


def test_how_late_the_event_loop_is_can_be_seen(front: Front) -> None:
    with front.client() as client:
        seen = re.compile(r"^laneway_loop_lag_seconds_count [1-9]", re.MULTILINE)
        eventually(lambda: bool(seen.search(client.get("/metrics").text)), "the lag is measured")
