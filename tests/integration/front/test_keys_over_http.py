"""Keys seen by their holders: from when to when they hold, and for which models and lanes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from gateway.accounts import Accounts, NewKey
from gateway.rules import Scope
from gateway.virtual_keys import mint
from tests.integration.front.books import Books, bearer, chat, send
from tests.integration.front.front_server import CHAT, leave, read_until

if TYPE_CHECKING:
    from tests.integration.front.front_server import Serve


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with closing(Books(tmp_path)) as books:
        yield books


def status(client: httpx.Client, key: dict[str, str]) -> int:
    return client.post(CHAT, json=chat(), headers=key).status_code


def told(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["message"]


def test_a_server_is_open_until_its_first_key_and_never_again(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    with front.client() as client:
        before = status(client, bearer("anything"))
        made = books.made()
        after = [status(client, bearer("anything")), status(client, {}), status(client, bearer(made.secret))]
        books.accounts.revoke_key(made.row.id)
        at_last = status(client, bearer("anything"))

    assert (before, after, at_last) == (200, [401, 401, 200], 401)


def test_a_revoked_key_is_refused_at_its_next_request_and_what_runs_goes_on(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    made = books.made()
    key = bearer(made.secret)
    stream = send(front, chat(stream=True, script={"tokens": ["a", "b"], "delay_s": 0.2}), key)
    read_until(stream, b'"a"')
    with front.client() as client:
        before = status(client, key)
        books.accounts.revoke_key(made.row.id)
        after = client.post(CHAT, json=chat(), headers=key)
        unknown = client.post(CHAT, json=chat(), headers=bearer(made.secret[:-3] + "abc"))

    assert (before, after.status_code) == (200, 401)
    assert after.json()["error"]["code"] == unknown.json()["error"]["code"] == "invalid_api_key"
    assert after.headers["www-authenticate"] == "Bearer"
    read_until(stream, b"[DONE]")
    leave(stream)


def test_a_key_of_a_project_or_tenant_that_ended_is_refused(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    web, shop, bolt = books.key(project="web"), books.key(project="shop"), books.key("bolt")
    with front.client() as client:
        before = [status(client, key) for key in (web, shop, bolt)]
        books.accounts.end_project("acme", "web")
        between = [status(client, key) for key in (web, shop, bolt)]
        books.accounts.end_tenant("acme")
        after = [status(client, key) for key in (web, shop, bolt)]

    assert (before, between, after) == ([200, 200, 200], [401, 200, 200], [401, 401, 200])


def test_an_expired_key_is_refused_in_the_words_for_an_unknown_one(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    yesterday = time.time() - 86_400
    past = Accounts(books.store, "cli:test", clock=lambda: yesterday)
    expired = bearer(past.create_key(NewKey(tenant="acme", expires_at=yesterday + 3600)).secret)
    lasting = books.key(expires_at=time.time() + 3600)
    unknown = bearer(mint())
    with front.client() as client:
        replies = [client.post(CHAT, json=chat(), headers=key) for key in (expired, unknown)]
        assert status(client, lasting) == 200

    assert {reply.status_code for reply in replies} == {401}
    assert len({reply.json()["error"]["message"].partition(":")[0] for reply in replies}) == 1


def test_a_rotated_key_and_its_successor_overlap_and_share_their_limits(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    made = books.made(rpm=3, models=["scripted"], default_lane="batch")
    old = bearer(made.secret)
    with front.client() as client:
        replies = [client.post(CHAT, json=chat(), headers=old)]
        successor = books.accounts.rotate_key(made.row.id, overlap_s=3600)
        new = bearer(successor.secret)
        replies += [client.post(CHAT, json=chat(), headers=key) for key in (new, old, new, old)]

    assert [reply.status_code for reply in replies] == [200, 200, 200, 429, 429]
    assert replies[-1].json()["error"]["limit"]["scope"] == f"key:{made.row.id}"
    rows = books.rows_of(*replies[:3])
    assert [row.key_id for row in rows] == [made.row.id, successor.row.id, made.row.id]
    assert {row.lane for row in rows} == {"batch"}


def test_a_key_rotated_without_overlap_ends_at_once(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    made = books.made()
    with front.client() as client:
        before = status(client, bearer(made.secret))
        successor = books.accounts.rotate_key(made.row.id, overlap_s=0)
        after = [status(client, bearer(made.secret)), status(client, bearer(successor.secret))]

    assert (before, after) == (200, [401, 200])


def test_a_model_that_a_key_may_not_use_does_not_exist_for_it(serve: Serve, books: Books) -> None:
    front = serve(store=books.options, models=["scripted", "org/small", "org/large"])
    key = books.key(models=["org/*"])
    with front.client(headers=key) as client:
        listed = [model["id"] for model in client.get("/v1/models").json()["data"]]
        read = [client.get(f"/v1/models/{name}").status_code for name in ("org/small", "scripted", "unknown")]
        allowed = client.post(CHAT, json=chat() | {"model": "org/large"})
        forbidden, unknown = (client.post(CHAT, json=chat() | {"model": name}) for name in ("scripted", "unknown!"))
        books.accounts.change_tenant("acme", models=["org/small"])
        narrowed = client.post(CHAT, json=chat() | {"model": "org/large"})
        listed_then = [model["id"] for model in client.get("/v1/models").json()["data"]]

    assert (listed, read, allowed.status_code) == (["org/small", "org/large"], [200, 404, 404], 200)
    assert told(forbidden) == (404, told(unknown)[1].replace("unknown!", "scripted"))
    assert forbidden.json()["error"]["code"] == unknown.json()["error"]["code"] == "model_not_found"
    assert (narrowed.status_code, listed_then) == (404, ["org/small"])
    assert len(books.settled()) == 1


def test_a_forbidden_model_burns_nothing(serve: Serve, books: Books) -> None:
    front = serve(store=books.options, models=["scripted", "other"])
    with front.client(headers=books.key(models=["scripted"], rpm=1, concurrency=1)) as client:
        refused = [client.post(CHAT, json=chat() | {"model": "other"}).status_code for _ in range(3)]
        served = client.post(CHAT, json=chat()).status_code

    assert (refused, served) == ([404] * 3, 200)


def test_a_key_goes_by_its_default_lane_and_asks_only_for_its_own(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    key = books.key(lanes=["standard", "batch"], default_lane="batch")
    with front.client(headers=key) as client:
        asked = [None, "standard", "interactive", "fast"]
        replies = [
            client.post(CHAT, json=chat(), headers={} if lane is None else {"X-Laneway-Lane": lane}) for lane in asked
        ]
        wished = [client.post(CHAT, json=chat(service_tier=tier)) for tier in ("default", "flex", "priority")]

    assert [reply.status_code for reply in replies] == [200, 200, 403, 400]
    assert [reply.headers["x-laneway-lane"] for reply in replies[:2]] == ["batch", "standard"]
    assert replies[2].json()["error"]["type"] == "permission_error"
    assert [reply.headers["x-laneway-lane"] for reply in wished] == ["standard", "batch", "batch"]
    rows = books.rows_of(*replies[:2], *wished)
    assert [row.lane for row in rows] == ["batch", "standard", "standard", "batch", "batch"]


def test_a_limit_on_a_key_is_nobody_elses(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    limited, other = books.made(), books.key()
    books.accounts.set_limit(Scope("key", limited.row.id), "rpm", 1)
    with front.client() as client:
        seen = [status(client, key) for key in (bearer(limited.secret), bearer(limited.secret), other, other)]

    assert seen == [200, 429, 200, 200]


def test_what_cannot_be_a_key_is_refused_and_not_repeated(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    books.key()
    forged = mint()
    with front.client() as client:
        for text in ("lw-", "lw-x", forged[:-1], forged + "0", "sk-" + forged[3:], "é" * 50):
            reply = client.post(CHAT, json=chat(), headers={b"Authorization": f"Bearer {text}".encode()})
            assert reply.status_code == 401
            assert forged[8:] not in reply.text
