"""Idempotency-Key: a call that is sent again is answered again and billed once."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gateway.idempotency import KEPT_S, MOST_ANSWER_BYTES, Idempotency
from gateway.retention import purge_answers
from tests.integration.front.books import Books, chat, says, send, slot_taken
from tests.integration.front.front_server import CHAT, eventually, leave, read_until, running

if TYPE_CHECKING:
    from tests.integration.front.front_server import Front, Serve

ONCE = {"Idempotency-Key": "order-17"}


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with closing(Books(tmp_path)) as books:
        yield books


def call(front: Front, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
    with front.client(headers=headers) as client:
        return client.post(CHAT, json=body)


def assert_same_answer(first: httpx.Response, again: httpx.Response) -> None:
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.content == first.content
    assert again.headers["content-type"] == first.headers["content-type"]
    assert ("idempotent-replayed" in first.headers, again.headers["idempotent-replayed"]) == (False, "true")


@pytest.mark.parametrize("stream", [True, False])
def test_the_same_call_gets_the_same_bytes_and_is_billed_once(serve: Serve, books: Books, stream: bool) -> None:
    front = serve(store=books.options)
    key = books.key(rpm=1) | ONCE
    first, again, third = (call(front, chat(stream=stream, script=says(5, eos=True)), key) for _ in range(3))

    assert_same_answer(first, again)
    assert_same_answer(first, third)
    assert front.count("started") == 1
    assert [row.completion_tokens for row in books.settled()] == [6]


@pytest.mark.parametrize("stream", [True, False])
def test_calls_that_come_while_the_first_runs_join_it(serve: Serve, books: Books, stream: bool) -> None:
    front = serve(store=books.options)
    body = chat(stream=stream, script={"tokens": ["a", "b", "c"], "delay_s": 0.05})
    key = books.key(concurrency=1) | ONCE

    async def all_at_once() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=front.url, headers=key, timeout=20) as client:
            return await asyncio.gather(*(client.post(CHAT, json=body) for _ in range(20)))

    replies = asyncio.run(all_at_once())

    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.content for reply in replies}) == 1
    assert sum("idempotent-replayed" in reply.headers for reply in replies) == 19
    assert front.count("started") == 1
    assert len(books.settled()) == 1


def test_one_who_joins_a_stream_gets_it_from_its_beginning_while_it_runs(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    key = books.key() | ONCE
    body = chat(stream=True, script=says(5, fail={"kind": "hang", "after_tokens": 2}))
    first = send(front, body, key)
    read_until(first, b'"001 "')

    second = send(front, body, key)

    assert b'"000 "' in read_until(second, b'"001 "')
    assert front.count("started") == 1
    leave(first)
    leave(second)


def test_a_client_that_was_cut_off_comes_back_to_the_same_work(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    key = books.key() | ONCE
    body = chat(stream=True, script=says(4, eos=True, delay_s=0.05))
    cut_off = send(front, body, key)
    read_until(cut_off, b'"000 "')
    leave(cut_off)

    back = call(front, body, key)

    assert back.headers["idempotent-replayed"] == "true"
    assert all(f'"{number:03d} "' in back.text for number in range(4))
    assert (front.count("started"), front.count("cancelled")) == (1, 0)
    assert [(row.outcome, row.completion_tokens) for row in books.settled()] == [("ok", 5)]


def test_work_that_nobody_comes_back_for_ends_and_is_recorded_as_left(
    serve: Serve, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.app.Idempotency", functools.partial(Idempotency, linger_s=0.05))
    front = serve(store=books.options)
    script = says(4, fail={"kind": "hang", "after_tokens": 2})
    stream = send(front, chat(stream=True, script=script), books.key() | ONCE)
    read_until(stream, b'"001 "')

    leave(stream)

    assert [(row.outcome, row.completion_tokens) for row in books.settled()] == [("client_abort", 2)]
    assert front.count("cancelled") == 1


def test_a_replay_says_nothing_of_the_limits_that_is_no_longer_so(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    key = books.key(rpm=60)
    first = call(front, chat(), key | ONCE)
    for _ in range(8):
        call(front, chat(), key)
    again = call(front, chat(), key | ONCE)

    left = again.headers.get("x-ratelimit-remaining-requests")
    assert first.headers["x-ratelimit-remaining-requests"] == "59"
    assert left is None or int(left) < 58


def test_another_body_or_route_under_the_same_name_is_refused(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    key = books.key() | ONCE
    body = chat(max_tokens=1, prompt="x")
    with front.client(headers=key) as client:
        first = client.post(CHAT, json=body)
        other = client.post(CHAT, json=body | {"max_tokens": 2})
        elsewhere = client.post("/v1/completions", json=body)
        again = client.post(CHAT, json=body)

    for refused in (other, elsewhere):
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "idempotency_key_reused")
        assert refused.headers["x-should-retry"] == "false"
    assert_same_answer(first, again)
    assert len(books.settled()) == 1


def test_names_are_each_keys_own(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    keys = [books.key() | ONCE, books.key() | ONCE, books.key("bolt") | ONCE]
    replies = [call(front, chat(), key) for key in keys]

    assert not any("idempotent-replayed" in reply.headers for reply in replies)
    assert len({reply.json()["id"] for reply in replies}) == 3
    assert len(books.settled(3)) == 3


def test_a_failure_is_not_kept(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    key = books.key(concurrency=1)
    with slot_taken(front, key):
        refused = call(front, chat(), key | ONCE)
    served = call(front, chat(), key | ONCE)
    broken = [call(front, chat(script={"fail": {"kind": "crash"}}), key | {"Idempotency-Key": "x"}) for _ in range(2)]

    assert (refused.status_code, served.status_code) == (429, 200)
    assert [reply.status_code for reply in broken] == [500, 500]
    assert "idempotent-replayed" not in served.headers
    assert front.count("started") == 4


def test_an_answer_too_large_to_keep_is_billed_once_and_not_made_again(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    key = books.key() | ONCE
    body = chat(max_tokens=2, script={"tokens": ["x" * (MOST_ANSWER_BYTES // 2)] * 2, "eos": False})
    first, again = call(front, body, key), call(front, body, key)

    assert len(first.content) > MOST_ANSWER_BYTES
    assert (again.status_code, again.json()["error"]["code"]) == (409, "idempotency_answer_not_kept")
    assert len(books.settled()) == 1


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_outlives_the_server(books: Books, tmp_path: Path, stream: bool) -> None:
    key = books.key() | ONCE
    body = chat(stream=stream, script=says(5, eos=True))
    with running(books.settings(), tmp_path) as front:
        first = call(front, body, key)
    with running(books.settings(), tmp_path) as front:
        again = call(front, body, key)
        other = call(front, chat(), key)

        assert front.count("started") == 0
    assert_same_answer(first, again)
    assert other.status_code == 409
    assert len(books.settled()) == 1


def test_an_answer_is_kept_for_ten_minutes(books: Books, tmp_path: Path) -> None:
    assert KEPT_S == 600
    key = books.key() | ONCE
    with running(books.settings(), tmp_path) as front:
        first = call(front, chat(), key)
    assert purge_answers(books.store, time.time() + 500) == 0
    assert purge_answers(books.store, time.time() + 601) == 1
    with running(books.settings(), tmp_path) as front:
        anew = call(front, chat(), key)

    assert "idempotent-replayed" not in anew.headers
    assert anew.json()["id"] != first.json()["id"]
    assert len(books.settled(2)) == 2


def test_an_unknown_model_is_told_as_without_a_name(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    reply = call(front, chat() | {"model": "nobody"}, books.key() | ONCE)

    assert (reply.status_code, reply.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("stream", [True, False])
def test_one_who_joined_is_told_how_the_work_failed_after_the_first_client_left(
    serve: Serve, books: Books, stream: bool
) -> None:
    front = serve(store=books.options)
    headers = books.key() | ONCE
    body = chat(
        stream=stream, script={"tokens": ["a"], "first_delay_s": 0.5, "fail": {"kind": "overloaded", "after_tokens": 1}}
    )
    first = send(front, body, headers)
    eventually(lambda: front.count("running") == 1, "begun")
    leave(first)
    reply = call(front, body, headers)

    if stream:  # its first token was out before it failed
        assert (reply.status_code, reply.headers["content-type"][:17]) == (200, "text/event-stream")
        assert '"code":"overloaded"' in reply.text
    else:
        assert (reply.status_code, reply.json()["error"]["code"]) == (503, "overloaded")
