"""`/v1/embeddings` of a real front: to the OpenAI SDK, to plain HTTP, in the limits and in the ledger."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from openai import AsyncOpenAI, BadRequestError, InternalServerError

from gateway.config import ServerOptions
from gateway.events import Kind
from gateway.lanes import LaneOptions
from gateway.tenants import AuthOptions
from tests.integration.front.books import Books, bearer, slot_taken
from tests.integration.front.front_server import FAILURES, Front, eventually, leave

if TYPE_CHECKING:
    from tests.integration.front.front_server import Serve

PATH = "/v1/embeddings"


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with closing(Books(tmp_path)) as books:
        yield books


def body(given: object = "x", **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "input": given, **fields}


def told(reply: Any) -> tuple[int, str | None, str | None]:
    """Status, param and code of an error."""
    error = reply.json()["error"]
    assert sorted(error) == ["code", "message", "param", "type"]
    return reply.status_code, error["param"], error["code"]


def post_raw(front: Front, fields: dict[str, Any], headers: dict[str, str]) -> socket.socket:
    """Send embeddings on a raw socket and read nothing."""
    data = json.dumps(fields).encode()
    lines = [f"POST {PATH} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    connection = socket.create_connection(("127.0.0.1", front.port), timeout=20)
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
    return connection


def test_the_sdk_gets_the_same_vectors_by_default_and_as_floats(front: Front) -> None:
    """It asks for base64 of itself; vllm-project/vllm#6744: twice the length, or refused."""
    with front.openai() as client:
        default = client.embeddings.create(model="scripted", input=["one two", "three"])
        floats = client.embeddings.create(model="scripted", input=["one two", "three"], encoding_format="float")

    assert [item.embedding for item in default.data] == [item.embedding for item in floats.data]
    assert [item.index for item in default.data] == [0, 1]
    assert [len(item.embedding) for item in default.data] == [256, 256]
    assert default.data[0].embedding != default.data[1].embedding
    assert math.hypot(*default.data[0].embedding) == pytest.approx(1, abs=1e-5)
    assert (default.model, default.usage.prompt_tokens, default.usage.total_tokens) == ("scripted", 3, 3)


def test_the_asynchronous_sdk_gets_many_at_once(front: Front) -> None:
    async def ask() -> list[list[float]]:
        async with AsyncOpenAI(base_url=f"{front.url}/v1", api_key="any", max_retries=0) as client:
            asked = (client.embeddings.create(model="scripted", input=f"text {number}") for number in range(8))
            return [answer.data[0].embedding for answer in await asyncio.gather(*asked)]

    assert len({tuple(vector) for vector in asyncio.run(ask())}) == 8


def test_base64_in_plain_http_is_a_text_of_little_endian_float32(front: Front) -> None:
    """ollama/ollama#6934: a list of numbers in spite of it."""
    with front.client() as client:
        packed = client.post(PATH, json=body("one", encoding_format="base64"))
        plain = client.post(PATH, json=body("one"))

    (item,) = packed.json()["data"]
    raw = base64.b64decode(item["embedding"], validate=True)
    assert len(raw) == 4 * 256
    assert list(struct.unpack("<256f", raw)) == plain.json()["data"][0]["embedding"]
    assert packed.headers["content-type"] == "application/json"
    assert sorted(plain.json()) == ["data", "model", "object", "usage"]


def test_token_ids_are_one_input_or_several_and_have_the_vector_of_their_text(front: Front) -> None:
    with front.client() as client:
        one, two = (client.post("/tokenize", json={"prompt": text}).json()["tokens"] for text in ("a b c", "d"))
        texts = client.post(PATH, json=body(["a b c", "d"])).json()
        lists = client.post(PATH, json=body([one, two])).json()
        flat = client.post(PATH, json=body(one)).json()

    assert lists == texts
    assert flat["data"] == texts["data"][:1]
    assert (lists["usage"]["prompt_tokens"], flat["usage"]["prompt_tokens"]) == (4, 3)


def test_as_many_inputs_as_are_allowed_keep_their_order(front: Front) -> None:
    with front.openai() as client:
        answer = client.embeddings.create(model="scripted", input=[str(number) for number in range(2048)], dimensions=2)
        alone = client.embeddings.create(model="scripted", input="2047", dimensions=2)

    assert [item.index for item in answer.data] == list(range(2048))
    assert answer.data[-1].embedding == alone.data[0].embedding
    assert answer.usage.prompt_tokens == 2048


def test_an_empty_text_has_a_vector_too(front: Front) -> None:
    with front.client() as client:
        answer = client.post(PATH, json=body(["", "a"])).json()

    assert [len(item["embedding"]) for item in answer["data"]] == [256, 256]


def test_dimensions_are_obeyed_or_refused_and_never_ignored(serve: Serve) -> None:
    """BerriAI/litellm#28239: the field is dropped."""
    able, rigid = serve(), serve(matryoshka=False)
    with able.client() as client, rigid.client() as other:
        short = client.post(PATH, json=body(dimensions=64)).json()["data"][0]["embedding"]
        whole = client.post(PATH, json=body()).json()["data"][0]["embedding"]
        same = other.post(PATH, json=body(dimensions=256))
        refused = [client.post(PATH, json=body(dimensions=1024)), other.post(PATH, json=body(dimensions=64))]
        too_few = client.post(PATH, json=body(dimensions=0))

    norm = math.hypot(*whole[:64])
    assert short == pytest.approx([value / norm for value in whole[:64]], abs=1e-6)
    assert math.hypot(*short) == pytest.approx(1, abs=1e-5)
    assert same.json()["data"][0]["embedding"] == whole
    assert [told(reply) for reply in refused] == [(400, "dimensions", "invalid_value")] * 2
    assert told(too_few) == (400, "dimensions", "integer_below_min_value")


def test_what_is_too_long_is_refused_unless_it_may_be_cut(serve: Serve) -> None:
    front = serve(max_model_len=3)
    with front.client() as client:
        long = client.post(PATH, json=body(["a", "a b c d e"]))
        cut, tail = (client.post(PATH, json=body("a b c d e", truncate_prompt_tokens=num)).json() for num in (-1, 2))
        last = client.post(PATH, json=body(" d e")).json()

    assert told(long) == (400, "input", "context_length_exceeded")
    assert "maximum context length" in long.json()["error"]["message"]
    assert [answer["usage"]["prompt_tokens"] for answer in (cut, tail)] == [3, 2]
    assert tail["data"] == last["data"]


@pytest.mark.parametrize("extra", [{"user": "u", "zzz": {"deep": [1]}}, {"user": None, "dimensions": None}])
def test_fields_that_ask_nothing_and_unknown_ones_change_nothing(front: Front, extra: dict[str, Any]) -> None:
    with front.client() as client:
        assert client.post(PATH, json=body(**extra)).content == client.post(PATH, json=body()).content


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"input": None}, "input", "missing_required_parameter"),
        ({"input": []}, "input", "empty_array"),
        ({"input": ["x"] * 2049}, "input", "array_above_max_length"),
        ({"input": ["x", 1]}, "input", "invalid_type"),
        ({"input": [1 << 30]}, "input", "invalid_value"),
        ({"encoding_format": "hex"}, "encoding_format", "invalid_value"),
    ],
    ids=str,
)
def test_the_sdk_raises_on_what_is_wrong_and_says_where(
    front: Front, fields: dict[str, Any], param: str, code: str
) -> None:
    with front.openai() as client, pytest.raises(BadRequestError) as caught:
        client.embeddings.create(model="scripted", input="x", extra_body=fields)

    assert (caught.value.param, caught.value.code) == (param, code)
    assert front.count("started") == 0


@pytest.mark.parametrize("number", ["nan", "-inf"])
def test_a_vector_that_is_no_number_is_an_error_in_words_and_the_next_request_is_fine(
    serve: Serve, books: Books, number: str
) -> None:
    """vllm-project/vllm#19661: a serializer's trace."""
    front = serve(store=books.options)
    books.price()
    with front.openai(books.made().secret) as client:
        with pytest.raises(InternalServerError, match="input 1 that holds NaN or infinity") as caught:
            client.embeddings.create(
                model="scripted", input=["a", "b"], extra_body={"script": {"vectors": [[1.0], [0.5, number]]}}
            )
        after = client.embeddings.create(model="scripted", input="a", extra_body={"script": {"vectors": [[1.0, 2.0]]}})

    assert caught.value.type == "server_error"
    assert after.data[0].embedding == [1.0, 2.0]
    failed, fine = books.settled(2)
    assert (failed.outcome, failed.prompt_tokens, failed.cost_nano) == ("backend_error", 0, 0)
    assert (fine.outcome, fine.prompt_tokens, fine.cost_nano) == ("ok", 1, 1)
    books.assert_proven()


@pytest.mark.parametrize(("kind", "status", "code"), FAILURES)
@pytest.mark.parametrize("after", [0, 1])
def test_a_failure_is_a_status_whenever_it_comes(
    front: Front, kind: str, status: int, code: str | None, after: int
) -> None:
    script = {"fail": {"kind": kind, "after_tokens": after}}
    with front.client() as client:
        reply = client.post(PATH, json=body(["a", "b"], script=script))

    assert told(reply) == (status, None, code)
    assert front.count("running") == 0


def test_a_model_without_embeddings_is_told_so(serve: Serve, tiny_llama_dir: Path, books: Books) -> None:
    front = serve(
        store=books.options,
        backends={"real": {"type": "hf", "model": str(tiny_llama_dir)}, "test": {"type": "scripted"}},
    )
    key = books.key(rpm=1)
    with front.client(headers=key) as client:
        model = next(card["id"] for card in client.get("/v1/models").json()["data"] if card["id"] != "scripted")
        refused = client.post(PATH, json=body(model=model))
        unknown = client.post(PATH, json=body(model="nope"))
        after = client.post(PATH, json=body())

    assert told(refused) == (400, "model", "unsupported_parameter")
    assert "cannot make embeddings" in refused.json()["error"]["message"]
    assert told(unknown) == (404, "model", "model_not_found")
    assert after.status_code == 200, "what was refused is given back to the limit"


def test_nobody_without_a_key_gets_a_vector(serve: Serve) -> None:
    """vllm-project/vllm#18893: the route is open."""
    front = serve(auth=AuthOptions(keys=("sk-the-only-key-99",)))
    with front.client() as client:
        assert client.post(PATH, json=body()).status_code == 401
        assert client.post(PATH, json=body(), headers=bearer("sk-the-only-key-99")).status_code == 200


def test_lane_deadline_and_length_of_the_body_hold_as_elsewhere(serve: Serve) -> None:
    front = serve(server=ServerOptions(max_body_bytes=1000))
    slow = body(script={"first_delay_s": 30})
    with front.client() as client:
        wished = client.post(PATH, json=body(priority=-1))
        ordered = client.post(PATH, json=body(), headers={"X-Laneway-Lane": "batch"})
        late = client.post(PATH, json=slow, headers={"X-Request-Timeout": "0.2"})
        large = client.post(PATH, json=body("x" * 1000))

    assert [reply.headers["x-laneway-lane"] for reply in (wished, ordered)] == ["interactive", "batch"]
    assert told(late) == (504, None, "deadline_exceeded")
    assert told(large) == (413, None, "request_too_large")


def test_embeddings_wait_in_their_lane_and_are_refused_when_it_is_full(serve: Serve) -> None:
    front = serve(capacity=1, lanes={"batch": LaneOptions(priority=2, max_queue=0)})
    with slot_taken(front), front.client() as client:
        refused = client.post(PATH, json=body(), headers={"X-Laneway-Lane": "batch"})

    assert told(refused) == (503, None, "overloaded")
    assert refused.headers["retry-after"]
    with front.client() as client:
        assert client.post(PATH, json=body()).status_code == 200


def test_the_limits_count_what_is_read_and_tell_what_is_left(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    with front.client(headers=books.key(tpm=10)) as client:
        first = client.post(PATH, json=body(["a b c", "d e f"]))
        second = client.post(PATH, json=body("a b c d e f"))

    assert (first.status_code, second.status_code) == (200, 429)
    assert first.headers["x-ratelimit-remaining-tokens"] == "4"
    assert second.json()["error"]["limit"]["asked"] == 6
    assert front.count("started") == 1


def test_the_row_says_what_was_read_and_what_it_cost(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    books.price()
    with front.client(headers=books.key()) as client:
        reply = client.post(PATH, json=body(["a b", "c"], script={"cached_tokens": 1}))

    (row,) = books.rows_of(reply)
    assert (row.route, row.outcome, row.source) == ("embeddings", "ok", "reported")
    assert (row.prompt_tokens, row.completion_tokens, row.cost_nano) == (3, 0, 3)
    assert row.cached_tokens == 1
    books.assert_proven()


def test_what_a_backend_does_not_report_is_counted(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    with front.client(headers=books.key(tpm=1000)) as client:
        reply = client.post(PATH, json=body(["a b", "c"], script={"usage": "missing"}))

    (row,) = books.rows_of(reply)
    assert (row.source, row.prompt_tokens, row.completion_tokens) == ("counted", 3, 0)
    assert reply.json()["usage"] == {"prompt_tokens": 3, "total_tokens": 3}


def test_an_input_of_which_only_a_part_was_read_teaches_no_rate_of_bytes(serve: Serve, books: Books) -> None:
    """Later estimates for the model would be too low."""
    front = serve(store=books.options)
    long = "word " * 80
    with front.client(headers=books.key()) as client:
        for _ in range(2):
            assert client.post(PATH, json=body(long, truncate_prompt_tokens=8)).json()["usage"]["prompt_tokens"] == 8

    books.settled(2)
    assert [row.prompt_tokens for row in books.events(Kind.ADMIT)] == [100, 100]


@pytest.mark.parametrize("capacity", [None, 1])
def test_a_client_that_leaves_pays_for_what_was_read_and_holds_nothing(
    serve: Serve, books: Books, capacity: int | None
) -> None:
    front = serve(store=books.options, capacity=capacity)
    books.price()
    key = books.key(concurrency=1)
    fail = {"kind": "hang", "after_tokens": 2}
    client = post_raw(front, body(["a b", "c", "d e f"], script={"fail": fail}), key)
    eventually(lambda: front.count("running") == 1, "it runs")

    leave(client)

    eventually(lambda: front.count("cancelled") == 1, "the cancel arrives")
    (row,) = books.settled()
    assert (row.outcome, row.prompt_tokens, row.completion_tokens, row.cost_nano) == ("client_abort", 3, 0, 3)
    with front.client(headers=key) as other:
        assert other.post(PATH, json=body()).status_code == 200, "the slot and the concurrency are free"
        ready = other.get("/ready").json()
    assert (ready["queue_depth"], ready["active_requests"]) == (0, 0)
    books.assert_proven()


def test_a_repeated_request_gets_the_same_vectors_and_is_billed_once(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    with front.client(headers={**books.key(), "Idempotency-Key": "once"}) as client:
        first, again = client.post(PATH, json=body()), client.post(PATH, json=body())

    assert first.content == again.content
    assert again.headers["idempotent-replayed"] == "true"
    assert len(books.settled()) == 1
