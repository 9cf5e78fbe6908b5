"""Answers without a model, exactly as the request's `script` tells it; without one it echoes the prompt's words, and
embeds them as their hash.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from typing import Annotated, ClassVar, Literal, Self, TypeVar

from msgspec import Meta, Struct

from backends.base import BackendContext
from backends.errors import (
    DeadlineExceeded,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    PromptTooLong,
    RateLimited,
    Unavailable,
    UnsupportedParameter,
)
from backends.grammar import check_tools, grammar_for
from backends.script import Delay, Failure, Script, prompt_logprob, read_script
from backends.scripted_answer import Answer, Prompt
from backends.scripted_play import Play
from backends.scripted_vectors import Vectors
from backends.types import (
    BackendHealth,
    Chunk,
    EmbedRequest,
    GenerateRequest,
    MediaPart,
    Message,
    Metric,
    ModelCard,
    TokenizeRequest,
    TokenLogprob,
    Tokens,
)
from backends.words import VOCABULARY_SIZE, Vocabulary, count_words, split_words

LONG_TEXT_CHARS = 1 << 16  # longer texts are split in a thread, since that takes milliseconds
RATE_CREDIT_S = 0.05  # how late a token may come without lowering the rate: timers wake late

ModelName = Annotated[str, Meta(min_length=1, max_length=200)]
RequestT = TypeVar("RequestT", bound=GenerateRequest)


class ScriptedOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[backends.NAME]` with `type = "scripted"`.

    `models` are the names it answers to. `capacity` is how many requests it takes at once (none: it takes all).
    `default_delay_s` is the wait before every token of a request that says nothing about it. `token_rate`, in tokens
    per second over all requests together, imitates a saturated machine; a vector counts as one. `max_model_len` is in
    tokens, prompt and answer together. `embedding_size` is how many numbers a vector has; with `matryoshka` a request
    may ask for fewer.
    """

    models: Annotated[tuple[ModelName, ...], Meta(min_length=1)] = ("scripted",)
    capacity: Annotated[int, Meta(ge=1)] | None = None
    default_delay_s: Delay = 0.0
    token_rate: Annotated[float, Meta(gt=0)] | None = None
    max_model_len: Annotated[int, Meta(ge=1)] = 8192
    embedding_size: Annotated[int, Meta(ge=1, le=8192)] = 256
    matryoshka: bool = True


class TokenRate:
    """Shares `per_s` tokens a second among all who ask, first come first served. Does not wait itself."""

    def __init__(self, per_s: float | None) -> None:
        self._per_s = per_s
        self._busy_until = -math.inf

    def take(self, num_tokens: int, now: float) -> float:
        """Book the machine for `num_tokens`; returns the instant when they are done."""
        if self._per_s is None:
            return now
        self._busy_until = max(self._busy_until, now - RATE_CREDIT_S) + num_tokens / self._per_s
        return self._busy_until


class ScriptedBackend:
    """The backend of type `scripted`."""

    Options: ClassVar[type[Struct]] = ScriptedOptions

    def __init__(self, options: ScriptedOptions) -> None:
        self._options = options
        self._vocabulary = Vocabulary()
        self._rate = TokenRate(options.token_rate)
        self._stopped: asyncio.Event | None = None
        self._num_running = 0
        self._num_started = 0
        self._num_cancelled = 0
        created = int(time.time())
        self._models = tuple(
            ModelCard(id=name, created=created, max_model_len=options.max_model_len)
            for name in dict.fromkeys(options.models)
        )

    @classmethod
    def create(cls, options: ScriptedOptions, context: BackendContext) -> Self:
        """Build it; there is nothing to open."""
        return cls(options)

    @property
    def models(self) -> Sequence[ModelCard]:
        """One card a name."""
        return self._models

    @property
    def capacity(self) -> int | None:
        """Slots, as the options say."""
        return self._options.capacity

    async def start(self) -> None:
        """Ready at once."""
        self._stopped = asyncio.Event()

    async def stop(self) -> None:
        """Wake every running request, which then fails with `Unavailable`."""
        if self._stopped is not None:
            self._stopped.set()

    def health(self) -> BackendHealth:
        """Ready between `start` and `stop`; the counters tell a test that a cancel arrived."""
        ready = self._stopped is not None and not self._stopped.is_set()
        metrics = (
            _metric("scripted_running", "gauge", "Generations now running.", self._num_running),
            _metric("scripted_started", "counter", "Generations begun.", self._num_started),
            _metric("scripted_cancelled", "counter", "Generations whose caller left.", self._num_cancelled),
        )
        return BackendHealth(ready=ready, running=self._num_running, metrics=metrics)

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """Play the script. Closing it, or cancelling its task, is seen at once at every wait."""
        return self._play(request, self._prepare)

    def embed(self, request: EmbedRequest) -> AsyncGenerator[Chunk, None]:
        """The same with a vector for each input: the script's, or one made of the hash of its token ids."""
        return self._play(request, self._prepare_vectors)

    async def count(self, request: TokenizeRequest) -> int:
        """Words of a text, or of the text of the messages."""
        self._check_model(request.model)
        text = _text_of(request)
        return count_words(text) if len(text) < LONG_TEXT_CHARS else await asyncio.to_thread(count_words, text)

    async def tokenize(self, request: TokenizeRequest) -> Tokens:
        """Ids of the words of a text, or of the text of the messages."""
        self._check_model(request.model)
        words, ids = await self._read(_text_of(request))
        strs = tuple(word.decode() for word in words) if request.return_token_strs else None
        return Tokens(ids=ids, strs=strs)

    async def detokenize(self, model: str, token_ids: Sequence[int]) -> str:
        """The words of ids; U+FFFD for each that is not remembered."""
        self._check_model(model)
        _check_ids(token_ids, "tokens")
        return b"".join(self._vocabulary.words_of(token_ids)).decode("utf-8", "replace")

    async def _play(
        self, request: RequestT, prepare: Callable[[RequestT], Awaitable[Play]]
    ) -> AsyncGenerator[Chunk, None]:
        stopped = self._running_event()
        play = await prepare(request)
        self._num_started += 1
        self._num_running += 1
        try:
            if not play.fails_at_once:
                for chunk in play.open():
                    yield chunk
            while not play.done:
                await self._turn(play, request, stopped)
                if play.failure is not None:
                    await _fail(play.failure, stopped)
                    return
                for chunk in play.step():
                    yield chunk
        except (GeneratorExit, asyncio.CancelledError):
            self._num_cancelled += not play.done
            raise
        finally:
            self._num_running -= 1

    def _running_event(self) -> asyncio.Event:
        if self._stopped is None or self._stopped.is_set():
            raise Unavailable("The scripted backend is not running.")
        return self._stopped

    def _check_model(self, model: str) -> None:
        if model not in self._options.models:
            raise ModelNotFound.named(model)

    async def _prepare(self, request: GenerateRequest) -> Answer:
        """Check the whole request, so that what is wrong with it is said before anything is generated."""
        self._check_model(request.model)
        script = read_script(request.extra)
        sampling = request.sampling
        if sampling.prompt_logprobs is not None and not sampling.echo:
            raise UnsupportedParameter("prompt_logprobs is not supported by this backend.", param="prompt_logprobs")
        _check_ids(list(sampling.logit_bias), "logit_bias")
        _check_ids(sampling.stop_token_ids, "stop_token_ids")
        await _check_formats(request)
        prompts = [_prompt(words, request, script) for words in await self._prompt_words(request)]
        for prompt in prompts:
            self._check_length(prompt, request)
        return Answer(prompts, script, request, self._options.max_model_len, self._vocabulary)

    async def _prepare_vectors(self, request: EmbedRequest) -> Vectors:
        self._check_model(request.model)
        self._check_dimensions(request.dimensions)
        script = read_script(request.extra)
        inputs = [await self._input_ids(prompt, request.truncate_to) for prompt in request.prompts]
        limit = self._options.max_model_len
        for at, token_ids in enumerate(inputs):
            if len(token_ids) > limit:
                raise PromptTooLong(
                    f"This model's maximum context length is {limit} tokens. However, input {at} has "
                    f"{len(token_ids)} tokens. Please shorten it, or set truncate_prompt_tokens.",
                    param="input",
                )
        return Vectors(inputs, script, self._options.embedding_size, request.dimensions)

    async def _input_ids(self, prompt: str | tuple[int, ...], truncate_to: int | None) -> tuple[int, ...]:
        if isinstance(prompt, str):
            prompt = (await self._read(prompt))[1]
        else:
            _check_ids(prompt, "input")
        if truncate_to is None:
            return prompt
        return prompt[-(truncate_to if truncate_to > 0 else self._options.max_model_len) :]

    def _check_dimensions(self, dimensions: int | None) -> None:
        size = self._options.embedding_size
        if dimensions is None or dimensions == size or (dimensions < size and self._options.matryoshka):
            return
        least = "at most" if self._options.matryoshka else "exactly"
        raise InvalidRequest(
            f"Invalid 'dimensions': this model's vectors can have {least} {size} numbers, but got {dimensions}.",
            param="dimensions",
            code="invalid_value",
        )

    async def _prompt_words(self, request: GenerateRequest) -> list[list[bytes]]:
        if request.messages is not None:
            return [await self._words(_chat_text(request.messages))]
        return [await self._words(prompt) for prompt in request.prompts or ("",)]

    async def _words(self, prompt: str | tuple[int, ...]) -> list[bytes]:
        if isinstance(prompt, str):
            return (await self._read(prompt))[0]
        _check_ids(prompt, "prompt")
        return self._vocabulary.words_of(prompt)

    async def _read(self, text: str) -> tuple[list[bytes], tuple[int, ...]]:
        """The words of a text and their ids, which are remembered."""
        if len(text) < LONG_TEXT_CHARS:
            words = split_words(text)
            return words, self._vocabulary.ids_of(words)
        words = await asyncio.to_thread(split_words, text)
        return words, await asyncio.to_thread(self._vocabulary.ids_of, words)

    def _check_length(self, prompt: Prompt, request: GenerateRequest) -> None:
        limit = self._options.max_model_len
        needed = 0 if request.sampling.max_tokens == 0 else 1
        if len(prompt.words) + needed > limit:
            raise PromptTooLong(
                f"This model's maximum context length is {limit} tokens. However, the prompt has {len(prompt.words)} "
                f"tokens and the answer needs {needed} more. Please shorten the prompt.",
                param="prompt" if request.messages is None else "messages",
            )

    async def _turn(self, play: Play, request: GenerateRequest, stopped: asyncio.Event) -> None:
        """Wait for the next round. Raises `Unavailable` on `stop`, `DeadlineExceeded` past a deadline."""
        now = time.monotonic()
        delay = play.delay_s if play.delay_s is not None else self._options.default_delay_s
        due = max(now + delay, self._rate.take(play.num_active, now))
        deadline = request.deadline_at if request.deadline_at is not None else math.inf
        if play.is_fresh and request.first_token_at is not None:
            deadline = min(deadline, request.first_token_at)
        await _wait(min(due, deadline) - now, stopped)
        if stopped.is_set():
            raise Unavailable("The scripted backend was stopped.")
        if due > deadline:
            raise DeadlineExceeded("The deadline of the request passed before its answer was complete.")


def _metric(name: str, kind: Literal["gauge", "counter"], text: str, value: int) -> Metric:
    return Metric(name=name, kind=kind, help=text, value=float(value))


async def _wait(seconds: float, stopped: asyncio.Event) -> None:
    """Let others run, for `seconds` or until the backend stops."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return
    try:
        async with asyncio.timeout(seconds):
            await stopped.wait()
    except TimeoutError:
        pass


async def _fail(failure: Failure, stopped: asyncio.Event) -> None:
    """Do as the script says; returns only for `end`, where the stream just stops."""
    message = failure.message
    match failure.kind:
        case "unavailable":
            raise Unavailable(message or "Scripted: unavailable.")
        case "overloaded":
            raise Overloaded(message or "Scripted: overloaded.", retry_after_s=failure.retry_after_s)
        case "rate_limited":
            raise RateLimited(message or "Scripted: rate limited.", retry_after_s=failure.retry_after_s)
        case "bad_request":
            raise InvalidRequest(message or "Scripted: bad request.")
        case "crash":
            raise RuntimeError(message or "Scripted: crash.")
        case "hang":
            await stopped.wait()
            raise Unavailable("The scripted backend was stopped.")
        case "end":
            return


async def _check_formats(request: GenerateRequest) -> None:
    """The script is not bound by a format, but a format that no model could be bound by is refused."""
    if request.structured_outputs is not None or request.response_format is not None:
        await asyncio.to_thread(grammar_for, request)
    if request.tools:
        await asyncio.to_thread(check_tools, request.tools, request.tool_choice)


def _text_of(request: TokenizeRequest) -> str:
    return (request.prompt or "") if request.messages is None else _chat_text(request.messages)


def _chat_text(messages: Sequence[Message]) -> str:
    """The prompt of a chat: the texts of its messages, one a line. Raises `InvalidRequest` for a part without text."""
    for at, message in enumerate(messages):
        for part in message.content if isinstance(message.content, tuple) else ():
            if isinstance(part, MediaPart):
                raise InvalidRequest(
                    f"This model reads text only; it cannot take a part of type '{part.kind[:60]}'.",
                    param=f"messages[{at}].content",
                    code="unsupported_value",
                )
    return "\n".join(message.text for message in messages if message.text)


def _check_ids(ids: Sequence[int], param: str) -> None:
    for token_id in ids:
        if not 0 <= token_id < VOCABULARY_SIZE:
            raise InvalidRequest(
                f"{param}: token id {token_id} is outside the vocabulary; allowed: 0 to {VOCABULARY_SIZE - 1}",
                param=param,
                code="invalid_value",
            )


def _prompt(words: list[bytes], request: GenerateRequest, script: Script | None) -> Prompt:
    if not request.sampling.echo:
        return Prompt(words)
    if request.messages is not None:
        return Prompt(words, request.messages[-1].text if request.messages else "")
    text = b"".join(words).decode("utf-8", "replace")
    rows = tuple(_echo_rows(words, script)) if request.sampling.logprobs is not None else None
    return Prompt(words, text, rows)


def _echo_rows(words: list[bytes], script: Script | None) -> Iterator[TokenLogprob]:
    for at, word in enumerate(words):
        yield TokenLogprob(word.decode("utf-8", "replace"), prompt_logprob(script, at), word)
