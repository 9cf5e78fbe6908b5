"""/v1/batches as clients use it: every endpoint, what fails, what is cancelled, what expires, and what is billed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import openai
import pytest
from openai import OpenAI
from openai.types import Batch
from sqlalchemy import update

from gateway.batches import BatchOptions
from gateway.events import Kind
from gateway.rules import Scope
from gateway.tables import batches
from tests.integration.front.books import Books
from tests.integration.front.front_server import Front, eventually

if TYPE_CHECKING:
    from tests.integration.front.front_server import Serve

CHAT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "one two"}]},
    "/v1/completions": {"prompt": "one two"},
    "/v1/embeddings": {"input": "one two"},
    "/v1/responses": {"input": "one two"},
}
HANGS = {"first_delay_s": 600}
BREAKS = {"tokens": ["a", "b"], "fail": {"kind": "crash", "after_tokens": 1}}


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with closing(Books(tmp_path)) as books:
        yield books


def line(custom_id: str, url: str = CHAT, **body: Any) -> dict[str, Any]:
    return {
        "custom_id": custom_id,
        "method": "POST",
        "url": url,
        "body": {"model": "scripted", **BODIES.get(url, {}), **body},
    }


def begin(client: OpenAI, lines: list[Any], endpoint: Any = CHAT, **options: Any) -> Batch:
    """A batch of these lines, which are objects or texts."""
    content = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in lines)
    file = client.files.create(file=content.encode(), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **options)


def ended(client: OpenAI, batch: Batch) -> Batch:
    """The same batch when it is over."""

    def is_over() -> bool:
        status = client.batches.retrieve(batch.id).status
        return status in ("completed", "failed", "expired", "cancelled")

    eventually(is_over, "the batch is over")
    return client.batches.retrieve(batch.id)


def lines_of(client: OpenAI, file_id: str | None) -> list[Any]:
    if file_id is None:
        return []
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]


def counts(batch: Batch) -> tuple[int, int, int]:
    found = batch.request_counts
    assert found is not None
    return found.total, found.completed, found.failed


@pytest.mark.parametrize("endpoint", BODIES)
def test_a_batch_of_every_endpoint_answers_each_line(front: Front, endpoint: str) -> None:
    client = front.openai()

    made = begin(client, [line(f"line-{number}", endpoint) for number in range(5)], endpoint, metadata={"for": "test"})
    done = ended(client, made)

    assert (made.status, made.object, made.completion_window) == ("validating", "batch", "24h")
    assert (done.status, counts(done), done.metadata) == ("completed", (5, 5, 0), {"for": "test"})
    assert done.error_file_id is None
    assert made.expires_at == made.created_at + 24 * 3600
    assert done.in_progress_at is not None
    assert done.finalizing_at is not None
    assert done.completed_at is not None
    output = lines_of(client, done.output_file_id)
    assert [one["custom_id"] for one in output] == [f"line-{number}" for number in range(5)]
    with front.client() as http:
        expected = http.post(endpoint, json=line("x", endpoint)["body"]).json()
    for one in output:
        assert one["id"].startswith("batch_req_")
        assert one["error"] is None
        assert one["response"]["status_code"] == 200
        assert one["response"]["request_id"].startswith("req_")
        assert one["response"]["body"].keys() == expected.keys()
        assert one["response"]["body"]["usage"] == expected["usage"]
    assert done.usage is not None
    assert done.usage.input_tokens == 5 * 2
    file = client.files.retrieve(done.output_file_id or "")
    assert (file.purpose, file.filename, file.expires_at) == ("batch_output", f"{done.id}_output.jsonl", None)


def test_lines_that_are_refused_or_fail_go_to_the_error_file(serve: Serve) -> None:
    client = serve(batches=BatchOptions(retries=1)).openai()

    done = ended(
        client,
        begin(
            client,
            [
                line("good"),
                line("wrong", temperature=9),
                line("unknown", model="nobody"),
                line("breaks", script={"fail": {"kind": "crash"}}),
                line("refused", script={"fail": {"kind": "bad_request"}}),
            ],
        ),
    )

    assert (done.status, counts(done)) == ("completed", (5, 1, 4))
    assert [one["custom_id"] for one in lines_of(client, done.output_file_id)] == ["good"]
    errors = {one["custom_id"]: one for one in lines_of(client, done.error_file_id)}
    assert {name: one["response"]["status_code"] for name, one in errors.items()} == {
        "wrong": 400,
        "unknown": 404,
        "breaks": 500,
        "refused": 400,
    }
    assert errors["wrong"]["response"]["body"]["error"]["param"] == "temperature"
    assert errors["unknown"]["response"]["body"]["error"]["code"] == "model_not_found"
    assert all(one["error"] is None for one in errors.values())


def test_a_line_whose_backend_fails_is_tried_again_and_billed_for_the_answer_alone(serve: Serve, books: Books) -> None:
    front = serve(store=books.options, batches=BatchOptions(retries=2))
    client = front.openai()

    done = ended(client, begin(client, [line("a", script=BREAKS), line("b")]))

    assert (done.status, counts(done)) == ("completed", (2, 1, 1))
    settles = books.settled(4)
    assert sorted((row.outcome, row.prompt_tokens) for row in settles) == [("backend_error", 0)] * 3 + [("ok", 2)]
    books.assert_proven()


@pytest.mark.parametrize(
    ("text", "code", "param"),
    [
        ("{broken", "invalid_json_line", None),
        ("[]", "invalid_json_line", None),
        (json.dumps(line("first")), "duplicate_custom_id", "custom_id"),
        (json.dumps(line("x", "/v1/embeddings")), "invalid_url", "url"),
        (json.dumps({**line("x"), "method": "GET"}), "invalid_method", "method"),
        (json.dumps({**line("x"), "body": None}), "missing_required_parameter", "body"),
        (json.dumps({**line("x"), "body": "text"}), "invalid_body", "body"),
        (json.dumps({**line("x"), "custom_id": 7}), "invalid_custom_id", "custom_id"),
        (json.dumps(line("x", stream=True)), "stream_not_supported", "body.stream"),
    ],
)
def test_a_line_that_can_never_be_run_fails_the_batch_before_any_is(
    serve: Serve, books: Books, text: str, code: str, param: str | None
) -> None:
    client = serve(store=books.options).openai()

    done = ended(client, begin(client, [line("first"), "", text]))

    assert (done.status, done.output_file_id, done.error_file_id) == ("failed", None, None)
    assert done.failed_at is not None
    assert done.errors is not None
    assert [(fault.code, fault.param, fault.line) for fault in done.errors.data or ()] == [(code, param, 3)]
    assert books.settled(0) == []


def test_a_file_with_too_many_lines_or_none_fails_the_batch(serve: Serve) -> None:
    client = serve(batches=BatchOptions(max_lines=2)).openai()

    for lines, code in (([line("a"), line("b"), line("c")], "too_many_lines"), ([" ", ""], "empty_file")):
        done = ended(client, begin(client, lines))
        assert done.errors is not None
        assert [fault.code for fault in done.errors.data or ()] == [code]


def test_what_is_asked_for_is_checked(front: Front) -> None:
    client = front.openai()
    batch_file = client.files.create(file=b"x", purpose="batch").id
    other_file = client.files.create(file=b"x", purpose="evals").id
    good: dict[str, Any] = {"input_file_id": batch_file, "endpoint": CHAT, "completion_window": "24h"}
    with front.client() as http:
        for wrong, param, code in (
            ({"endpoint": "/v1/models"}, "endpoint", "invalid_value"),
            ({"completion_window": "1h"}, "completion_window", "invalid_value"),
            ({"input_file_id": f"file-{'0' * 32}"}, "input_file_id", "invalid_value"),
            ({"input_file_id": other_file}, "input_file_id", "invalid_value"),
            ({"input_file_id": None}, "input_file_id", "missing_required_parameter"),
            ({"metadata": {"k": "x" * 513}}, "metadata", "string_above_max_length"),
            ({"metadata": {str(n): "" for n in range(17)}}, "metadata", "object_above_max_properties"),
            (
                {"output_expires_after": {"anchor": "created_at", "seconds": 1}},
                "output_expires_after.seconds",
                "integer_below_min_value",
            ),
        ):
            reply = http.post("/v1/batches", json=good | wrong)
            error = reply.json()["error"]
            assert (reply.status_code, error["param"], error["code"]) == (400, param, code), reply.text
        assert http.get("/v1/batches?limit=101").status_code == 400
        assert http.get("/v1/batches").json() == {
            "object": "list",
            "data": [],
            "first_id": None,
            "last_id": None,
            "has_more": False,
        }


def test_batches_are_listed_page_by_page_the_newest_first(front: Front) -> None:
    client = front.openai()
    ids = [begin(client, [line("a")]).id for _ in range(3)]

    first = client.batches.list(limit=2)

    assert [batch.id for batch in first.data] == [ids[2], ids[1]]
    assert first.has_more
    assert [batch.id for batch in client.batches.list(limit=2)] == ids[::-1]


def test_a_cancelled_batch_keeps_what_was_done_and_bills_nothing_else(serve: Serve, books: Books) -> None:
    front = serve(store=books.options, batches=BatchOptions(lines_at_once=1))
    client = front.openai()
    made = begin(client, [line("done"), line("hangs", script=HANGS), line("waits")])
    eventually(lambda: front.count("running") == 1 and counts(client.batches.retrieve(made.id))[1] == 1, "one hangs")

    assert client.batches.retrieve(made.id).status == "in_progress"
    assert counts(client.batches.retrieve(made.id)) == (3, 1, 0)
    told = client.batches.cancel(made.id)
    again = client.batches.cancel(made.id)
    done = ended(client, made)

    assert (told.status, again.status) == ("cancelling", "cancelling")
    assert (done.status, counts(done)) == ("cancelled", (3, 1, 2))
    assert done.cancelling_at is not None
    assert done.cancelled_at is not None
    assert [one["custom_id"] for one in lines_of(client, done.output_file_id)] == ["done"]
    errors = lines_of(client, done.error_file_id)
    assert [(one["custom_id"], one["response"], one["error"]["code"]) for one in errors] == [
        ("hangs", None, "batch_cancelled"),
        ("waits", None, "batch_cancelled"),
    ]
    assert front.count("running") == 0
    assert sorted((row.outcome, row.prompt_tokens) for row in books.settled(2)) == [("ok", 2), ("stopped", 0)]
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'cancelled'"):
        client.batches.cancel(made.id)


def test_a_batch_whose_window_is_over_expires_with_what_was_done(serve: Serve, books: Books) -> None:
    front = serve(store=books.options, batches=BatchOptions(lines_at_once=1))
    client = front.openai()
    made = begin(
        client,
        [line("done"), line("hangs", script=HANGS)],
        output_expires_after={"anchor": "created_at", "seconds": 3600},
    )
    eventually(lambda: counts(client.batches.retrieve(made.id))[1] == 1, "one is done")
    with books.store.changing() as connection:
        connection.execute(update(batches).values(expires_at=made.created_at))

    done = ended(client, made)

    assert (done.status, counts(done)) == ("expired", (2, 1, 1))
    assert done.expired_at is not None
    assert [one["custom_id"] for one in lines_of(client, done.output_file_id)] == ["done"]
    (error,) = lines_of(client, done.error_file_id)
    assert (error["custom_id"], error["error"]["code"]) == ("hangs", "batch_expired")
    file = client.files.retrieve(done.output_file_id or "")
    assert file.expires_at == file.created_at + 3600


def test_a_line_waits_while_the_limits_have_no_room(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    made = books.made(lanes=("interactive", "batch"))
    books.accounts.set_limit(Scope("key", made.row.id), "concurrency", 1)
    client = front.openai(made.secret)

    done = ended(client, begin(client, [line(f"{number}", script={"first_delay_s": 0.02}) for number in range(6)]))

    assert (done.status, counts(done)) == ("completed", (6, 6, 0))
    settles = books.settled(6)
    assert {(row.outcome, row.lane, row.key_id, row.tenant) for row in settles} == {
        ("ok", "batch", made.row.id, "acme")
    }


def test_a_key_without_the_batch_lane_waits_in_the_least_urgent_that_it_has(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    client = front.openai(books.made(lanes=("interactive", "standard")).secret)

    ended(client, begin(client, [line("a", service_tier="priority")]))

    assert [row.lane for row in books.settled(1)] == ["standard"]


def test_the_lines_of_a_key_that_was_revoked_are_refused(serve: Serve, books: Books) -> None:
    front = serve(store=books.options, batches=BatchOptions(lines_at_once=1))
    made, colleague = books.made(), books.made()
    batch = begin(front.openai(made.secret), [line("a", script={"first_delay_s": 1}), line("b")])
    eventually(lambda: front.count("running") == 1, "the first runs")
    books.accounts.revoke_key(made.row.id)
    client = front.openai(colleague.secret)

    done = ended(client, batch)

    assert [one["custom_id"] for one in lines_of(client, done.output_file_id)] == ["a"]
    (error,) = lines_of(client, done.error_file_id)
    assert (error["custom_id"], error["response"]["status_code"]) == ("b", 401)


def test_a_tenant_never_sees_the_batches_of_another(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    mine, other = front.openai(books.made("acme").secret), front.openai(books.made("rival").secret)
    done = ended(mine, begin(mine, [line("a")]))

    assert other.batches.list().data == []
    for ask in (other.batches.retrieve, other.batches.cancel):
        with pytest.raises(openai.NotFoundError, match=f"No such Batch object: {done.id}"):
            ask(done.id)
    with pytest.raises(openai.NotFoundError):
        other.files.content(done.output_file_id or "")
    with pytest.raises(openai.BadRequestError):
        other.batches.create(input_file_id=done.input_file_id, endpoint=CHAT, completion_window="24h")


def test_the_input_of_a_batch_cannot_be_deleted_while_it_runs(front: Front) -> None:
    client = front.openai()
    made = begin(client, [line("a", script=HANGS)])

    with pytest.raises(openai.ConflictError, match=made.id) as caught:
        client.files.delete(made.input_file_id)
    assert caught.value.code == "file_in_use"
    client.batches.cancel(made.id)
    ended(client, made)

    assert client.files.delete(made.input_file_id).deleted


def test_a_server_that_stops_and_starts_goes_on_where_it_was(serve: Serve, books: Books, tmp_path: Path) -> None:
    first = serve(store=books.options, batches=BatchOptions(lines_at_once=1))
    client = first.openai()
    made = begin(client, [line("a"), line("b", script={"first_delay_s": 1.0}), line("c")])
    eventually(lambda: counts(client.batches.retrieve(made.id))[1] == 1, "one is done")
    first.stop()

    client = serve(store=books.options).openai()
    done = ended(client, made)

    assert (done.status, counts(done)) == ("completed", (3, 3, 0))
    assert [one["custom_id"] for one in lines_of(client, done.output_file_id)] == ["a", "b", "c"]
    answered = [row for row in books.events(Kind.SETTLE) if row.outcome == "ok"]
    assert len(answered) == 3
    assert {row.prompt_tokens for row in books.events(Kind.SETTLE) if row.outcome != "ok"} <= {0}
    books.assert_proven()


def test_lines_that_wait_and_that_are_done_are_counted(serve: Serve) -> None:
    front = serve(batches=BatchOptions(lines_at_once=1))
    client = front.openai()
    made = begin(client, [line("a"), line("b", script=HANGS), line("c"), line("d")])
    eventually(lambda: front.count("running") == 1, "one hangs")
    with front.client() as http:
        text = http.get("/metrics").text

    assert "laneway_batch_lines_waiting 2.0" in text
    assert 'laneway_batch_lines_total{outcome="completed"} 1.0' in text
    client.batches.cancel(made.id)
    ended(client, made)
