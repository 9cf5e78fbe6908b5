"""What a request may tell the scripted backend to do: the extra field `script`, checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from backends.errors import InvalidRequest
from backends.options import find_problems
from backends.types import TopLogprob

DEFAULT_LOGPROB = -0.5
DEFAULT_PROMPT_LOGPROB = -1.0

Delay: TypeAlias = Annotated[float, Meta(ge=0, le=3600)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Number: TypeAlias = float | Literal["-inf", "nan"]
Component: TypeAlias = Annotated[float, Meta(ge=-3e38, le=3e38)] | Literal["-inf", "nan"]  # a float32


class ByteToken(Struct, frozen=True, forbid_unknown_fields=True):
    """A token of raw bytes, perhaps a fragment of a character."""

    bytes: list[Annotated[int, Meta(ge=0, le=255)]]


class ScriptedCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call; each piece of `arguments` is one token, and a call without pieces is one too."""

    name: str
    arguments: list[str] = []


class Failure(Struct, frozen=True, forbid_unknown_fields=True):
    """Fail in place of generating the token after `after_tokens`, counted over all choices of the request.

    Where vectors are asked for, they are what is counted. `retry_after_s` is what `overloaded` and `rate_limited` tell.
    """

    kind: Literal["unavailable", "overloaded", "rate_limited", "bad_request", "crash", "hang", "end"]
    after_tokens: Count = 0
    message: str | None = None
    retry_after_s: Delay = 1.0


class ChoiceScript(Struct, frozen=True, forbid_unknown_fields=True):
    """What one choice does otherwise than the rest of the script says."""

    tokens: list[str | ByteToken] | None = None
    eos: bool | None = None
    logprobs: list[Number] | None = None
    tool_calls: list[ScriptedCall] | None = None
    reasoning: list[str] | None = None


class Script(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole script.

    `reasoning`, `tokens` and `tool_calls` are generated in this order, one token a string. With `eos` the end token
    comes after them; without it the last token is repeated until a cap ends the choice. `logprobs` and `top` go with
    `tokens` by position, `prompt_logprobs` with the prompt's tokens (its first entry is never shown: a first token has
    no context), `vectors` with the inputs of an embedding; "-inf" and "nan" stand for those values. `choices` overrides
    by choice index. A delay that is None is the backend's `default_delay_s`. `cached_tokens` is only reported. `usage`
    "missing" imitates a server that reports none.
    """

    tokens: list[str | ByteToken] = []
    eos: bool = True
    choices: list[ChoiceScript] = []
    logprobs: list[Number] = []
    top: list[dict[str, Number]] = []
    prompt_logprobs: list[Number | None] = []
    reasoning: list[str] = []
    tool_calls: list[ScriptedCall] = []
    first_delay_s: Delay | None = None
    delay_s: Delay | None = None
    fail: Failure | None = None
    cached_tokens: Count = 0
    usage: Literal["reported", "missing"] = "reported"
    vectors: list[list[Component]] = []


class ScriptedToken(Struct, frozen=True):
    """One token as a choice will generate it. `call` is the index of the tool call it belongs to."""

    data: bytes
    kind: Literal["text", "reasoning", "call"] = "text"
    logprob: float = DEFAULT_LOGPROB
    top: tuple[TopLogprob, ...] = ()
    call: int = 0
    name: str | None = None


class Part(Struct, frozen=True):
    """All tokens of one choice, and whether it then ends by itself."""

    tokens: list[ScriptedToken]
    eos: bool = True


def read_script(extra: Mapping[str, object]) -> Script | None:
    """The script among a request's extra fields. Raises `InvalidRequest` naming the place, as in `script.tokens[3]`."""
    value = extra.get("script")
    if value is None:
        return None
    try:
        return msgspec.convert(value, Script)
    except msgspec.ValidationError as error:
        problem = next(find_problems(value, Script, "script"), f"script: {error}")
        raise InvalidRequest(problem, param="script", code="invalid_value") from None


def part_of(script: Script, choice: int, limit: int) -> Part:
    """The first `limit` tokens that choice number `choice` generates: reasoning, then text, then calls."""
    own = script.choices[choice] if choice < len(script.choices) else ChoiceScript()
    tokens = list(islice(_tokens(script, own), limit))
    return Part(tokens, script.eos if own.eos is None else own.eos)


def prompt_logprob(script: Script | None, at: int) -> float | None:
    """Log-probability of the prompt's token `at`; None for the first."""
    given = script.prompt_logprobs[at] if script is not None and at < len(script.prompt_logprobs) else None
    if at == 0:
        return None
    return DEFAULT_PROMPT_LOGPROB if given is None else float(given)


def _tokens(script: Script, own: ChoiceScript) -> Iterator[ScriptedToken]:
    for piece in script.reasoning if own.reasoning is None else own.reasoning:
        yield ScriptedToken(piece.encode(), "reasoning")
    logprobs = script.logprobs if own.logprobs is None else own.logprobs
    for at, text in enumerate(script.tokens if own.tokens is None else own.tokens):
        logprob = float(logprobs[at]) if at < len(logprobs) else DEFAULT_LOGPROB
        yield ScriptedToken(_data(text), "text", logprob, _top(script, at))
    for index, call in enumerate(script.tool_calls if own.tool_calls is None else own.tool_calls):
        for at, piece in enumerate(call.arguments or [""]):
            yield ScriptedToken(piece.encode(), "call", call=index, name=call.name if at == 0 else None)


def _data(token: str | ByteToken) -> bytes:
    return token.encode() if isinstance(token, str) else bytes(token.bytes)


def _top(script: Script, at: int) -> tuple[TopLogprob, ...]:
    """The alternatives of token `at`, highest first; nan goes last."""
    if at >= len(script.top):
        return ()
    rows = [TopLogprob(token, float(value), token.encode()) for token, value in script.top[at].items()]
    return tuple(sorted(rows, key=lambda row: (math.isnan(row.logprob), -row.logprob)))
