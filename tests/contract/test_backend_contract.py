"""What every backend promises, in one class that runs against each of them.

To add a backend, write an async context manager that starts one and yields a `Subject`, and name it in `SUBJECTS`. It
gets the test's `request`, for the fixtures it needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any

import pytest
from msgspec import Struct

from backends.base import Backend, BackendContext, Tokenizing
from backends.errors import (
    BackendError,
    InvalidRequest,
    ModelNotFound,
    PromptTooLong,
    Unavailable,
    UnsupportedParameter,
)
from backends.scripted import ScriptedBackend, ScriptedOptions
from backends.types import Chunk, FinishReason, GenerateRequest, Message, SamplingParams, TokenizeRequest
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
    engine: TinyEngine = request.getfixturevalue("tiny_engine")
    backend = engine.backend()
    await backend.start()
    async with asyncio.timeout(PATIENCE_S):
        while not backend.health().ready:
            await asyncio.sleep(0.005)
    yield Subject(backend, "tiny-llama")
    await backend.stop()
    await engine.until_empty()


SUBJECTS = [scripted, hf]


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
