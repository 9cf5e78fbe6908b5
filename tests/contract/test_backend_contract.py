"""What every backend promises, in one class that runs against each of them.

To add a backend, write an async context manager that starts one and yields a `Subject`, and name it in `SUBJECTS`, and
in `EMBEDDERS` if it makes vectors. It gets the test's `request`, for the fixtures it needs.
"""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

import pytest
from msgspec import Struct

from backends.base import Backend, BackendContext, Embedding, Tokenizing
from backends.errors import (
    BackendError,
    InvalidRequest,
    ModelNotFound,
    PromptTooLong,
    Unavailable,
    UnsupportedParameter,
)
from backends.scripted import ScriptedBackend, ScriptedOptions
from backends.types import (
    Chunk,
    EmbedRequest,
    FinishReason,
    GenerateRequest,
    Message,
    SamplingParams,
    TokenizeRequest,
)
from tests.contract.tiny_engine import TinyEngine

PATIENCE_S = 60
ENDLESS = 100_000  # a max_tokens that no test waits for
STORY = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"


class Subject(Struct, frozen=True):
    """A started backend that is ready, and a model it serves."""

    backend: Backend
    model: str

    def request(self, prompt: str | tuple[int, ...] = STORY, *more: str, **sampling: Any) -> GenerateRequest:
        """A greedy request, so that the same prompt has the same answer every time."""
        params = SamplingParams(**({"temperature": 0.0, "max_tokens": 12} | sampling))
        return GenerateRequest(
            request_id="r", route="completions", model=self.model, prompts=(prompt, *more), sampling=params
        )

    def generate(
        self, prompt: str | tuple[int, ...] = STORY, *more: str, **sampling: Any
    ) -> AsyncGenerator[Chunk, None]:
        return self.backend.generate(self.request(prompt, *more, **sampling))

    def embed(self, *inputs: str | tuple[int, ...], **fields: Any) -> AsyncGenerator[Chunk, None]:
        """The vectors of the inputs, from a backend that makes vectors."""
        assert isinstance(self.backend, Embedding)
        return self.backend.embed(EmbedRequest(request_id="r", model=self.model, prompts=inputs, **fields))

    def chat(self, text: str) -> GenerateRequest:
        return GenerateRequest(
            request_id="r",
            route="chat",
            model=self.model,
            messages=(Message(role="user", content=text),),
            sampling=SamplingParams(temperature=0.0, max_tokens=8),
        )


@asynccontextmanager
async def scripted(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    options = ScriptedOptions(models=("scripted",), default_delay_s=0.0005)
    context = BackendContext(name="test", run_dir=request.getfixturevalue("tmp_path"))
    backend = ScriptedBackend.create(options, context)
    await backend.start()
    yield Subject(backend, "scripted")
    await backend.stop()


@asynccontextmanager
async def hf(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    """A front of its own for each test, on one engine for all of them."""
    async with _front(request.getfixturevalue("tiny_engine"), "tiny-llama") as subject:
        yield subject


@asynccontextmanager
async def hf_embedding(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    """The same on the built-in embedding model."""
    async with _front(request.getfixturevalue("minilm_engine"), "model") as subject:
        yield subject


@asynccontextmanager
async def _front(engine: TinyEngine, model: str) -> AsyncIterator[Subject]:
    backend = engine.backend()
    await backend.start()
    async with asyncio.timeout(PATIENCE_S):
        while not backend.health().ready:
            await asyncio.sleep(0.005)
    yield Subject(backend, model)
    await backend.stop()
    await engine.until_empty()


SUBJECTS = [scripted, hf]
EMBEDDERS = [scripted, hf_embedding]


@pytest.fixture(params=SUBJECTS, ids=lambda make: make.__name__)
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    make: Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Subject]] = request.param
    async with make(request) as made:
        yield made
        await _idle(made.backend)


async def _collect(chunks: AsyncGenerator[Chunk, None]) -> list[Chunk]:
    async with asyncio.timeout(PATIENCE_S), aclosing(chunks):
        return [chunk async for chunk in chunks]


async def _until_text(chunks: AsyncGenerator[Chunk, None]) -> Chunk:
    async with asyncio.timeout(PATIENCE_S):
        while not (chunk := await anext(chunks)).text:
            pass
        return chunk


async def _idle(backend: Backend) -> None:
    """Nothing is running any more. An engine of its own says so at its next step, hence the waiting."""
    async with asyncio.timeout(PATIENCE_S):
        while backend.health().running:
            await asyncio.sleep(0.005)


def _text(chunks: list[Chunk], index: int = 0) -> str:
    return "".join(chunk.text for chunk in chunks if chunk.index == index)


def _finishes(chunks: list[Chunk]) -> dict[int, FinishReason]:
    ends = [(chunk.index, chunk.finish_reason) for chunk in chunks if chunk.finish_reason is not None]
    assert len({index for index, _ in ends}) == len(ends), "a choice ends once"
    return dict(ends)


async def _failure(chunks: AsyncGenerator[Chunk, None]) -> BackendError:
    """The error that comes before any chunk."""
    async with asyncio.timeout(PATIENCE_S), aclosing(chunks):
        with pytest.raises(BackendError) as caught:
            await anext(chunks)
    return caught.value


class TestBackendContract:
    """Cancel by closing; a valid bill at every chunk; typed failures before the first chunk; and what follows."""

    async def test_it_names_its_models_and_is_ready(self, subject: Subject) -> None:
        cards = [card.id for card in subject.backend.models]

        assert subject.model in cards
        assert len(set(cards)) == len(cards)
        assert subject.backend.health().ready
        assert subject.backend.capacity is None or subject.backend.capacity >= 1

    async def test_nothing_is_acquired_before_the_first_pull(self, subject: Subject) -> None:
        chunks = subject.generate(max_tokens=ENDLESS, ignore_eos=True)

        assert subject.backend.health().running == 0

        await chunks.aclose()

    @pytest.mark.parametrize("num_choices", [1, 4])
    async def test_closing_before_any_text_cancels(self, subject: Subject, num_choices: int) -> None:
        chunks = subject.generate(max_tokens=ENDLESS, ignore_eos=True, n=num_choices)
        async with asyncio.timeout(PATIENCE_S):
            await anext(chunks)
            await chunks.aclose()

        await _idle(subject.backend)

    @pytest.mark.parametrize("num_choices", [1, 4])
    async def test_closing_in_the_middle_of_the_text_cancels(self, subject: Subject, num_choices: int) -> None:
        chunks = subject.generate(max_tokens=ENDLESS, ignore_eos=True, n=num_choices)
        await _until_text(chunks)

        async with asyncio.timeout(PATIENCE_S):
            await chunks.aclose()

        await _idle(subject.backend)

    async def test_cancelling_the_task_that_waits_for_a_chunk_cancels(self, subject: Subject) -> None:
        task = asyncio.create_task(_collect(subject.generate(max_tokens=ENDLESS, ignore_eos=True)))
        while not subject.backend.health().running:
            await asyncio.sleep(0)

        task.cancel()

        with pytest.raises(asyncio.CancelledError):
            await task
        await _idle(subject.backend)

    async def test_cancelling_one_request_leaves_the_others_alone(self, subject: Subject) -> None:
        alone = await _collect(subject.generate())
        doomed = subject.generate("something else", max_tokens=ENDLESS, ignore_eos=True)
        await _until_text(doomed)
        other = asyncio.create_task(_collect(subject.generate()))
        await asyncio.sleep(0)

        await doomed.aclose()

        assert _text(await other) == _text(alone)

    async def test_the_usage_grows_and_the_last_chunk_is_the_bill(self, subject: Subject) -> None:
        chunks = await _collect(subject.generate(n=2, max_tokens=5, ignore_eos=True))

        usages = [chunk.usage for chunk in chunks]
        completion = [usage.completion_tokens for usage in usages]
        assert completion == sorted(completion)
        assert completion[-1] == 10, "of both choices together"
        assert len({usage.prompt_tokens for usage in usages}) == 1
        assert usages[-1].prompt_tokens > 0, "counted once, not per choice"
        assert usages[-1].reasoning_tokens <= completion[-1]
        assert usages[-1].cached_tokens <= usages[-1].prompt_tokens

    async def test_a_cancelled_request_has_seen_a_valid_bill(self, subject: Subject) -> None:
        chunks = subject.generate(max_tokens=ENDLESS, ignore_eos=True)
        last = await _until_text(chunks)
        await chunks.aclose()

        assert last.usage.prompt_tokens > 0
        assert last.usage.completion_tokens >= 1

    async def test_an_empty_chunk_says_that_work_began_before_any_token(self, subject: Subject) -> None:
        chunks = await _collect(subject.generate())

        if not chunks[0].is_visible:
            assert chunks[0].usage.completion_tokens == 0

    async def test_max_tokens_ends_with_length(self, subject: Subject) -> None:
        chunks = await _collect(subject.generate(max_tokens=3, ignore_eos=True))

        assert _finishes(chunks) == {0: FinishReason.LENGTH}
        assert chunks[-1].finish_reason is FinishReason.LENGTH
        assert chunks[-1].usage.completion_tokens == 3

    async def test_no_tokens_wanted_is_an_empty_answer(self, subject: Subject) -> None:
        chunks = await _collect(subject.generate(max_tokens=0))

        assert _text(chunks) == ""
        assert _finishes(chunks) == {0: FinishReason.LENGTH}
        assert chunks[-1].usage.completion_tokens == 0

    async def test_a_stop_string_is_cut_out_and_named(self, subject: Subject) -> None:
        whole = _text(await _collect(subject.generate(max_tokens=16, ignore_eos=True)))
        middle = len(whole) // 2
        stop = whole[middle : middle + 3]

        chunks = await _collect(subject.generate(max_tokens=16, ignore_eos=True, stop=(stop,)))

        assert _text(chunks) == whole[: whole.index(stop)]
        assert _finishes(chunks) == {0: FinishReason.STOP}
        assert chunks[-1].stop_reason == stop

    async def test_choices_are_numbered_by_prompt_and_then_by_choice(self, subject: Subject) -> None:
        chunks = await _collect(subject.generate(STORY, "seven eight nine", n=2, max_tokens=4, ignore_eos=True))

        assert set(_finishes(chunks)) == {0, 1, 2, 3}
        assert _text(chunks, 0) == _text(chunks, 1)
        assert _text(chunks, 2) == _text(chunks, 3)
        alone = await _collect(subject.generate("seven eight nine", max_tokens=4, ignore_eos=True))
        assert _text(chunks, 2) == _text(alone)

    async def test_nothing_comes_of_a_choice_after_its_end(self, subject: Subject) -> None:
        chunks = await _collect(subject.generate(n=3, max_tokens=4))

        ended: set[int] = set()
        for chunk in chunks:
            assert not (chunk.is_visible and chunk.index in ended)
            if chunk.finish_reason is not None:
                ended.add(chunk.index)
        assert ended == {0, 1, 2}

    async def test_two_generations_at_once_do_not_mix(self, subject: Subject) -> None:
        prompts = [STORY, "red green blue", "a b c d e f g"]
        alone = [_text(await _collect(subject.generate(prompt))) for prompt in prompts]

        together = await asyncio.gather(*(_collect(subject.generate(prompt)) for prompt in prompts))

        assert [_text(chunks) for chunks in together] == alone

    async def test_a_chat_is_answered(self, subject: Subject) -> None:
        chunks = await _collect(subject.backend.generate(subject.chat("one two three")))

        assert chunks[-1].usage.prompt_tokens >= 3
        assert set(_finishes(chunks)) == {0}

    async def test_an_unknown_model_fails_before_the_first_chunk(self, subject: Subject) -> None:
        unknown = Subject(subject.backend, "no-such-model")

        error = await _failure(unknown.generate())

        assert isinstance(error, ModelNotFound)

    async def test_a_prompt_that_never_fits_fails_before_the_first_chunk(self, subject: Subject) -> None:
        limit = next(card.max_model_len for card in subject.backend.models if card.id == subject.model)
        assert limit is not None

        error = await _failure(subject.generate("word " * (limit + 1)))

        assert isinstance(error, PromptTooLong)
        assert "maximum context length" in error.message
        assert error.param == "prompt"

    @pytest.mark.parametrize("token_id", [-1, 1 << 31])
    async def test_a_token_outside_the_vocabulary_fails_before_the_first_chunk(
        self, subject: Subject, token_id: int
    ) -> None:
        assert isinstance(await _failure(subject.generate((0, token_id))), InvalidRequest)
        assert isinstance(await _failure(subject.generate(stop_token_ids=(token_id,))), InvalidRequest)
        assert isinstance(await _failure(subject.generate(logit_bias={token_id: 1.0})), InvalidRequest)

    async def test_logprobs_come_one_a_token_or_are_refused(self, subject: Subject) -> None:
        try:
            chunks = await _collect(subject.generate(max_tokens=4, ignore_eos=True, logprobs=2))
        except UnsupportedParameter:
            return

        rows = [row for chunk in chunks for row in chunk.logprobs or ()]
        assert len(rows) == 4
        assert all(len(row.top) <= 2 for row in rows)

    async def test_echo_puts_the_prompt_before_the_text_or_is_refused(self, subject: Subject) -> None:
        try:
            chunks = await _collect(subject.generate("one two", max_tokens=2, ignore_eos=True, echo=True))
        except UnsupportedParameter:
            return

        assert _text(chunks).startswith("one two")

    async def test_the_backend_works_on_after_failures(self, subject: Subject) -> None:
        before = _text(await _collect(subject.generate()))

        await _failure(Subject(subject.backend, "no-such-model").generate())
        await _failure(subject.generate((0, -1)))

        assert _text(await _collect(subject.generate())) == before

    async def test_text_survives_tokenizing_and_back(self, subject: Subject) -> None:
        backend = subject.backend
        assert isinstance(backend, Tokenizing)
        text = "Hello there, wörld! 🎉 two  spaces"

        tokens = await backend.tokenize(TokenizeRequest(model=subject.model, prompt=text, return_token_strs=True))

        assert (await backend.detokenize(subject.model, tokens.ids)).strip().endswith(text)
        assert tokens.strs is not None
        assert len(tokens.strs) == len(tokens.ids)

    async def test_tokenizing_counts_what_generating_bills(self, subject: Subject) -> None:
        backend = subject.backend
        assert isinstance(backend, Tokenizing)
        chat = subject.chat("one two three")

        tokens = await backend.tokenize(TokenizeRequest(model=subject.model, messages=chat.messages))

        chunks = await _collect(backend.generate(chat))
        assert chunks[-1].usage.prompt_tokens == len(tokens.ids)
        assert await backend.count(TokenizeRequest(model=subject.model, messages=chat.messages)) == len(tokens.ids)
        ids = (await backend.tokenize(TokenizeRequest(model=subject.model, prompt=STORY))).ids
        by_ids = await _collect(subject.generate(ids))
        assert by_ids[-1].usage.prompt_tokens == len(ids)
        assert _text(by_ids) == _text(await _collect(subject.generate()))

    @pytest.mark.parametrize("token_id", [-1, 1 << 31])
    async def test_detokenizing_an_id_outside_the_vocabulary_is_a_bad_request(
        self, subject: Subject, token_id: int
    ) -> None:
        assert isinstance(subject.backend, Tokenizing)

        with pytest.raises(InvalidRequest):
            await subject.backend.detokenize(subject.model, [token_id])

    async def test_tokenizing_for_an_unknown_model_is_refused(self, subject: Subject) -> None:
        assert isinstance(subject.backend, Tokenizing)

        with pytest.raises(ModelNotFound):
            await subject.backend.tokenize(TokenizeRequest(model="no-such-model", prompt="a"))

    async def test_stopping_fails_what_runs_and_what_comes_later(self, subject: Subject) -> None:
        running = subject.generate(max_tokens=ENDLESS, ignore_eos=True)
        await _until_text(running)

        await subject.backend.stop()

        with pytest.raises(Unavailable):
            await _collect(running)
        assert not subject.backend.health().ready
        assert isinstance(await _failure(subject.generate()), Unavailable)
        await _idle(subject.backend)


@pytest.fixture(params=EMBEDDERS, ids=lambda make: make.__name__)
async def embedder(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    make: Callable[[pytest.FixtureRequest], AbstractAsyncContextManager[Subject]] = request.param
    async with make(request) as made:
        yield made
        await _idle(made.backend)


def _vectors(chunks: list[Chunk]) -> dict[int, tuple[float, ...]]:
    found = [(chunk.index, chunk.vector) for chunk in chunks if chunk.vector is not None]
    assert len(dict(found)) == len(found), "an input has one vector"
    return {index: struct.unpack(f"<{len(vector) // 4}f", vector) for index, vector in found}


class TestEmbeddingContract:
    """What backends promise that make vectors."""

    async def test_each_input_has_one_unit_vector_of_its_own(self, embedder: Subject) -> None:
        chunks = await _collect(embedder.embed("one", STORY, "three"))

        vectors = _vectors(chunks)
        assert set(vectors) == set(_finishes(chunks)) == {0, 1, 2}
        assert len(set(vectors.values())) == 3
        assert len({len(vector) for vector in vectors.values()}) == 1
        for vector in vectors.values():
            assert math.hypot(*vector) == pytest.approx(1, abs=1e-5)

    async def test_a_vector_does_not_depend_on_its_neighbours_and_is_the_same_every_time(
        self, embedder: Subject
    ) -> None:
        together = _vectors(await _collect(embedder.embed("one", STORY)))

        assert _vectors(await _collect(embedder.embed(STORY)))[0] == pytest.approx(together[1], abs=1e-5)

    async def test_token_ids_have_the_vector_of_their_text(self, embedder: Subject) -> None:
        backend = embedder.backend
        assert isinstance(backend, Tokenizing)
        ids = (await backend.tokenize(TokenizeRequest(model=embedder.model, prompt=STORY))).ids

        vectors = _vectors(await _collect(embedder.embed(STORY, ids)))

        assert vectors[0] == pytest.approx(vectors[1], abs=1e-5)

    async def test_fewer_dimensions_are_the_first_ones_at_length_one_or_are_refused(self, embedder: Subject) -> None:
        whole = _vectors(await _collect(embedder.embed("one")))[0]
        try:
            short = _vectors(await _collect(embedder.embed("one", dimensions=8)))[0]
        except InvalidRequest as error:
            assert (error.param, error.code) == ("dimensions", "invalid_value")
            return

        norm = math.hypot(*whole[:8])
        assert short == pytest.approx([value / norm for value in whole[:8]], abs=1e-5)

    async def test_more_dimensions_than_there_are_fail_before_the_first_chunk(self, embedder: Subject) -> None:
        error = await _failure(embedder.embed("one", dimensions=1 << 20))

        assert isinstance(error, InvalidRequest)
        assert (error.param, error.code) == ("dimensions", "invalid_value")

    async def test_the_bill_grows_with_what_is_read_and_nothing_is_made(self, embedder: Subject) -> None:
        chunks = await _collect(embedder.embed("one", STORY))

        prompt = [chunk.usage.prompt_tokens for chunk in chunks]
        alone = [(await _collect(embedder.embed(text)))[-1].usage.prompt_tokens for text in ("one", STORY)]
        assert prompt == sorted(prompt)
        assert prompt[-1] == sum(alone)
        assert {chunk.usage.completion_tokens for chunk in chunks} == {0}

    async def test_what_is_too_long_is_refused_unless_it_may_be_cut(self, embedder: Subject) -> None:
        limit = next(card.max_model_len for card in embedder.backend.models if card.id == embedder.model)
        assert limit is not None
        long = "word " * (limit + 1)

        error = await _failure(embedder.embed("one", long))
        cut = await _collect(embedder.embed(long, truncate_to=-1))
        tail = await _collect(embedder.embed(long, truncate_to=3))

        assert isinstance(error, PromptTooLong)
        assert "maximum context length" in error.message
        assert error.param == "input"
        assert [chunks[-1].usage.prompt_tokens for chunks in (cut, tail)] == [limit, 3]

    async def test_what_cannot_be_embedded_fails_before_the_first_chunk(self, embedder: Subject) -> None:
        unknown = Subject(embedder.backend, "no-such-model")

        assert isinstance(await _failure(unknown.embed("one")), ModelNotFound)
        assert (await _failure(embedder.embed("one", (0, 1 << 31)))).param == "input"

    async def test_closing_cancels(self, embedder: Subject) -> None:
        chunks = embedder.embed(*["word"] * 1000)
        assert embedder.backend.health().running == 0, "nothing is acquired before the first pull"
        async with asyncio.timeout(PATIENCE_S):
            await anext(chunks)
            await chunks.aclose()

        await _idle(embedder.backend)

    async def test_a_stopped_backend_makes_no_vectors(self, embedder: Subject) -> None:
        await embedder.backend.stop()

        assert isinstance(await _failure(embedder.embed("one")), Unavailable)
