"""Bursts on the routes that Litestar handles itself: all answer, from one front, beside a store that moves."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx

from tests.integration.served import SCRIPTED, Serve

AT_ONCE = 8
CALLS = 400
CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "a"}]}


def test_a_burst_of_calls_beside_chats_is_answered_by_the_same_front(serve: Serve) -> None:
    served = serve(SCRIPTED)
    front = served.child("gateway.front").pid

    def ask(number: int) -> int:
        if number % 4 == 0:  # its entries in the ledger are what every other call then sees the store move by
            return client.post("/v1/chat/completions", json=CHAT).status_code
        if number % 4 == 1:
            return client.get("/v1/models").status_code
        return client.post("/tokenize", json={"model": "scripted", "prompt": "a b"}).status_code

    with httpx.Client(base_url=served.address) as client, ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(ask, range(CALLS)))

    assert set(answers) == {200}
    assert served.child("gateway.front").pid == front
    assert "cannot be read" not in served.log
