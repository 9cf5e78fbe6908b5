"""The fields that all routes share which generate: how to sample, when to stop, how to stream."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from backends.types import SamplingParams
from gateway.openai import faults

INT64_MAX = 2**63 - 1
INT32_MAX = 2**31 - 1
SMALLEST_NUCLEUS = 1e-6  # stands for `top_p: 0`, which keeps only the most likely token

Count: TypeAlias = Annotated[int, Meta(ge=1, le=INT64_MAX)]
CountOrZero: TypeAlias = Annotated[int, Meta(ge=0, le=INT64_MAX)]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=INT32_MAX)]
Priority: TypeAlias = Annotated[int, Meta(ge=-INT32_MAX, le=INT32_MAX)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
ServiceTier: TypeAlias = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]

_LANE_OF_TIER = {
    **dict.fromkeys(("priority", "fast", "ultrafast"), "interactive"),
    "default": "standard",
    "flex": "batch",
}
_SHOWN_TIER = {"auto": "default", "fast": "priority", "ultrafast": "priority"}


class StreamOptions(Struct, frozen=True, kw_only=True):
    """`continuous_usage_stats` puts the usage on every event; it counts only beside `include_usage`."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = True


class SamplingFields(Struct, frozen=True, kw_only=True):
    """OpenAI's fields, then vLLM's. Null is the same as absent, so each has its true default here."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1.0
    n: Annotated[int, Meta(ge=1, le=128)] = 1
    stop: str | Annotated[list[str], Meta(max_length=256)] | None = None
    seed: Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    frequency_penalty: Penalty = 0.0
    presence_penalty: Penalty = 0.0
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] = {}
    service_tier: ServiceTier | None = None

    top_k: Annotated[int, Meta(ge=-1, le=INT32_MAX)] = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] = 1.0
    min_tokens: CountOrZero = 0
    ignore_eos: bool = False
    stop_token_ids: list[TokenId] = []
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    echo: bool = False
    prompt_logprobs: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    priority: Priority = 0

    @property
    def lane_wish(self) -> str | None:
        """The lane that the body asks for, None for the key's own. `priority` (low is urgent) beats `service_tier`."""
        return lane_of_priority(self.priority) or _LANE_OF_TIER.get(self.service_tier or "")

    @property
    def shown_tier(self) -> str | None:
        """The tier that the reply names; None when the request named none."""
        return self.service_tier and _SHOWN_TIER.get(self.service_tier, self.service_tier)

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with its usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """Whether every event carries the usage so far."""
        return self.stream_options is not None and self.include_usage and self.stream_options.continuous_usage_stats


def lane_of_priority(priority: int) -> str | None:
    """The lane that vLLM's `priority` asks for: low is urgent, 0 says nothing."""
    if priority == 0:
        return None
    return "interactive" if priority < 0 else "batch"


def check_sampling(fields: SamplingFields, max_tokens: int | None) -> None:
    """The rules among the shared fields. Raises `InvalidBody`."""
    if fields.stream_options is not None and not fields.stream:
        raise faults.broken_rule(
            "stream_options", "The 'stream_options' parameter is only allowed when 'stream' is true."
        )
    if max_tokens is not None and fields.min_tokens > max_tokens:
        raise faults.invalid_value(
            "min_tokens", f"{fields.min_tokens} is more than 'max_tokens', which is {max_tokens}."
        )
    if fields.prompt_logprobs is not None:
        if fields.stream:
            raise faults.combination("prompt_logprobs", "'prompt_logprobs' cannot be used when 'stream' is true.")
        raise faults.unsupported("prompt_logprobs", "Use 'echo' with 'logprobs' on /v1/completions.")


def sampling_params(
    fields: SamplingFields,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    echo: bool = False,
    best_of: int | None = None,
) -> SamplingParams:
    """The shared fields as backends read them, with what each route settles in its own way."""
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=fields.min_tokens,
        n=fields.n,
        best_of=best_of,
        temperature=fields.temperature,
        top_p=fields.top_p or SMALLEST_NUCLEUS,
        top_k=max(fields.top_k, 0),
        min_p=fields.min_p,
        seed=fields.seed,
        frequency_penalty=fields.frequency_penalty,
        presence_penalty=fields.presence_penalty,
        repetition_penalty=fields.repetition_penalty,
        logit_bias=_logit_bias(fields.logit_bias),
        stop=_stop(fields.stop),
        stop_token_ids=tuple(fields.stop_token_ids),
        include_stop_str_in_output=fields.include_stop_str_in_output,
        ignore_eos=fields.ignore_eos,
        skip_special_tokens=fields.skip_special_tokens,
        logprobs=logprobs,
        prompt_logprobs=logprobs if echo else None,
        echo=echo,
    )


def _stop(wire: str | list[str] | None) -> tuple[str, ...]:
    stops = (wire,) if isinstance(wire, str) else tuple(wire or ())
    if "" in stops:
        raise faults.too_short("stop", "string", 1, 0)
    return stops


def _logit_bias(wire: dict[str, float]) -> dict[int, float]:
    """Whether an id is inside the vocabulary is the backend's to say."""
    bias: dict[int, float] = {}
    for token_id, value in wire.items():
        if not (token_id.isascii() and token_id.isdigit() and len(token_id) <= 10):
            raise faults.invalid_value("logit_bias", f"'{faults.cut(token_id)}' is not a token id.")
        bias[int(token_id)] = value
    return bias
