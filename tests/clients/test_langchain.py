"""LangChain: its own standard tests, and what they do not ask."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import llama_index.core
import openai
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests
from pydantic import BaseModel

from tests.clients.scripts import BREAKS_OFF, ENDLESS, calls, fails, says
from tests.clients.server import Server, served

JOKE_TEXT = '{"setup": "Why do cats purr?", "punchline": "They can."}'
JOKE = says('{"setup": "Why do cats', ' purr?", "punchline": ', '"They can."}')
MAGIC = calls("magic_function", '{"input": 3}')
CUSTOMER = '{"customer_name": "你好啊集团 こんにちは株式会社", "description": "技術"}'
SCRIPTS = {  # of LangChain's tests that need a certain answer
    "test_tool_calling": MAGIC,
    "test_tool_calling_async": MAGIC,
    "test_tool_choice": MAGIC,
    "test_tool_calling_with_no_arguments": calls("magic_function_no_args", "{}"),
    "test_bind_runnables_as_tools": calls("greeting_generator", '{"answer_style": "Pirate"}'),
    "test_structured_output": JOKE,
    "test_structured_output_async": JOKE,
    "test_structured_output_pydantic_2_v1": {"script": {**JOKE["script"], **calls("Joke", JOKE_TEXT)["script"]}},
    "test_structured_output_optional_param": JOKE,
    "test_json_mode": JOKE,
    "test_agent_loop": calls("get_weather", '{"location": "San Francisco"}'),
    "test_unicode_tool_call_integration": calls("unicode_customer", CUSTOMER),
}
TEXT = says("Hello", " there", "!")


def chat(server: Server, extra_body: dict[str, Any] = TEXT, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(
        **{"model": "scripted", "base_url": server.base_url, "api_key": "any", "max_retries": 0, **options},
        extra_body=extra_body,
    )


class TestStandardChat(ChatModelIntegrationTests):
    """LangChain's standard tests of a chat model. Pictures, sounds and PDFs are for models that read them."""

    @property
    def chat_model_class(self) -> Any:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "scripted", "base_url": served().base_url, "api_key": "any", "stream_usage": True}

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return "gpt-4o"

    @pytest.fixture
    def model(self, request: Any) -> BaseChatModel:
        options = {**self.standard_chat_model_params, **self.chat_model_params, **getattr(request, "param", {})}
        return ChatOpenAI(**options, extra_body=SCRIPTS.get(request.node.originalname, TEXT))


class TestStandardEmbeddings(EmbeddingsIntegrationTests):
    """LangChain's standard tests of embeddings, which send token ids and ask for base64."""

    @pytest.fixture(autouse=True)
    def vocabulary(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """LlamaIndex brings tiktoken's vocabulary along, so nothing is downloaded."""
        folder = Path(llama_index.core.__file__).parent / "_static" / "tiktoken_cache"
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder))

    @property
    def embeddings_class(self) -> Any:
        return OpenAIEmbeddings

    @property
    def embedding_model_params(self) -> dict[str, Any]:
        return {"model": "text-embedding-3-small", "base_url": served().base_url, "api_key": "any"}


def test_the_text_arrives_in_pieces_and_its_usage_at_the_end(server: Server) -> None:
    pieces = list(chat(server, stream_usage=True).stream("hi"))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole += piece

    assert [piece.content for piece in pieces if piece.content] == ["Hello", " there", "!"]
    assert isinstance(whole, AIMessageChunk)
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 4
    assert whole.response_metadata["finish_reason"] == "stop"


def test_two_calls_arrive_whole_in_a_stream(server: Server) -> None:
    two = {"tool_calls": [{"name": "f", "arguments": ['{"at": ', f"{at}" + "}"]} for at in (1, 2)]}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    whole = None
    for piece in chat(server, {"script": two}).bind_tools([tool]).stream("hi"):
        whole = piece if whole is None else whole + piece

    assert isinstance(whole, AIMessageChunk)
    assert [call["args"] for call in whole.tool_calls] == [{"at": 1}, {"at": 2}]


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output_by_each_method(server: Server, method: Any) -> None:
    class City(BaseModel):
        name: str

    answer = calls("City", '{"name": "Bern"}') if method == "function_calling" else says('{"name": ', '"Bern"}')

    city = chat(server, answer).with_structured_output(City, method=method).invoke("A city, as JSON")

    assert city == City(name="Bern")


def test_texts_are_embedded_without_a_tokenizer_too(server: Server) -> None:
    plain = OpenAIEmbeddings(
        model="text-embedding-3-small", base_url=server.base_url, api_key="any", check_embedding_ctx_length=False
    )

    one, same, other = plain.embed_documents(["one text", "one text", "another"])

    assert one == same != other


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("bad_request", openai.BadRequestError),
        ("rate_limited", openai.RateLimitError),
        ("overloaded", openai.InternalServerError),
        ("crash", openai.InternalServerError),
    ],
)
def test_a_failure_is_the_sdks_own_class(server: Server, kind: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        chat(server, fails(kind)).invoke("hi")


def test_an_unknown_model_and_a_failure_inside_a_stream_are_told(server: Server) -> None:
    with pytest.raises(openai.NotFoundError):
        chat(server, model="nope").invoke("hi")
    with pytest.raises(openai.APIError, match="lost"):
        list(chat(server, BREAKS_OFF).stream("hi"))


@pytest.mark.usefixtures("is_cancelled")
def test_leaving_a_stream_ends_the_work() -> None:
    pieces = chat(served(), ENDLESS).stream("hi")
    assert next(pieces) is not None
    pieces.close()


@pytest.mark.usefixtures("is_cancelled")
async def test_cancelling_a_call_ends_the_work() -> None:
    before = served().count("started")
    call = asyncio.create_task(chat(served(), ENDLESS).ainvoke("hi"))
    await asyncio.to_thread(served().wait_for, "started", before + 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
