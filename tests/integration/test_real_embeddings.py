"""The built-in embedding model served as a user gets it, and asked with an unchanged OpenAI SDK."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import BadRequestError, OpenAI

from tests.integration.example import run_example
from tests.integration.served import IN_TIME_S, Serve, Served

MODEL = "all-minilm-l6-v2"
SETTINGS = f"""
[server]
port = 0
[backends.local]
type = "hf"
model = "{MODEL}"
threads = 1
"""


@pytest.fixture(scope="module")
def served(serve_long: Serve) -> Served:
    return serve_long(SETTINGS)


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{served.address}/v1", api_key="any", max_retries=0, timeout=IN_TIME_S) as client:
        yield client


def test_a_related_sentence_is_nearer_than_an_unrelated_one(client: OpenAI) -> None:
    texts = ["How do I bake bread?", "Knead flour and water, then heat the oven.", "Interest rates rose in Europe."]

    answer = client.embeddings.create(model=MODEL, input=texts)

    asked, related, unrelated = (item.embedding for item in answer.data)
    assert sum(map(float.__mul__, asked, related)) > sum(map(float.__mul__, asked, unrelated)) + 0.2
    assert len(asked) == 384
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 20


def test_an_embedding_model_that_is_asked_to_chat_says_where_to_send_it(client: OpenAI) -> None:
    with pytest.raises(BadRequestError, match="/v1/embeddings") as caught:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "Hello"}])

    assert caught.value.param == "model"


def test_the_example_finds_the_nearest_text(served: Served) -> None:
    printed = run_example("embeddings.py", address=served.address)

    assert printed.splitlines()[1].endswith("Bern is in Switzerland.")
