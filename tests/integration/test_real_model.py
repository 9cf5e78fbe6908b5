"""The built-in model served as a user gets it, and asked as users ask."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import Anthropic
from openai import BadRequestError, OpenAI

from tests.integration.example import run_example
from tests.integration.served import IN_TIME_S, Serve, Served

MODEL = "smollm2-135m-instruct"
CAPITAL = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def served(serve_long: Serve, smollm2_dir: Path) -> Served:
    """`laneway serve` without a word about models."""
    return serve_long("[server]\nport = 0\n")


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    """An unchanged OpenAI SDK."""
    with OpenAI(base_url=f"{served.address}/v1", api_key="any", max_retries=0, timeout=IN_TIME_S) as client:
        yield client


def chat(client: OpenAI, **fields: Any) -> Any:
    """A chat about the capital of France."""
    create: Any = client.chat.completions.create
    return create(**({"model": MODEL, "messages": CAPITAL, "temperature": 0} | fields))


def test_the_capital_of_france_is_paris(client: OpenAI) -> None:
    answer = chat(client)

    assert [model.id for model in client.models.list()] == [MODEL]
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"


def test_the_stream_says_the_same_and_counts_the_same(client: OpenAI) -> None:
    answer = chat(client)

    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))

    pieces = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(piece.delta.content or "" for piece in pieces) == answer.choices[0].message.content
    assert pieces[-1].finish_reason == "stop"
    assert chunks[-1].usage == answer.usage
    assert len(pieces) > 3


def test_a_completion_goes_on_without_a_chat_template(client: OpenAI, served: Served) -> None:
    prompt = "1, 2, 3, 4,"
    counted = httpx.post(f"{served.address}/tokenize", json={"model": MODEL, "prompt": prompt}, timeout=IN_TIME_S)

    answer = client.completions.create(model=MODEL, prompt=prompt, max_tokens=4, temperature=0)

    assert answer.choices[0].text.startswith(" 5")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == counted.json()["count"]


def test_a_stop_string_cuts_the_answer(client: OpenAI) -> None:
    answer = chat(client, stop=["Paris"])

    assert answer.choices[0].message.content == "The capital of France is "
    assert answer.choices[0].finish_reason == "stop"


def test_max_tokens_ends_with_length(client: OpenAI) -> None:
    answer = chat(client, max_tokens=3)

    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


def test_a_seed_gives_two_texts_and_the_same_two_again(client: OpenAI) -> None:
    ask = {"messages": [{"role": "user", "content": "Tell me about the sea."}], "temperature": 1, "max_tokens": 8}

    answers = [chat(client, **ask, seed=5, n=2) for _ in range(2)]

    texts = [[choice.message.content for choice in answer.choices] for answer in answers]
    assert texts[0][0] != texts[0][1]
    assert texts[0] == texts[1]


def test_anthropics_sdk_is_told_the_same(client: OpenAI, served: Served) -> None:
    asked: Any = {"model": MODEL, "messages": CAPITAL}
    greedy = {"temperature": 0}
    with Anthropic(base_url=served.address, api_key="any", max_retries=0, timeout=IN_TIME_S) as sdk:
        counted = sdk.messages.count_tokens(**asked)
        whole = sdk.messages.create(**asked, max_tokens=64, extra_body=greedy)
        with sdk.messages.stream(**asked, max_tokens=64, extra_body=greedy) as events:
            pieces = list(events.text_stream)
            streamed = events.get_final_message()

    said = chat(client)
    assert [block.to_dict() for block in whole.content] == [{"type": "text", "text": said.choices[0].message.content}]
    assert "".join(pieces) == said.choices[0].message.content
    assert len(pieces) > 3
    assert (whole.stop_reason, streamed.stop_reason) == ("end_turn", "end_turn")
    assert whole.usage.input_tokens == streamed.usage.input_tokens == said.usage.prompt_tokens == counted.input_tokens
    assert whole.usage.output_tokens == streamed.usage.output_tokens == said.usage.completion_tokens


def test_anthropics_sdk_has_the_assistants_last_words_continued(served: Served) -> None:
    begun: Any = [*CAPITAL, {"role": "assistant", "content": "The capital of France is"}]
    with Anthropic(base_url=served.address, api_key="any", max_retries=0, timeout=IN_TIME_S) as sdk:
        message = sdk.messages.create(
            model=MODEL, max_tokens=64, messages=begun, stop_sequences=["."], extra_body={"temperature": 0}
        )

    assert message.to_dict()["content"] == [{"type": "text", "text": " Paris"}]
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", ".")


def test_tools_are_refused_in_anthropics_envelope(served: Served) -> None:
    body = {"model": MODEL, "max_tokens": 9, "messages": CAPITAL, "tools": [{"name": "f", "input_schema": {}}]}
    reply = httpx.post(f"{served.address}/v1/messages", json=body, timeout=IN_TIME_S)

    assert reply.status_code == 400
    assert reply.json()["error"] == {
        "type": "invalid_request_error",
        "message": "tools: This model does not support tools.",
    }


def test_a_prompt_longer_than_the_context_is_refused_in_openais_words(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="maximum context length is 8192 tokens") as caught:
        chat(client, messages=[{"role": "user", "content": "word " * 9000}], stream=True)

    assert caught.value.code == "context_length_exceeded"
    assert caught.value.param == "messages"


def test_text_becomes_tokens_and_text_again(served: Served) -> None:
    text = "Zürich, 東京 and 🎉:\n\tthat's all"
    with httpx.Client(base_url=served.address, timeout=IN_TIME_S) as http:
        tokens = http.post("/tokenize", json={"model": MODEL, "prompt": text}).json()
        back = http.post("/detokenize", json={"model": MODEL, "tokens": tokens["tokens"]}).json()

    assert back["prompt"] == text
    assert tokens["count"] == len(tokens["tokens"])
    assert tokens["max_model_len"] == 8192


def test_the_front_answers_while_five_megabytes_are_tokenized(served: Served) -> None:
    body = {"model": MODEL, "prompt": "lorem ipsum " * (5 * 1024 * 1024 // 12)}
    replies: list[httpx.Response] = []
    big = threading.Thread(
        target=lambda: replies.append(httpx.post(f"{served.address}/v1/completions", json=body, timeout=IN_TIME_S))
    )
    began_at = time.monotonic()
    longest_s = 0.0

    big.start()
    with httpx.Client(base_url=served.address, timeout=IN_TIME_S) as http:
        while big.is_alive():
            asked_at = time.monotonic()
            assert http.get("/health").status_code == 200
            longest_s = max(longest_s, time.monotonic() - asked_at)
            big.join(0.01)

    assert replies[0].json()["error"]["code"] == "context_length_exceeded"
    assert longest_s < (time.monotonic() - began_at) / 2  # a blocked front would answer at the end


def test_the_examples_work(served: Served) -> None:
    streamed = run_example("chat.py", address=served.address)
    several = run_example("chat_async.py", address=served.address)
    completed = run_example("completion.py", "1, 2, 3, 4,", address=served.address)
    curled = run_example("curl.sh", address=served.address)

    assert "Paris" in streamed
    assert "completion tokens]" in streamed
    assert "Paris" in several
    assert completed.startswith("1, 2, 3, 4, 5")
    assert "Paris" in curled
    assert curled.rstrip().endswith("data: [DONE]")
