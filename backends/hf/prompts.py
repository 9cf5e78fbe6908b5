"""What a request asks the engine for: its prompts as token ids and its parameters, checked, before anything is sent.

Everything in here may take long for a long text, so the backend calls it in a thread.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from msgspec import Struct

from backends.cap import answer_cap
from backends.errors import InvalidRequest, PromptTooLong, UnsupportedParameter
from backends.hf.messages import Submit, Welcome
from backends.hf.tokenizer import ModelTokenizer
from backends.types import GenerateRequest, SamplingParams

MAX_CHOICES = 128  # sequences of one request
SEED_BITS = 63


class Prompt(Struct, frozen=True, eq=False):
    """One prompt. `echo` is what goes before its answers."""

    token_ids: list[int]
    echo: str = ""


class Work(Struct, frozen=True, eq=False):
    """A request ready to be sent: `submits[i]` is choice `i`, prompt by prompt. Empty when no token is wanted."""

    prompts: tuple[Prompt, ...]
    submits: tuple[Submit, ...]


def prepare(
    request: GenerateRequest, tokenizer: ModelTokenizer, welcome: Welcome, max_output_tokens: int | None
) -> Work:
    """Check, render, encode, measure. Raises `InvalidRequest`, `UnsupportedParameter` or `PromptTooLong`."""
    check_supported(request)
    check_ids(request.sampling.stop_token_ids, welcome.vocab_size, "stop_token_ids")
    field = "prompt" if request.messages is None else "messages"
    prompts = tuple(_prompts(request, tokenizer))
    submits: list[Submit] = []
    for prompt in prompts:
        check_ids(prompt.token_ids, welcome.vocab_size, field)
        cap = _cap(prompt, request, welcome, field)
        if max_output_tokens is not None:
            cap = min(cap, max_output_tokens)
        submits += _submits(request, prompt, welcome, cap)
    return Work(prompts, tuple(submits))


def check_supported(request: GenerateRequest) -> None:
    """Refuse what the engine cannot do, rather than ignore it. Raises `UnsupportedParameter` or `InvalidRequest`."""
    for name, is_asked in (*_sampling_asks(request.sampling), *_other_asks(request)):
        if is_asked:
            raise UnsupportedParameter(f"This model does not support {name}.", param=name)
    num_choices = request.sampling.n * max(1, len(request.prompts))
    if num_choices > MAX_CHOICES:
        raise InvalidRequest(f"n times the number of prompts is {num_choices}; the most is {MAX_CHOICES}.", param="n")


def _sampling_asks(sampling: SamplingParams) -> list[tuple[str, bool]]:
    return [
        ("frequency_penalty", sampling.frequency_penalty != 0.0),
        ("presence_penalty", sampling.presence_penalty != 0.0),
        ("repetition_penalty", sampling.repetition_penalty != 1.0),
        ("logit_bias", bool(sampling.logit_bias)),
        ("logprobs", sampling.logprobs is not None),
        ("prompt_logprobs", sampling.prompt_logprobs is not None),
        ("best_of", sampling.best_of is not None and sampling.best_of > sampling.n),
    ]


def _other_asks(request: GenerateRequest) -> list[tuple[str, bool]]:
    response_format = request.response_format or {}
    return [
        ("tools", bool(request.tools) and request.tool_choice != "none"),
        ("response_format", response_format.get("type", "text") != "text"),
        ("structured_outputs", bool(request.structured_outputs)),
    ]


def _prompts(request: GenerateRequest, tokenizer: ModelTokenizer) -> list[Prompt]:
    if request.messages is not None:
        return [Prompt(tokenizer.encode_chat(request.messages, request.template))]
    return [_prompt(prompt, request, tokenizer) for prompt in request.prompts]


def _prompt(prompt: str | tuple[int, ...], request: GenerateRequest, tokenizer: ModelTokenizer) -> Prompt:
    """A text or token prompt. An empty one becomes the token that begins a text, as OpenAI documents."""
    echoes = request.sampling.echo
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt, request.add_special_tokens)
        echo = prompt if echoes else ""
    else:
        check_ids(prompt, tokenizer.vocab_size, "prompt")
        ids = list(prompt)
        echo = tokenizer.decode(ids, request.sampling.skip_special_tokens) if echoes else ""
    if not ids:
        first = tokenizer.bos_id if tokenizer.bos_id is not None else tokenizer.eos_id
        if first is None:
            raise InvalidRequest("The prompt is empty.", param="prompt")
        ids = [first]
    return Prompt(ids, echo)


def _cap(prompt: Prompt, request: GenerateRequest, welcome: Welcome, field: str) -> int:
    """The most tokens that may follow. Raises `PromptTooLong` when none fits, and what `answer_cap` does."""
    limit = min(welcome.max_model_len, welcome.max_sequence_tokens)
    if limit - len(prompt.token_ids) < (0 if request.sampling.max_tokens == 0 else 1):
        raise PromptTooLong(
            f"This model's maximum context length is {limit} tokens. However, your {field} resulted in "
            f"{len(prompt.token_ids)} tokens. Please reduce the length of the {field}.",
            param=field,
        )
    return answer_cap(request, len(prompt.token_ids), limit)


def _submits(request: GenerateRequest, prompt: Prompt, welcome: Welcome, max_tokens: int) -> list[Submit]:
    """The sequences of one prompt. Without a seed each prompt draws its own, or equal prompts would answer alike."""
    sampling = request.sampling
    if max_tokens == 0:
        return []
    seed = secrets.randbits(SEED_BITS) if sampling.seed is None else sampling.seed % (1 << SEED_BITS)
    ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(welcome.end_token_ids))
    return [
        Submit(
            id=0,
            prompt_ids=prompt.token_ids,
            max_tokens=max_tokens,
            min_tokens=min(sampling.min_tokens, max_tokens),
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            seed=seed,
            choice=choice,
            stop_token_ids=sorted(ends),
            lane=request.lane,
            tenant=request.tenant,
            weight=request.weight,
            first_token_at=request.first_token_at,
            deadline_at=request.deadline_at,
        )
        for choice in range(sampling.n)
    ]


def check_ids(token_ids: Sequence[int], vocab_size: int, field: str) -> None:
    """Ids reach the engine only when the model has them: one wrong index would break the step of everybody.

    Raises `InvalidRequest`.
    """
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_size)
        raise InvalidRequest(
            f"Token id {wrong} is outside the vocabulary (0 to {vocab_size - 1}).", param=field, code="invalid_value"
        )
