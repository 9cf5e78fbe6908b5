"""Headers of answers and refusals: when to come back, what is left of the limits, and never a number that is wrong."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from gateway.lanes import LaneOptions
from gateway.rules import Scope
from tests.integration.front.books import Books, chat, says, slot_taken
from tests.integration.front.front_server import CHAT

if TYPE_CHECKING:
    from tests.integration.front.front_server import Serve

ACME = Scope("tenant", "acme")
RATES = [f"x-ratelimit-{what}-{of}" for of in ("requests", "tokens") for what in ("limit", "remaining", "reset")]
DURATION = re.compile(r"(\d+h)?(\d+m)?\d+(\.\d{1,3})?s|\d+ms")


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with closing(Books(tmp_path)) as books:
        yield books


def assert_told_when_to_come_back(reply: httpx.Response) -> None:
    """In a time that no SDK sleeps over, in both spellings, or not at all; and what the limits have left."""
    if "retry-after" in reply.headers:
        assert 1 <= int(reply.headers["retry-after"]) <= 60
        assert 0 < int(reply.headers["retry-after-ms"]) <= 1000 * int(reply.headers["retry-after"])
        assert "x-should-retry" not in reply.headers
    else:
        assert reply.headers["x-should-retry"] == "false"
        assert "retry-after-ms" not in reply.headers
    assert_rates_make_sense(reply)
    assert all(name in reply.headers for name in RATES)


def assert_rates_make_sense(reply: httpx.Response) -> None:
    """Never negative, never unknown, never more than there is: what is not known is left out."""
    for of in ("requests", "tokens"):
        given = [reply.headers.get(f"x-ratelimit-{what}-{of}") for what in ("limit", "remaining", "reset")]
        if given == [None] * 3:
            continue
        limit, remaining, reset = given
        assert limit is not None and remaining is not None and reset is not None
        assert limit.isdecimal() and remaining.isdecimal()
        assert 0 <= int(remaining) <= int(limit)
        assert DURATION.fullmatch(reset), reset


@pytest.mark.parametrize("what", ["rpm", "tpm", "tokens", "usd", "prepaid", "too large"])
def test_every_refusal_of_a_limit_says_when_to_come_back(serve: Serve, books: Books, what: str) -> None:
    """etalab-ia/OpenGateLLM#364: 429 without retry-after."""
    front = serve(store=books.options)
    key = books.key(rpm=1 if what == "rpm" else 1000, tpm=100 if what in ("tpm", "too large") else 100_000)
    books.price()
    if what in ("tokens", "usd", "prepaid"):
        meter: Any = "tokens" if what == "tokens" else "usd"
        books.accounts.set_limit(ACME, meter, 150, period="prepaid" if what == "prepaid" else "month")
    body = chat(200 if what == "too large" else 90, max_tokens=5, script=says(5))
    with front.client(headers=key) as client:
        replies = [client.post(CHAT, json=body | {"stream": stream}) for stream in (True, True, False)]

    assert replies[0].status_code == (429 if what == "too large" else 200)
    for refused in replies[1:]:
        assert refused.status_code == 429
        assert ("retry-after" in refused.headers) == (what in ("rpm", "tpm"))
        assert_told_when_to_come_back(refused)


@pytest.mark.parametrize("what", ["concurrency", "full lane", "long wait", "no room", "backend away"])
def test_every_refusal_of_what_is_busy_or_away_says_when_to_come_back(serve: Serve, books: Books, what: str) -> None:
    lanes = {"batch": LaneOptions(priority=2, max_queue=0), "standard": LaneOptions(priority=1, max_wait=0.05)}
    front = serve(store=books.options, lanes=lanes, capacity=1)
    key = books.key(rpm=1000, tpm=100_000, concurrency=1 if what == "concurrency" else None)
    fails = {"no room": "overloaded", "backend away": "unavailable"}.get(what)
    headers = {"X-Laneway-Lane": "batch"} if what == "full lane" else {}
    with front.client(headers=key | headers) as client, nullcontext() if fails else slot_taken(front, key):
        body = chat(script={"fail": {"kind": fails}} if fails else {})
        replies = [client.post(CHAT, json=body | {"stream": stream}) for stream in (True, False)]

    for refused in replies:
        assert refused.status_code == (429 if what == "concurrency" else 503)
        assert "retry-after" in refused.headers
        assert_told_when_to_come_back(refused)


def test_a_wait_of_more_than_a_minute_is_told_in_the_body_and_not_to_the_sdk(serve: Serve, books: Books) -> None:
    """earendil-works/pi#3671: an SDK sleeps for the days that retry-after says."""
    front = serve(store=books.options)
    key = books.key(tpm=100)
    other = books.key("bolt")
    books.accounts.set_limit(Scope("tenant", "bolt"), "tokens", 10, period="rolling:30d")
    with front.client() as client:
        long_answer = client.post(CHAT, json=chat(script=says(300, eos=True)), headers=key)
        owing = client.post(CHAT, json=chat(max_tokens=1), headers=key)
        client.post(CHAT, json=chat(max_tokens=9, script=says(9)), headers=other)
        spent = client.post(CHAT, json=chat(max_tokens=9), headers=other)

    assert long_answer.status_code == 200
    for refused in (owing, spent):
        assert refused.status_code == 429
        assert refused.json()["error"]["limit"]["retry_after_s"] > 60
        assert (refused.headers["x-should-retry"], "retry-after" in refused.headers) == ("false", False)


def test_an_answer_says_what_is_left_of_the_tightest_limit(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    key = books.key(rpm=100, tpm=100_000)
    books.accounts.set_limit(ACME, "rpm", 10)
    books.accounts.set_limit(Scope("model", "scripted"), "tpm", 1000)
    body = chat(100, max_tokens=50, script=says(50))
    with front.client(headers=key) as client:
        replies = [client.post(CHAT, json=body | {"stream": stream}) for stream in (False, True)]

    assert [reply.headers["x-ratelimit-limit-requests"] for reply in replies] == ["10", "10"]
    assert [reply.headers["x-ratelimit-remaining-requests"] for reply in replies] == ["9", "8"]
    assert [reply.headers["x-ratelimit-limit-tokens"] for reply in replies] == ["1000", "1000"]
    assert 850 <= int(replies[0].headers["x-ratelimit-remaining-tokens"]) < 1000
    for reply in replies:
        assert_rates_make_sense(reply)


def test_without_limits_nothing_is_said_of_them(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    with front.client(headers=books.key(budget_nano=10**12, concurrency=5)) as client:
        books.price()
        reply = client.post(CHAT, json=chat())

    assert reply.status_code == 200
    assert not any(name.startswith("x-ratelimit") for name in reply.headers)


@pytest.mark.parametrize("seed", range(2))
def test_no_number_is_ever_negative_whatever_was_used(serve: Serve, books: Books, seed: int) -> None:
    """Azure Q&A 5625878: x-ratelimit values of -1 and 0 confuse clients."""
    chance = random.Random(seed)
    front = serve(store=books.options)
    keys = [books.key(rpm=chance.choice([None, 1, 5, 100]), tpm=chance.choice([None, 30, 300, 5000])) for _ in range(6)]
    with front.client() as client:
        replies = [client.post(CHAT, json=random_call(chance), headers=chance.choice(keys)) for _ in range(60)]

    assert {reply.status_code for reply in replies} == {200, 429}
    for reply in replies:
        assert_rates_make_sense(reply)
        if reply.status_code == 429:
            limit = reply.json()["error"]["limit"]
            assert min(limit["used"], limit["reserved"], limit["asked"], limit["retry_after_s"] or 0) >= 0


def random_call(chance: random.Random) -> dict[str, Any]:
    """Some with a cap, some that turn out longer than anybody would have estimated, some with much from a cache."""
    num_words = chance.randrange(1, 60)
    script = says(chance.randrange(0, 200), eos=True, cached_tokens=chance.randrange(0, num_words))
    cap = chance.choice([{}, {}, {"max_tokens": chance.randrange(1, 100)}])
    return chat(num_words, stream=chance.random() < 0.5, script=script, **cap)
