"""JSON that any client can read: what a backend made, cleaned of what JSON cannot carry."""

from __future__ import annotations

import math

import msgspec

LEAST_LOGPROB = -9999.0  # stands for minus infinity, as in vLLM

_ENCODER = msgspec.json.Encoder()


def to_json(value: object) -> bytes:
    """`value` as JSON. Lone surrogates in its strings become U+FFFD."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return _ENCODER.encode(_cleaned(msgspec.to_builtins(value)))


def clean(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def finite(logprob: float | None) -> float:
    """A log-probability that JSON can carry; what is infinite, not a number or unknown becomes the least one."""
    if logprob is None or not math.isfinite(logprob):
        return LEAST_LOGPROB
    return max(logprob, LEAST_LOGPROB)


def _cleaned(value: object) -> object:
    match value:
        case str():
            return clean(value)
        case dict():
            return {_cleaned(key): _cleaned(member) for key, member in value.items()}
        case list() | tuple():
            return [_cleaned(member) for member in value]
    return value
