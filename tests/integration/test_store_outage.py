"""Postgres goes away and comes back under a server: who is known goes on, nothing that is used is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from gateway.rules import Scope
from gateway.virtual_keys import mint
from tests.integration.front.books import Books, bearer, chat, says, send
from tests.integration.front.front_server import CHAT, eventually, leave, read_until, running

if TYPE_CHECKING:
    from tests.stores import Postgres


@pytest.fixture
def books(postgres_url: str, tmp_path: Path) -> Iterator[Books]:
    with closing(Books(tmp_path, url=postgres_url)) as books:
        yield books


def status(client: httpx.Client, key: dict[str, str]) -> int:
    return client.post(CHAT, json=chat(), headers=key).status_code


def test_known_keys_go_on_without_the_store_and_what_they_use_reaches_it_later(
    books: Books, postgres: Postgres, tmp_path: Path
) -> None:
    """BerriAI/litellm#34929, #38121: without its database a gateway is unready, or answers 401 and never recovers."""
    key, limited = books.key(), books.key("bolt", rpm=2)
    budget = books.accounts.set_limit(Scope("tenant", "acme"), "tokens", 10_000, period="day")
    unknown = bearer(mint())
    with running(books.settings(), tmp_path) as front, front.client() as client:
        assert (status(client, key), status(client, unknown)) == (200, 401)
        stream = send(front, chat(stream=True, script=says(9, eos=True, delay_s=0.1)), key)
        read_until(stream, b'"000 "')

        postgres.stop()

        read_until(stream, b"[DONE]")
        leave(stream)
        eventually(lambda: status(client, unknown) == 503, "who is unknown is told to come back")
        refused = client.post(CHAT, json=chat(), headers=unknown)
        known = [status(client, key) for _ in range(5)]
        abandoned = send(front, chat(stream=True, script=says(9, fail={"kind": "hang", "after_tokens": 4})), key)
        read_until(abandoned, b'"003 "')
        leave(abandoned)
        kept_to_limits = [status(client, limited) for _ in range(3)]
        garbage, ready = status(client, bearer("lw-garbage")), client.get("/ready").status_code

        postgres.start()

        eventually(lambda: status(client, unknown) == 401, "the store is read again")
        rows = books.settled(1 + 1 + 5 + 1 + 2)
        fresh = books.key()
        eventually(lambda: status(client, fresh) == 200, "a new key is known")

    assert (refused.json()["error"]["code"], refused.headers["retry-after"]) == ("store_unavailable", "1")
    assert (known, kept_to_limits, garbage, ready) == ([200] * 5, [200, 200, 429], 401, 200)
    assert [(row.outcome, row.completion_tokens) for row in rows if row.completion_tokens > 2] == [
        ("ok", 10),
        ("client_abort", 4),
    ]
    spent = sum(row.prompt_tokens + row.completion_tokens for row in books.settled(11) if row.tenant == "acme")
    assert books.used(budget.id) == spent
    books.assert_proven()


def test_what_a_server_could_not_tell_the_store_the_next_one_tells_it(
    books: Books, postgres: Postgres, tmp_path: Path
) -> None:
    key = books.key()
    with running(books.settings(), tmp_path) as front, front.client() as client:
        assert status(client, key) == 200
        postgres.stop()
        assert [status(client, key) for _ in range(3)] == [200] * 3
    postgres.start()
    assert len(books.settled()) == 1

    with running(books.settings(), tmp_path) as front, front.client() as client:
        assert status(client, key) == 200
        rows = books.settled(5)

    assert {row.outcome for row in rows} == {"ok"}
    books.assert_proven()


def test_a_budget_that_nobody_met_before_the_store_went_away_holds_up_nobody_else(
    books: Books, postgres: Postgres, tmp_path: Path
) -> None:
    key = books.key()
    with running(books.settings(), tmp_path) as front, front.client() as client:
        assert status(client, key) == 200
        books.key("bolt")
        books.accounts.set_limit(Scope("tenant", "bolt"), "tokens", 1000, period="day")
        last = books.key("bolt")
        eventually(lambda: client.get("/v1/models", headers=last).status_code == 200, "the changes are known")
        postgres.stop()

        assert [status(client, key) for _ in range(3)] == [200] * 3
