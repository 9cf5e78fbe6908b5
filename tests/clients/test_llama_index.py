"""LlamaIndex: the OpenAI class, OpenAILike in both its modes, and its embeddings."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai import OpenAIEmbedding
from llama_index.llms.openai import OpenAI
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from tests.clients.scripts import BREAKS_OFF, ENDLESS, calls, fails, says
from tests.clients.server import Server, served

ASKED = [ChatMessage(role="system", content="Be short."), ChatMessage(role="user", content="hi")]
TEXT = says("Hello", " there", "!")


class City(BaseModel):
    """A city."""

    name: str


def known(extra_body: dict[str, Any] = TEXT, **options: Any) -> OpenAI:
    """The class for OpenAI's own models, which knows them by name."""
    return OpenAI(
        **{"model": "gpt-4o", "api_base": served().base_url, "api_key": "any", "max_retries": 0, **options},
        additional_kwargs={"extra_body": extra_body},
    )


def like(extra_body: dict[str, Any] = TEXT, *, is_chat_model: bool = True, **options: Any) -> OpenAILike:
    """The class for servers such as this one."""
    return OpenAILike(
        **{"model": "scripted", "api_base": served().base_url, "api_key": "any", "max_retries": 0, **options},
        is_chat_model=is_chat_model,
        is_function_calling_model=is_chat_model,
        context_window=8192,
        additional_kwargs={"extra_body": extra_body},
    )


@pytest.mark.parametrize("make", [known, like])
def test_a_chat_is_answered_whole_and_in_pieces(make: Any) -> None:
    pieces = [piece.delta for piece in make().stream_chat(ASKED)]

    assert make().chat(ASKED).message.content == "Hello there!"
    assert "".join(filter(None, pieces)) == "Hello there!"
    assert len([piece for piece in pieces if piece]) == 3


async def test_the_asynchronous_chat_is_answered_too() -> None:
    whole = await like().achat(ASKED)
    pieces = [piece.delta or "" async for piece in await like().astream_chat(ASKED)]

    assert whole.message.content == "".join(pieces) == "Hello there!"


def test_without_a_chat_model_the_completions_are_asked() -> None:
    legacy = like(is_chat_model=False, temperature=0.1, max_tokens=8)

    assert legacy.complete("once more").text == "Hello there!"
    assert [piece.delta for piece in legacy.stream_complete("once more") if piece.delta] == ["Hello", " there", "!"]


def test_log_probabilities_arrive() -> None:
    top = [{"Hello": -0.1}, {" there": -0.2}, {"!": -0.3}]
    chat = like(says("Hello", " there", "!", top=top), logprobs=True, top_logprobs=1).chat(ASKED)

    assert chat.logprobs is not None
    assert [row[0].token for row in chat.logprobs[:3]] == ["Hello", " there", "!"]


@pytest.mark.parametrize("make", [known, like])
def test_a_tool_is_called_whole_and_in_a_stream(make: Any) -> None:
    def lookup(city: str) -> str:
        """Look a city up."""
        return city

    model = make(calls("lookup", '{"city": "Bern"}'))
    tool = FunctionTool.from_defaults(lookup)
    whole = model.chat_with_tools([tool], "Look up Bern", tool_required=True)
    *_, last = model.stream_chat_with_tools([tool], "Look up Bern")

    for answer in (whole, last):
        (call,) = model.get_tool_calls_from_response(answer)
        assert (call.tool_name, call.tool_kwargs) == ("lookup", {"city": "Bern"})


def test_structured_answers_are_objects() -> None:
    by_schema = known(says('{"name": ', '"Bern"}')).as_structured_llm(City).complete("A city")
    by_call = like(calls("City", '{"name": "Bern"}')).as_structured_llm(City).complete("A city")

    assert by_schema.raw == by_call.raw == City(name="Bern")


def test_texts_become_vectors_of_the_size_that_is_asked_for(server: Server) -> None:
    embedding = OpenAIEmbedding(
        model="text-embedding-3-small", api_base=server.base_url, api_key="any", embed_batch_size=2, dimensions=64
    )

    one, other, same = embedding.get_text_embedding_batch(["one text", "another", "one text"])

    assert one == same != other
    assert len(one) == 64


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("bad_request", openai.BadRequestError),
        ("rate_limited", openai.RateLimitError),
        ("unavailable", openai.InternalServerError),
    ],
)
def test_a_failure_is_the_sdks_own_class(kind: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        like(fails(kind)).chat(ASKED)


def test_an_unknown_model_and_a_failure_inside_a_stream_are_told() -> None:
    with pytest.raises(openai.NotFoundError):
        like(model="nope").chat(ASKED)
    with pytest.raises(openai.APIError, match="lost"):
        list(like(BREAKS_OFF).stream_chat(ASKED))


@pytest.mark.usefixtures("is_cancelled")
def test_leaving_a_stream_ends_the_work() -> None:
    pieces = like(ENDLESS).stream_chat(ASKED)
    next(pieces)
    pieces.close()
