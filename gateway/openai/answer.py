"""What every answer carries beside its choices: id, model, fingerprint, usage; and the frame of a stream's events."""

from __future__ import annotations

import functools
import hashlib
from typing import Any, Self

from msgspec import Struct

from backends.types import Usage
from gateway.openai.sampling import SamplingFields
from gateway.openai.sse import DONE
from gateway.openai.text import to_json
from gateway.version import own_version


class Reply(Struct, frozen=True, kw_only=True):
    """The identity of one answer, the same on its body and on each of its events. `created` is in Unix seconds."""

    id: str
    created: int
    model: str
    service_tier: str | None = None
    include_usage: bool = False
    continuous_usage: bool = False

    @classmethod
    def to(cls, prefix: str, request_id: str, created: int, sampling: SamplingFields) -> Self:
        """The reply to a request; its id is `prefix` and the request's own id."""
        return cls(
            id=prefix + request_id.removeprefix("req_"),
            created=created,
            model=sampling.model,
            service_tier=sampling.shown_tier,
            include_usage=sampling.include_usage,
            continuous_usage=sampling.continuous_usage,
        )

    def members(self, kind: str) -> dict[str, Any]:
        """The members that stand before `choices`; `kind` is the value of `object`."""
        tier = {} if self.service_tier is None else {"service_tier": self.service_tier}
        fingerprint = system_fingerprint(self.model)
        named = {"id": self.id, "object": kind, "created": self.created, "model": self.model}
        return {**named, "system_fingerprint": fingerprint, **tier}


class Events:
    """The frame around the choices of a stream's events, encoded once."""

    def __init__(self, reply: Reply, kind: str) -> None:
        self._head = b"data: " + to_json(reply.members(kind))[:-1] + b',"choices":['
        self._include_usage = reply.include_usage
        self._continuous = reply.continuous_usage
        self._tail = b'],"usage":null}\n\n' if reply.include_usage else b"]}\n\n"
        self.usage = Usage()  # of the last chunk seen

    def event(self, choice: bytes) -> bytes:
        """One event about one choice, given as JSON."""
        return self._head + choice + (self._usage_tail() if self._continuous else self._tail)

    def finish(self) -> bytes:
        """The usage, where it was asked for, as an event without choices; then the end mark."""
        return self._head + self._usage_tail() + DONE if self._include_usage else DONE

    def _usage_tail(self) -> bytes:
        return b'],"usage":' + to_json(usage_object(self.usage)) + b"}\n\n"


class PromptTokensDetails(Struct, frozen=True, kw_only=True):
    """Kinds of prompt tokens."""

    cached_tokens: int
    audio_tokens: int = 0


class CompletionTokensDetails(Struct, frozen=True, kw_only=True):
    """Kinds of generated tokens."""

    reasoning_tokens: int
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class UsageObject(Struct, frozen=True, kw_only=True):
    """OpenAI's usage: the prompt counted once, the output of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


def usage_object(usage: Usage) -> UsageObject:
    """`usage` as the wire has it."""
    return UsageObject(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=usage.cached_tokens),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=usage.reasoning_tokens),
    )


@functools.lru_cache(maxsize=256)
def system_fingerprint(model: str) -> str:
    """Changes when the model or this software does, and only then."""
    digest = hashlib.sha256(f"laneway {own_version()} {model}".encode("utf-8", "replace"))
    return f"fp_{digest.hexdigest()[:10]}"
