"""The scripted backend: what it is told is what comes, and caps, stops, failures and cancels act as on a model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from backends.base import Backend, BackendContext, Tokenizing
from backends.errors import (
    BackendError,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    PromptTooLong,
    Unavailable,
    UnsupportedParameter,
)
from backends.scripted import ScriptedBackend, ScriptedOptions, TokenRate
from backends.types import (
    Chunk,
    FinishReason,
    GenerateRequest,
    MediaPart,
    Message,
    SamplingParams,
    TextPart,
    TokenizeRequest,
    Usage,
)
from backends.words import word_id

STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


def _make(**options: Any) -> ScriptedBackend:
    return ScriptedBackend.create(ScriptedOptions(**options), BackendContext(name="test", run_dir=Path()))


@pytest.fixture
async def backend() -> AsyncIterator[ScriptedBackend]:
    made = _make()
    await made.start()
    yield made
    assert made.health().running == 0
    await made.stop()


def _request(
    script: object = None,
    prompts: tuple[str | tuple[int, ...], ...] = ("hi you",),
    messages: tuple[Message, ...] | None = None,
    fields: dict[str, Any] | None = None,
    **sampling: Any,
) -> GenerateRequest:
    return GenerateRequest(
        request_id="r",
        route="completions" if messages is None else "chat",
        model="scripted",
        prompts=prompts if messages is None else (),
        messages=messages,
        sampling=SamplingParams(**sampling),
        extra={} if script is None else {"script": script},
        **(fields or {}),
    )


async def _play(backend: ScriptedBackend, *args: Any, **kwargs: Any) -> list[Chunk]:
    async with aclosing(backend.generate(_request(*args, **kwargs))) as chunks:
        return [chunk async for chunk in chunks]


async def _fails(backend: ScriptedBackend, *args: Any, **kwargs: Any) -> tuple[list[Chunk], Exception]:
    """The chunks before the failure, and the failure."""
    seen: list[Chunk] = []
    async with aclosing(backend.generate(_request(*args, **kwargs))) as chunks:
        try:
            async for chunk in chunks:
                seen.append(chunk)
        except Exception as error:
            return seen, error
    raise AssertionError("it did not fail")


def _text(chunks: Sequence[Chunk], index: int = 0) -> str:
    return "".join(chunk.text for chunk in chunks if chunk.index == index)


def _ends(chunks: Sequence[Chunk]) -> dict[int, FinishReason]:
    return {chunk.index: chunk.finish_reason for chunk in chunks if chunk.finish_reason is not None}


def _counters(backend: ScriptedBackend) -> dict[str, float]:
    return {metric.name.removeprefix("scripted_"): metric.value for metric in backend.health().metrics}


def test_it_has_the_contract_and_tokenizes() -> None:
    made = _make(models=("a", "b", "a"), capacity=3, max_model_len=99)

    assert isinstance(made, Backend)
    assert isinstance(made, Tokenizing)
    assert [(card.id, card.max_model_len) for card in made.models] == [("a", 99), ("b", 99)]
    assert made.capacity == 3


async def test_it_is_ready_between_start_and_stop() -> None:
    made = _make()
    assert not made.health().ready
    assert isinstance((await _fails(made))[1], Unavailable)

    await made.start()
    assert made.health().ready

    await made.stop()
    assert not made.health().ready
    await made.start()
    assert _text(await _play(made)) == "hi you"


async def test_without_a_script_the_prompt_comes_back_word_by_word(backend: ScriptedBackend) -> None:
    chunks = await _play(backend, prompts=("ab cd \n",))

    assert [chunk.text for chunk in chunks] == ["", "ab", " cd \n", ""]
    assert chunks[0].usage == Usage(prompt_tokens=2)
    assert chunks[-1].finish_reason is STOP
    assert chunks[-1].usage == Usage(prompt_tokens=2, completion_tokens=3)


async def test_a_chat_comes_back_with_the_words_of_all_its_text(backend: ScriptedBackend) -> None:
    messages = (
        Message(role="system", content="be kind"),
        Message(role="assistant", content=None),
        Message(role="user", content=(TextPart("ab"), TextPart("cd"))),
    )

    chunks = await _play(backend, messages=messages)

    assert _text(chunks) == "be kind\nab\ncd"
    assert chunks[-1].usage.prompt_tokens == 4


async def test_a_prompt_of_token_ids_counts_its_ids_and_comes_back_as_known_words(backend: ScriptedBackend) -> None:
    await _play(backend, prompts=("ab cd",))

    chunks = await _play(backend, prompts=((word_id(b"ab"), word_id(b" cd"), 5),))

    assert _text(chunks) == "ab cd\N{REPLACEMENT CHARACTER}"
    assert chunks[-1].usage.prompt_tokens == 3


async def test_echo_puts_the_prompt_and_its_logprobs_first(backend: ScriptedBackend) -> None:
    script = {"tokens": ["!"], "prompt_logprobs": [None, -2]}

    chunks = await _play(backend, script, prompts=("one two three",), echo=True, logprobs=1, prompt_logprobs=1)

    assert _text(chunks) == "one two three!"
    rows = [row for chunk in chunks for row in chunk.logprobs or ()]
    assert [(row.token, row.logprob) for row in rows] == [("one", None), (" two", -2), (" three", -1.0), ("!", -0.5)]


async def test_echo_without_new_tokens_scores_the_prompt(backend: ScriptedBackend) -> None:
    chunks = await _play(backend, {"tokens": ["!"]}, echo=True, logprobs=1, max_tokens=0)

    assert (_text(chunks), chunks[-1].finish_reason) == ("hi you", LENGTH)
    assert len(chunks[-1].logprobs or ()) == 2
    assert chunks[-1].usage == Usage(prompt_tokens=2)


async def test_echo_in_a_chat_is_the_last_message(backend: ScriptedBackend) -> None:
    messages = (Message(role="user", content="hi"), Message(role="assistant", content="Well, "))

    assert _text(await _play(backend, {"tokens": ["yes"]}, messages=messages, echo=True)) == "Well, yes"


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("unavailable", Unavailable),
        ("overloaded", Overloaded),
        ("bad_request", InvalidRequest),
        ("crash", RuntimeError),
    ],
)
@pytest.mark.parametrize("after_tokens", [0, 2])
async def test_it_fails_as_told_and_where_told(
    backend: ScriptedBackend, kind: str, error: type[Exception], after_tokens: int
) -> None:
    script = {"tokens": ["a", "b", "c"], "fail": {"kind": kind, "after_tokens": after_tokens, "message": "told so"}}

    seen, raised = await _fails(backend, script)

    assert type(raised) is error
    assert str(raised) == "told so"
    assert _text(seen) == "abc"[:after_tokens]
    assert bool(seen) is (after_tokens > 0), "before the first chunk where possible"
    assert isinstance(raised, BackendError) is (kind != "crash")


async def test_a_failure_after_the_last_token_never_comes(backend: ScriptedBackend) -> None:
    chunks = await _play(backend, {"tokens": ["a"], "fail": {"kind": "crash", "after_tokens": 2}})

    assert chunks[-1].finish_reason is STOP


async def test_a_failure_among_choices_counts_all_their_tokens(backend: ScriptedBackend) -> None:
    seen, _ = await _fails(backend, {"tokens": ["a", "b"], "fail": {"kind": "crash", "after_tokens": 3}}, n=2)

    assert [_text(seen, index) for index in range(2)] == ["ab", "a"]


async def test_end_just_stops_without_a_finish(backend: ScriptedBackend) -> None:
    chunks = await _play(backend, {"tokens": ["a", "b"], "fail": {"kind": "end", "after_tokens": 1}})

    assert _text(chunks) == "a"
    assert _ends(chunks) == {}


@pytest.mark.parametrize("after_tokens", [0, 1])
async def test_a_hang_can_be_cancelled(backend: ScriptedBackend, after_tokens: int) -> None:
    chunks = backend.generate(_request({"tokens": ["a"], "fail": {"kind": "hang", "after_tokens": after_tokens}}))
    for _ in range(1 + after_tokens):
        await anext(chunks)
    waiting = asyncio.ensure_future(anext(chunks))
    await asyncio.sleep(0.01)
    assert backend.health().running == 1

    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert _counters(backend) == {"running": 0, "started": 1, "cancelled": 1}


async def test_stopping_ends_a_hang_and_a_long_wait(backend: ScriptedBackend) -> None:
    scripts = [{"fail": {"kind": "hang"}}, {"first_delay_s": 3600}, {"tokens": ["a", "b"], "delay_s": 3600}]
    tasks = [asyncio.create_task(_play(backend, script)) for script in scripts]
    while backend.health().running < len(scripts):
        await asyncio.sleep(0)

    await backend.stop()

    for task in tasks:
        with pytest.raises(Unavailable):
            await task


async def test_the_counters_tell_started_from_cancelled(backend: ScriptedBackend) -> None:
    await _play(backend)
    await _fails(backend, {"fail": {"kind": "crash"}})
    unpulled = backend.generate(_request())
    await unpulled.aclose()
    left = backend.generate(_request())
    await anext(left)
    assert _counters(backend) == {"running": 1, "started": 3, "cancelled": 0}

    await left.aclose()

    assert _counters(backend) == {"running": 0, "started": 3, "cancelled": 1}


async def test_leaving_after_the_last_chunk_is_no_cancel(backend: ScriptedBackend) -> None:
    chunks = backend.generate(_request())
    async for chunk in chunks:
        if chunk.finish_reason is not None:
            break

    await chunks.aclose()

    assert _counters(backend)["cancelled"] == 0


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (_request(prompts=((1, 1 << 24),)), "prompt"),
        (_request(prompts=((-1,),)), "prompt"),
        (_request(logit_bias={1 << 24: 1.0}), "logit_bias"),
        (_request(stop_token_ids=(1 << 24,)), "stop_token_ids"),
        (_request({"tokens": [1]}), "script"),
        (_request(messages=(Message(role="user", content=(MediaPart("image_url"),)),)), "messages[0].content"),
        (_request(fields={"structured_outputs": {"regex": "("}}), "structured_outputs.regex"),
        (
            _request(fields={"response_format": {"type": "json_schema", "json_schema": {}}}),
            "response_format.json_schema.schema",
        ),
    ],
)
async def test_a_wrong_request_is_refused_before_anything_starts(
    backend: ScriptedBackend, request_: GenerateRequest, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await anext(backend.generate(request_))

    assert caught.value.param == param
    assert _counters(backend)["started"] == 0


async def test_prompt_logprobs_without_echo_are_refused_and_not_ignored(backend: ScriptedBackend) -> None:
    assert isinstance((await _fails(backend, prompt_logprobs=1))[1], UnsupportedParameter)


async def test_a_format_is_checked_and_the_script_then_said_as_it_is(backend: ScriptedBackend) -> None:
    chunks = await _play(backend, {"tokens": ["not ", "json"]}, fields={"response_format": {"type": "json_object"}})

    assert _text(chunks) == "not json"


async def test_the_context_bounds_prompt_and_answer_together() -> None:
    made = _make(max_model_len=4)
    await made.start()

    fits = await _play(made, {"tokens": ["x"], "eos": False}, prompts=("a b c",), max_tokens=9)
    scored = await _play(made, prompts=("a b c d",), echo=True, max_tokens=0)
    _, error = await _fails(made, prompts=("a", "a b c d"))

    assert (_text(fits), fits[-1].finish_reason) == ("x", LENGTH)
    assert _text(scored) == "a b c d"
    assert isinstance(error, PromptTooLong)
    assert "maximum context length is 4 tokens" in error.message
    assert isinstance((await _fails(made, messages=(Message(role="user", content="a b c d"),)))[1], PromptTooLong)


async def test_a_deadline_that_would_pass_ends_the_wait(backend: ScriptedBackend) -> None:
    past = {"first_token_at": time.monotonic() - 1}

    seen, first = await _fails(backend, {"tokens": ["a"], "first_delay_s": 3600}, fields=past)
    _, whole = await _fails(
        backend, {"tokens": ["a", "b"], "delay_s": 3600}, fields={"deadline_at": time.monotonic() + 0.01}
    )

    assert isinstance(first, DeadlineExceeded)
    assert isinstance(whole, DeadlineExceeded)
    assert _text(seen) == ""


async def test_the_default_delay_holds_where_the_script_says_none() -> None:
    made = _make(default_delay_s=3600)
    await made.start()
    soon = {"deadline_at": time.monotonic() + 0.01}

    assert isinstance((await _fails(made, fields=soon))[1], DeadlineExceeded)
    assert _text(await _play(made, {"tokens": ["a"], "first_delay_s": 0, "delay_s": 0})) == "a"


async def test_a_token_rate_holds_back_every_request() -> None:
    made = _make(token_rate=1e-3)
    await made.start()

    _, error = await _fails(made, fields={"deadline_at": time.monotonic() + 0.01})

    assert isinstance(error, DeadlineExceeded)


def test_a_token_rate_is_shared_first_come_first_served() -> None:
    rate = TokenRate(10.0)

    assert rate.take(1, now=100.0) == pytest.approx(100.05), "an idle machine has a little credit"
    assert rate.take(4, now=100.0) == pytest.approx(100.45)
    assert rate.take(1, now=100.2) == pytest.approx(100.55)
    assert rate.take(1, now=200.0) == pytest.approx(200.05), "time that nobody used is not saved up"
    assert TokenRate(None).take(5, now=3.0) == 3.0


async def test_it_tokenizes_words_and_remembers_them(backend: ScriptedBackend) -> None:
    tokens = await backend.tokenize(TokenizeRequest(model="scripted", prompt=" ab  cd \n", return_token_strs=True))

    assert tokens.ids == (word_id(b" ab"), word_id(b"  cd \n"))
    assert tokens.strs == (" ab", "  cd \n")
    assert await backend.detokenize("scripted", [*tokens.ids, 5]) == " ab  cd \n\N{REPLACEMENT CHARACTER}"
    with pytest.raises(InvalidRequest) as caught:
        await backend.detokenize("scripted", [1 << 24])
    assert caught.value.param == "tokens"


async def test_a_very_long_text_is_tokenized_in_a_thread(backend: ScriptedBackend) -> None:
    tokens = await backend.tokenize(TokenizeRequest(model="scripted", prompt="word " * 100_000))

    assert len(tokens.ids) == 100_000
