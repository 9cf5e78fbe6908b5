"""Limits seen by callers: what counts, who is refused, and what a refusal costs."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
import pytest

from gateway.limits import LimitOptions
from gateway.rules import Scope
from tests.integration.front.books import PER_TOKEN, Books, chat, says, send, slot_taken
from tests.integration.front.front_server import CHAT, Front, eventually, leave, read_until, running

if TYPE_CHECKING:
    from tests.integration.front.front_server import Serve

ACME = Scope("tenant", "acme")


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with closing(Books(tmp_path)) as books:
        yield books


def assert_refused(reply: httpx.Response, meter: str, code: str = "rate_limit_exceeded") -> dict[str, Any]:
    """By a limit with this meter; what it says of it."""
    assert reply.status_code == 429, reply.text
    error = reply.json()["error"]
    assert (error["code"], error["limit"]["meter"]) == (code, meter)
    limit: dict[str, Any] = error["limit"]
    return limit


def statuses(client: httpx.Client, num_calls: int, **fields: Any) -> list[int]:
    return [client.post(CHAT, json=chat(**fields)).status_code for _ in range(num_calls)]


# Tokens a minute.


@pytest.mark.parametrize("stream", [True, False])
def test_tokens_of_an_answer_count_streamed_or_not(serve: Serve, books: Books, stream: bool) -> None:
    """BerriAI/litellm#41610: tokens a minute never count streams."""
    front = serve(store=books.options)
    with front.client(headers=books.key(tpm=100)) as client:
        first = client.post(CHAT, json=chat(stream=stream, script={"tokens": ["a"] * 98}))
        second = client.post(CHAT, json=chat(stream=stream))

    assert first.status_code == 200
    limit = assert_refused(second, "tpm")
    assert (limit["scope"].partition(":")[0], limit["amount"], limit["asked"]) == ("key", 100, 100)
    assert [row.prompt_tokens + row.completion_tokens for row in books.settled()] == [100]


def test_tokens_of_the_prompt_count_too(serve: Serve, books: Books) -> None:
    """BerriAI/litellm#17664: only output tokens count."""
    front = serve(store=books.options)
    with front.client(headers=books.key(tpm=50)) as client:
        refused = client.post(CHAT, json=chat(60, max_tokens=1))

    limit = assert_refused(refused, "tpm")
    assert (limit["asked"], limit["retry_after_s"]) == (61, None)
    assert "Limit 50, Requested 61" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert front.count("started") == 0


@pytest.mark.parametrize(("count_cached", "second_status"), [(False, 200), (True, 429)])
def test_cached_tokens_count_only_where_the_operator_wants_it(
    serve: Serve, books: Books, count_cached: bool, second_status: int
) -> None:
    """BerriAI/litellm#18728: cached tokens count."""
    front = serve(store=books.options, limits=LimitOptions(count_cached=count_cached))
    body = chat(100, max_tokens=1, script=says(1, cached_tokens=80))
    key = books.key(tpm=150)
    budget = books.accounts.set_limit(ACME, "tokens", 10_000, period="day")
    with front.client(headers=key) as client:
        first = client.post(CHAT, json=body)
        used = books.used(budget.id)
        second = client.post(CHAT, json=body)

    assert first.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 80
    assert used == (101 if count_cached else 21)
    assert second.status_code == second_status


def test_a_refused_caller_that_waits_as_told_is_served(serve: Serve, books: Books) -> None:
    """BerriAI/litellm#18953: a key is locked for minutes after it met its limit."""
    front = serve(store=books.options)
    with front.client(headers=books.key(rpm=120)) as client:
        reply = client.post(CHAT, json=chat())
        while reply.status_code == 200:
            reply = client.post(CHAT, json=chat())
        wait_s = int(reply.headers["retry-after-ms"]) / 1000
        time.sleep(wait_s)
        after = client.post(CHAT, json=chat())

    assert_refused(reply, "rpm")
    assert 0 < wait_s <= int(reply.headers["retry-after"]) <= 1
    assert after.status_code == 200


# Requests at once, and what refusals and failures cost.


def test_no_failure_keeps_a_slot(serve: Serve, books: Books) -> None:
    """BerriAI/litellm#20256, #1477: a slot is never freed after time-outs or a bad model."""
    front = serve(store=books.options)
    crash, away, hang = ({"fail": {"kind": kind}} for kind in ("crash", "unavailable", "hang"))
    late_hang = {"tokens": ["a", "b"], "fail": {"kind": "hang", "after_tokens": 1}}
    with front.client(headers=books.key(concurrency=1)) as client:
        failed = [
            client.post(CHAT, json=chat(script=crash)).status_code,
            client.post(CHAT, json=chat(script=away)).status_code,
            client.post(CHAT, json=chat(script=hang), headers={"X-Request-Timeout": "0.05"}).status_code,
            client.post(CHAT, json=chat(script=late_hang), headers={"X-Request-Timeout": "0.05"}).status_code,
            client.post(CHAT, json=chat() | {"model": "made-up"}).status_code,
            client.post(CHAT, json=chat(script={"nonsense": 1})).status_code,
        ]
        after = client.post(CHAT, json=chat())

    assert failed == [500, 503, 504, 504, 404, 400]
    assert after.status_code == 200


def test_an_abandoned_stream_and_a_replay_keep_no_slot(serve: Serve, books: Books) -> None:
    """BerriAI/litellm#27955: a slot leaks when a stream is left, and when an answer comes from a cache."""
    front = serve(store=books.options)
    key = books.key(concurrency=1)
    stream = send(front, chat(stream=True, script=says(3, fail={"kind": "hang", "after_tokens": 2})), key)
    read_until(stream, b'"001 "')
    with front.client(headers=key) as client:
        busy = client.post(CHAT, json=chat())
        leave(stream)
        eventually(lambda: client.post(CHAT, json=chat()).status_code == 200, "the slot is free")
        replayed = [client.post(CHAT, json=chat(), headers={"Idempotency-Key": "one"}) for _ in range(3)]
        after = client.post(CHAT, json=chat())

    assert_refused(busy, "concurrency")
    assert [reply.status_code for reply in (*replayed, after)] == [200] * 4
    assert replayed[2].headers["idempotent-replayed"] == "true"


def test_a_refused_call_burns_nothing_of_the_other_limits(serve: Serve, books: Books) -> None:
    """BerriAI/litellm#39309: a call that is refused for concurrency still burns requests a minute."""
    front = serve(store=books.options)
    key = books.key(rpm=2, tpm=100_000, concurrency=1)
    with front.client(headers=key) as client:
        with slot_taken(front, key):
            refused = [client.post(CHAT, json=chat(50_000)) for _ in range(3)]
        second = client.post(CHAT, json=chat())
        third = client.post(CHAT, json=chat())

    for reply in refused:
        assert_refused(reply, "concurrency")
        assert reply.headers["x-ratelimit-remaining-requests"] == "1"
    assert second.status_code == 200
    assert int(second.headers["x-ratelimit-remaining-tokens"]) > 90_000
    assert_refused(third, "rpm")


def test_a_request_that_was_never_begun_is_no_request(serve: Serve, books: Books) -> None:
    front = serve(store=books.options, capacity=1)
    with front.client(headers=books.key(rpm=1)) as client:
        with slot_taken(front, books.key()):
            late = [client.post(CHAT, json=chat(), headers={"X-Request-Timeout": "0.05"}).status_code for _ in range(3)]
        served = client.post(CHAT, json=chat())
        refused = client.post(CHAT, json=chat())

    assert late == [504] * 3
    assert (served.status_code, refused.status_code) == (200, 429)


def test_calls_at_once_never_run_in_greater_number_than_the_limit(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    endless = chat(script={"first_delay_s": 600})
    replies = asyncio.run(call_at_once(front, books.key(concurrency=4), endless, 50, num_answers=46))

    assert [reply.status_code for reply in replies] == [429] * 46
    assert front.count("started") == 4


async def call_at_once(
    front: Front, key: dict[str, str], body: dict[str, Any], num: int, num_answers: int
) -> list[httpx.Response]:
    """`num` calls at the same time; the replies, once there are `num_answers`. The rest are left."""
    limits = httpx.Limits(max_connections=num)
    async with httpx.AsyncClient(base_url=front.url, headers=key, timeout=60, limits=limits) as client:
        calls = [asyncio.create_task(client.post(CHAT, json=body)) for _ in range(num)]
        replies = [await reply for reply in itertools.islice(asyncio.as_completed(calls), num_answers)]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return replies


# Budgets.


@pytest.mark.parametrize("meter", ["usd", "tokens"])
def test_of_fifty_calls_at_once_on_a_budget_for_one_exactly_one_passes(serve: Serve, books: Books, meter: Any) -> None:
    """BerriAI/litellm#34732, #26672: parallel calls beat the budget."""
    front = serve(store=books.options)
    key = books.key()
    books.price()
    amount = 10 + 10 * 10 if meter == "usd" else 20  # ten tokens are read and ten are made
    budget = books.accounts.set_limit(ACME, meter, amount, period="month")
    body = chat(10, max_tokens=10, script=says(10, first_delay_s=0.05))
    replies = asyncio.run(call_at_once(front, key, body, 50, num_answers=50))

    refused = [reply for reply in replies if reply.status_code != 200]
    assert len(refused) == 49
    code = "organization_spend_limit_exceeded" if meter == "usd" else "organization_usage_limit_exceeded"
    for reply in refused:
        limit = assert_refused(reply, meter, code)
        assert limit["used"] + limit["reserved"] == amount
        assert reply.json()["error"]["type"] == "insufficient_quota"
    assert books.used(budget.id) == amount
    assert [(row.outcome, row.cost_nano) for row in books.settled()] == [("ok", 110)]
    books.assert_proven()


def test_a_model_without_a_price_is_refused_where_money_is_limited_until_it_has_one(serve: Serve, books: Books) -> None:
    """BerriAI/litellm#35524: an unknown price means no reservation."""
    front = serve(store=books.options)
    with front.client(headers=books.key(budget_nano=10_000)) as client:
        refused = client.post(CHAT, json=chat(max_tokens=1))
        books.price("*", completion=PER_TOKEN)
        served = client.post(CHAT, json=chat(max_tokens=1))

    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_priced")
    assert served.status_code == 200
    assert [(row.outcome, row.cost_nano) for row in books.settled()] == [("ok", 2)]
    assert front.count("started") == 1


def test_a_model_without_a_price_is_free_where_the_operator_says_so(serve: Serve, books: Books) -> None:
    front = serve(store=books.options, limits=LimitOptions(unpriced="free"))
    with front.client(headers=books.key(budget_nano=1)) as client:
        assert statuses(client, 2) == [200, 200]

    assert [row.cost_nano for row in books.settled(2)] == [0, 0]


def test_prepaid_credit_is_spent_refused_topped_up_and_spent_again(serve: Serve, books: Books) -> None:
    """maximhq/bifrost#2683: credit that is paid in advance and never resets."""
    front = serve(store=books.options)
    key = books.key()
    books.price(completion=PER_TOKEN)
    credit = books.accounts.set_limit(ACME, "usd", 20, period="prepaid")
    with front.client(headers=key) as client:
        body = chat(10, max_tokens=5, script=says(5))
        first, second = client.post(CHAT, json=body), client.post(CHAT, json=body)
        books.accounts.top_up(credit.id, 10)
        third, fourth = client.post(CHAT, json=body), client.post(CHAT, json=body)

    assert (first.status_code, third.status_code) == (200, 200)
    for refused in (second, fourth):
        limit = assert_refused(refused, "usd", "credit_balance_exhausted")
        assert limit["retry_after_s"] is None
        assert refused.headers["x-should-retry"] == "false"
    assert books.used(credit.id) == 30


def test_a_limit_in_shadow_mode_never_refuses(serve: Serve, books: Books, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "laneway.limits")
    front = serve(store=books.options)
    key = books.key()
    for meter, period in (("rpm", None), ("concurrency", None), ("tokens", "day")):
        books.accounts.set_limit(ACME, meter, 1, period=period, mode="shadow")  # type: ignore[arg-type]
    with front.client(headers=key) as client:
        replies = [client.post(CHAT, json=chat()) for _ in range(3)]

    assert [reply.status_code for reply in replies] == [200] * 3
    assert not any(name.startswith("x-ratelimit") for reply in replies for name in reply.headers)
    assert "a limit in shadow mode would have refused a request" in caplog.text


def test_a_soft_budget_refuses_nothing_and_is_told_once(books: Books, tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    books.key()
    with listening(told) as url:
        settings = books.settings(limits=LimitOptions(webhook_url=url))
        soft = books.accounts.set_limit(ACME, "tokens", 10, period="day", mode="soft")
        with running(settings, tmp_path) as front, front.client(headers=books.key()) as client:
            passed = [statuses(client, 1, max_tokens=5, script=says(5)) for _ in range(4)]
            eventually(lambda: bool(told), "the operator is told")

    assert passed == [[200]] * 4
    (event,) = told  # what else was to be told would have been before the front ended
    assert (event["event"], event["limit"]) == ("budget.soft_limit_passed", soft.id)
    assert (event["scope"], event["meter"], event["amount"], event["used"]) == ("tenant:acme", "tokens", 10, 12)


@contextmanager
def listening(told: list[dict[str, Any]]) -> Iterator[str]:
    """An operator's endpoint that keeps what it is sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(msgspec.json.decode(self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002 - the name in the base class
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook"
        server.shutdown()
        thread.join()


# Scopes.


def test_a_limit_of_a_model_counts_that_model_for_all(serve: Serve, books: Books) -> None:
    front = serve(store=books.options, models=["scripted", "other"])
    keys = [books.key("acme"), books.key("bolt")]
    books.accounts.set_limit(Scope("model", "scripted"), "rpm", 1)
    with front.client() as client:
        calls = [(keys[0], "scripted"), (keys[1], "scripted"), (keys[1], "other")]
        replies = [client.post(CHAT, json=chat() | {"model": model}, headers=key) for key, model in calls]

    assert [reply.status_code for reply in replies] == [200, 429, 200]
    assert assert_refused(replies[1], "rpm")["scope"] == "model:scripted"


@pytest.mark.parametrize("scope", [Scope("project", "acme/web"), ACME])
def test_keys_of_one_project_or_tenant_share_its_limit(serve: Serve, books: Books, scope: Scope) -> None:
    front = serve(store=books.options)
    keys = [books.key(project="web"), books.key(project="web"), books.key(tenant="bolt", project="web")]
    books.accounts.set_limit(scope, "rpm", 1)
    with front.client() as client:
        replies = [client.post(CHAT, json=chat(), headers=key) for key in keys]

    assert [reply.status_code for reply in replies] == [200, 429, 200]
    assert assert_refused(replies[1], "rpm")["scope"] == str(scope)


def test_a_limit_that_is_changed_holds_from_the_next_request_on(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    key = books.key()
    with front.client(headers=key) as client:
        free = statuses(client, 3)
        limit = books.accounts.set_limit(ACME, "rpm", 1)
        limited = statuses(client, 2)
        books.accounts.set_limit(ACME, "rpm", 3)
        raised = statuses(client, 3)
        books.accounts.end_limit(limit.id)
        ended = statuses(client, 2)

    assert (free, limited, raised, ended) == ([200] * 3, [200, 429], [200, 200, 429], [200, 200])
