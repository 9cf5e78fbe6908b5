"""What the ledger says of calls, however they end: one settle row each, with what was used and where that is from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from litestar import Litestar
from litestar.routes import ASGIRoute, HTTPRoute
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.config import ServerOptions
from gateway.control import ask
from gateway.events import Event, Kind
from gateway.lanes import LaneOptions
from gateway.state import ServerState
from gateway.store import Store
from tests.integration.front.books import Books, chat, says, send, slot_taken
from tests.integration.front.front_server import CHAT, Front, eventually, leave, read_until, running

if TYPE_CHECKING:
    from tests.integration.front.front_server import Serve

# A body for each route that uses a model: one token is read and two are made, or a vector, which is no token.
GENERATING: dict[str, dict[str, Any]] = {
    CHAT: chat(max_tokens=2, script=says(2)),
    "/v1/completions": {"model": "scripted", "prompt": "x", "max_tokens": 2, "script": says(2)},
    "/v1/embeddings": {"model": "scripted", "input": "x"},
    "/v1/responses": {"model": "scripted", "input": "x", "max_output_tokens": 2, "script": says(2)},
    "/v1/messages": chat(max_tokens=2, script=says(2)),
}
GENERATE_NOTHING: dict[str, dict[str, Any]] = {
    "/ping": {},
    "/tokenize": {"prompt": "a b"},
    "/detokenize": {"tokens": [1]},
    "/v1/responses/input_tokens": {"input": "a b"},
    "/v1/files": {},
    **{f"/v1/batches{what}": {} for what in ("", "/{batch_id:str}/cancel")},  # its lines are told in another test
    "/v1/messages/count_tokens": chat(),
    **{f"/v1/responses/{{response_id:str}}{what}": {} for what in ("", "/cancel", "/input_items")},
}


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with closing(Books(tmp_path)) as books:
        yield books


def told(row: Event) -> tuple[str, str, int, int]:
    """How it ended, where its counts are from, and what was read and made."""
    return row.outcome, row.source, row.prompt_tokens, row.completion_tokens


def events_of(stream: httpx.Response) -> list[dict[str, Any]]:
    """The events of a whole stream but its end mark."""
    lines = [line.removeprefix("data: ") for line in stream.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


# Every way in.


def routes_that_may_generate(front: Front) -> list[str]:
    """Every route that takes a POST, but the operators' own."""
    app = front.server.config.app
    assert isinstance(app, Litestar)
    paths = [
        route.path
        for route in app.routes
        if isinstance(route, ASGIRoute) or (isinstance(route, HTTPRoute) and "POST" in route.methods)
    ]
    return [path for path in paths if "/admin/" not in path]


def test_every_route_that_generates_leaves_one_settle_row_a_request(serve: Serve, books: Books) -> None:
    """maximhq/bifrost#2873: a route that was forgotten is used without a budget. A new route must be told above."""
    front = serve(store=books.options, server=ServerOptions(root_path="/llm"))
    paths = routes_that_may_generate(front)
    assert {path.removeprefix("/llm") for path in paths} == {*GENERATING, *GENERATE_NOTHING}
    sent = []
    with front.client(headers=books.key()) as client:
        for path in paths:
            body = GENERATING.get(path.removeprefix("/llm"))
            for variant in ({"stream": False}, {"stream": True}) if body else ():
                reply = client.post(path, json={**(body or {}), **variant})
                assert reply.status_code == 200, path
                sent.append(reply.headers["x-request-id"])
            if body is None:
                assert client.post(path, json=GENERATE_NOTHING[path.removeprefix("/llm")]).status_code < 500

    rows = books.settled(len(GENERATING) * 4)
    assert {f"req_{row.request_id}" for row in rows} == set(sent)
    assert {(row.route, *told(row)) for row in rows} == {
        ("chat", "ok", "reported", 1, 2),
        ("completions", "ok", "reported", 1, 2),
        ("responses", "ok", "reported", 1, 2),
        ("messages", "ok", "reported", 1, 2),
        ("embeddings", "ok", "reported", 1, 0),
    }
    assert {row.tenant for row in rows} == {"acme"}
    books.assert_proven()


def test_every_route_that_generates_asks_the_limits_first(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    with front.client(headers=books.key(tpm=1)) as client, front.client(headers=books.key(models=["a"])) as other:
        for path, body in GENERATING.items():
            body = {**body, "input": "x x"} if "input" in body else body
            assert client.post(path, json=body).status_code == 429
            assert other.post(path, json=body).status_code == 404

    assert books.settled(0) == []
    assert front.count("started") == 0


# Every way out.


def test_the_row_says_who_used_what_and_what_it_cost(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    made = books.made(project="web", default_lane="batch")
    books.price()
    headers = {"Authorization": f"Bearer {made.secret}", "X-Request-Id": "trace-7"}
    with front.client(headers=headers) as client:
        client.post(CHAT, json=chat(30, max_tokens=20, script=says(20, cached_tokens=8)))

    (row,) = books.settled()
    assert (row.tenant, row.project, row.key_id, row.model) == ("acme", "web", made.row.id, "scripted")
    assert (row.route, row.lane, row.backend) == ("chat", "batch", "test")
    assert told(row) == ("ok", "reported", 30, 20)
    assert (row.cached_tokens, row.cost_nano, row.price_version) == (8, 30 + 200, 1)
    assert row.wait_ms is not None and row.ttft_ms is not None and row.total_ms is not None
    assert json.loads(row.detail)["shown_id"] == "trace-7"


@pytest.mark.parametrize(("usage", "source"), [("reported", "reported"), ("missing", "estimated")])
def test_a_stream_that_is_left_after_twenty_of_a_hundred_tokens_is_billed_as_twenty(
    serve: Serve, books: Books, usage: str, source: str
) -> None:
    """BerriAI/litellm#14457: an abort costs nothing."""
    front = serve(store=books.options)
    books.price()
    script = says(100, usage=usage, fail={"kind": "hang", "after_tokens": 20})
    stream = send(front, chat(stream=True, max_tokens=100, script=script), books.key())
    read_until(stream, b'"019 "')

    leave(stream)

    (row,) = books.settled()
    assert (row.outcome, row.source, row.completion_tokens) == ("client_abort", source, 20)
    assert row.cost_nano == row.prompt_tokens + 10 * 20
    assert front.count("cancelled") == 1


@pytest.mark.parametrize("after_tokens", [0, 5])
def test_a_caller_that_gives_up_waiting_for_a_whole_answer_ends_the_work_and_is_recorded(
    serve: Serve, books: Books, after_tokens: int
) -> None:
    """BerriAI/litellm#13245: after the client's time-out the provider bills, and the gateway says nothing."""
    front = serve(store=books.options)
    script = says(9, fail={"kind": "hang", "after_tokens": after_tokens})
    with front.client(headers=books.key()) as client, pytest.raises(httpx.ReadTimeout):
        client.post(CHAT, json=chat(3, script=script), timeout=0.2)

    eventually(lambda: front.count("cancelled") == 1, "the backend sees the close")
    (row,) = books.settled()
    assert (row.outcome, row.completion_tokens) == ("client_abort", after_tokens)


def test_a_caller_that_leaves_with_the_last_content_pays_for_the_whole_answer(serve: Serve, books: Books) -> None:
    """QuantumNous/new-api#4463: the usage is lost, though the client had everything."""
    front = serve(store=books.options)
    key = books.key()
    for _ in range(20):
        stream = send(front, chat(stream=True, max_tokens=3, script=says(3)), key)
        read_until(stream, b'"002 "')
        leave(stream)

    assert [told(row) for row in books.settled(20)] == [("ok", "reported", 1, 3)] * 20


def test_a_caller_that_leaves_while_the_last_content_is_sent_pays_for_the_whole_answer(
    serve: Serve, books: Books
) -> None:
    front = serve(store=books.options)
    script = {"tokens": ["x" * 10_000_000], "eos": False}
    stream = send(front, chat(stream=True, max_tokens=1, script=script), books.key())
    read_until(stream, b'"xxx')

    leave(stream)

    assert [told(row) for row in books.settled()] == [("ok", "reported", 1, 1)]


def test_a_caller_that_leaves_before_anything_came_pays_for_no_answer(serve: Serve, books: Books) -> None:
    front = serve(store=books.options, capacity=1)
    key = books.key()
    with slot_taken(front, key):
        waiting = send(front, chat(stream=True), key)
        eventually(lambda: front.waiting() == 1, "it waits")
        leave(waiting)
        eventually(lambda: front.waiting() == 0, "it is gone")

    assert [(row.outcome, row.completion_tokens) for row in books.settled(2)] == [("client_abort", 0)] * 2


@pytest.mark.parametrize("stream", [True, False])
def test_what_broke_before_the_caller_got_anything_costs_nothing(serve: Serve, books: Books, stream: bool) -> None:
    """QuantumNous/new-api#4168: the prompt of a failed call is billed."""
    front = serve(store=books.options)
    books.price()
    kinds = {"crash": 500, "end": 500, "unavailable": 503, "overloaded": 503, "rate_limited": 429, "bad_request": 400}
    with front.client(headers=books.key()) as client:
        replies = [client.post(CHAT, json=chat(50, stream=stream, script={"fail": {"kind": kind}})) for kind in kinds]

    assert [reply.status_code for reply in replies] == list(kinds.values())
    rows = books.rows_of(*replies)
    assert [row.outcome for row in rows] == ["backend_error"] * 3 + ["shed", "shed", "refused"]
    assert {(*told(row)[1:], row.cost_nano) for row in rows} == {("none", 0, 0, 0)}


def test_a_stream_that_breaks_is_billed_as_what_was_shown_and_not_as_its_error(serve: Serve, books: Books) -> None:
    """QuantumNous/new-api#5289: the text of an upstream's error is billed as output."""
    front = serve(store=books.options)
    script = says(9, fail={"kind": "crash", "after_tokens": 3, "message": "a long story " * 50})
    with front.client(headers=books.key()) as client:
        reply = client.post(CHAT, json=chat(5, stream=True, script=script))

    assert (reply.status_code, reply.text.count('"error"')) == (200, 1)
    assert [told(row) for row in books.settled()] == [("backend_error", "reported", 5, 3)]


def test_a_call_whose_deadline_passes_is_billed_as_what_was_made(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    script = says(9, fail={"kind": "hang", "after_tokens": 4})
    with front.client(headers=books.key() | {"X-Request-Timeout": "0.3"}) as client:
        stream = client.post(CHAT, json=chat(5, stream=True, script=script))

    assert '"deadline_exceeded"' in stream.text
    assert [told(row) for row in books.settled()] == [("deadline", "reported", 5, 4)]


def test_what_the_end_of_the_server_cuts_off_costs_what_was_received(books: Books, tmp_path: Path) -> None:
    key = books.key()
    script = says(9, fail={"kind": "hang", "after_tokens": 4})
    with running(books.settings(), tmp_path, shutdown_timeout=0) as front:
        calls = [send(front, chat(5, stream=stream, script=script), key) for stream in (True, False)]
        read_until(calls[0], b'"003 "')
        eventually(lambda: front.count("running") == 2, "both run")
        front.server.should_exit = True
        for call in calls:
            read_until(call, b"server_stopping")
            leave(call)

    assert {told(row) for row in books.settled(2)} == {("stopped", "reported", 5, 4), ("stopped", "none", 0, 0)}


def test_what_was_shed_leaves_a_row_that_costs_nothing(serve: Serve, books: Books) -> None:
    lanes = {"batch": LaneOptions(priority=2, max_queue=0), "standard": LaneOptions(priority=1, max_wait=0.05)}
    front = serve(store=books.options, capacity=1, lanes=lanes)
    key = books.key()
    with slot_taken(front, key), front.client(headers=key) as client:
        refused = [client.post(CHAT, json=chat(9), headers={"X-Laneway-Lane": lane}) for lane in ("batch", "standard")]

    assert [reply.status_code for reply in refused] == [503, 503]
    assert [told(row) for row in books.rows_of(*refused)] == [("shed", "none", 0, 0)] * 2


def test_usage_is_shown_to_those_who_ask_and_booked_for_all(serve: Serve, books: Books) -> None:
    """Arthur-Ficial/apfel#100: a usage chunk that nobody asked for breaks clients."""
    front = serve(store=books.options)
    body = chat(4, stream=True, max_tokens=3, script=says(3))
    asked: list[dict[str, Any]] = [{}] + [{"stream_options": {"include_usage": wanted}} for wanted in (False, True)]
    with front.client(headers=books.key()) as client:
        streams = [events_of(client.post(CHAT, json=body | options)) for options in asked]

    assert [sum(not event["choices"] for event in events) for events in streams] == [0, 0, 1]
    assert [told(row) for row in books.settled(3)] == [("ok", "reported", 4, 3)] * 3


@pytest.mark.parametrize(("tpm", "source"), [(None, "estimated"), (10_000, "counted")])
def test_an_answer_without_usage_is_counted_and_flagged(
    serve: Serve, books: Books, tpm: int | None, source: str
) -> None:
    """The scripted backend has a tokenizer, which a prompt is given to where its tokens are limited."""
    front = serve(store=books.options)
    body = chat(20, script={"tokens": [" word"] * 12, "usage": "missing"})
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    with front.client(headers=books.key(tpm=tpm)) as client:
        whole, stream = client.post(CHAT, json=body), client.post(CHAT, json=body | streamed)

    num_read = 20 if source == "counted" else 10  # 39 bytes, four a token
    assert [told(row) for row in books.settled(2)] == [("ok", source, num_read, 12)] * 2
    for usage in (whole.json()["usage"], events_of(stream)[-1]["usage"]):
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (num_read, 12)


# What is durable when.


@contextmanager
def nobody_else_writes(store: Store) -> Iterator[None]:
    """The database is locked, so nothing becomes durable."""
    with closing(store.raw_connection()) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


@pytest.fixture
def synced(tmp_path: Path) -> Iterator[Books]:
    """Of a store that alone makes anything durable."""
    with closing(Books(tmp_path, durability="full")) as books:
        yield books


def test_an_answer_ends_when_its_usage_is_durable_and_not_before(serve: Serve, synced: Books) -> None:
    front = serve(store=synced.options)
    key = synced.key()
    with nobody_else_writes(synced.store):
        stream = send(front, chat(stream=True, max_tokens=3, script=says(3)), key)
        got = read_until(stream, b'"002 "')
        eventually(lambda: front.count("running") == 0, "the backend is done")
        assert b"[DONE]" not in got
        assert synced.events(Kind.SETTLE) == []
    read_until(stream, b"[DONE]")

    assert [told(row) for row in synced.events(Kind.SETTLE)] == [("ok", "reported", 1, 3)]
    leave(stream)


def test_an_answer_ends_though_others_keep_the_store_when_its_usage_is_durable_beside_it(
    serve: Serve, books: Books
) -> None:
    front = serve(store=books.options)
    key = books.key()
    with nobody_else_writes(books.store):
        stream = send(front, chat(stream=True, max_tokens=3, script=says(3)), key)
        read_until(stream, b"[DONE]")
        assert books.events(Kind.SETTLE) == []
        intake = Path(f"{books.store.file}-intake-0").read_bytes() + Path(f"{books.store.file}-intake-1").read_bytes()
        assert intake.count(b"reported") == 1

    assert [told(row) for row in books.events(Kind.SETTLE)] == [("ok", "reported", 1, 3)]
    leave(stream)


def test_commands_and_admin_calls_see_what_was_answered_just_before(
    serve: Serve, books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.writer.GATHER_S", 3600.0)
    config = tmp_path / "laneway.toml"
    config.write_text(f'[store]\nurl = "{books.options.url}"\n', encoding="utf-8")
    front = serve(store=books.options)
    admin = books.key("ops", role="admin")
    with front.client(headers=books.key()) as client:
        for num_answers in range(1, 4):
            assert client.post(CHAT, json=chat(max_tokens=3, script=says(3))).status_code == 200
            said = CliRunner().invoke(app, ["usage", "--by", "tenant", "--json", "--config", str(config)])
            assert [row["requests"] for row in json.loads(said.stdout)] == [2 * num_answers - 1]

            reply = client.post(CHAT, json=chat(max_tokens=3, script=says(3)))
            told_of = client.get(f"/admin/v1/requests/{reply.headers['x-request-id']}", headers=admin)
            assert told_of.json()["outcome"] == "ok"


def test_a_caller_that_leaves_while_its_usage_becomes_durable_changes_nothing(serve: Serve, synced: Books) -> None:
    books = synced
    front = serve(store=books.options)
    key = books.key()
    with nobody_else_writes(books.store):
        stream = send(front, chat(stream=True, max_tokens=3, script=says(3)), key)
        read_until(stream, b'"002 "')
        eventually(lambda: front.count("running") == 0, "the backend is done")
        leave(stream)
        eventually(lambda: not front.server.server_state.tasks, "nobody waits for it")

    assert [told(row) for row in books.settled()] == [("ok", "reported", 1, 3)]


def test_in_strict_mode_nothing_begins_before_its_admit_is_durable(serve: Serve, tmp_path: Path) -> None:
    with closing(Books(tmp_path, admit="strict", durability="full")) as books:
        front = serve(store=books.options)
        key = books.key()
        with nobody_else_writes(books.store):
            stream = send(front, chat(stream=True, max_tokens=3, script=says(3)), key)
            eventually(lambda: len(ask(books.store, "state", ServerState).requests) == 1, "it is let in")
            assert front.count("started") == 0
        read_until(stream, b"[DONE]")

        assert [told(row) for row in books.settled()] == [("ok", "reported", 1, 3)]
        leave(stream)


def test_a_cap_beyond_all_measure_is_reserved_as_what_the_model_can_make(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    books.price()
    headers = books.key()
    with front.client(headers=headers) as client:
        reply = client.post(CHAT, json=chat(2, max_tokens=2**63 - 1, n=2, script=says(3, eos=True)))

    assert reply.status_code == 200
    (row,) = books.rows_of(reply)
    assert (row.outcome, row.completion_tokens) == ("ok", 8)
    (admit,) = books.events(Kind.ADMIT)
    assert admit.completion_tokens == 2 * 8192
    books.assert_proven()


def test_more_cached_tokens_than_there_were_are_nobodys_gain(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    books.price()
    with front.client(headers=books.key()) as client:
        reply = client.post(CHAT, json=chat(2, script=says(1, eos=True, cached_tokens=50)))

    (row,) = books.rows_of(reply)
    assert (row.prompt_tokens, row.cached_tokens) == (2, 2)
    books.assert_proven()


def test_a_backend_that_failed_is_an_attempt_of_the_ledger(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    with front.client(headers=books.key()) as client:
        assert client.post(CHAT, json=chat(script={"fail": {"kind": "unavailable"}})).status_code == 503

    books.settled()
    (attempt,) = books.events(Kind.ATTEMPT)
    assert (attempt.backend, attempt.outcome, attempt.seq) == ("test", "backend_error", 1)
    assert "Unavailable" in attempt.detail


def test_a_client_that_reads_nothing_is_left_after_its_deadline(serve: Serve, books: Books) -> None:
    front = serve(store=books.options, capacity=1)
    headers = books.key()
    body = chat(stream=True, script={"tokens": ["x" * 10_000], "eos": False}, max_tokens=5000)
    stuck = send(front, body, headers | {"X-Request-Timeout": "0.5"})
    with front.client(headers=headers) as client:
        assert client.post(CHAT, json=chat(), headers={"X-Request-Timeout": "15"}).status_code == 200
    leave(stuck)
