"""The prompt of a completion, the input of an embedding: a text or token ids, or a list of either."""

from __future__ import annotations

from typing import Any, TypeAlias

from gateway.errors import InvalidBody
from gateway.openai import faults
from gateway.openai.sampling import INT32_MAX

Prompt: TypeAlias = str | tuple[int, ...]

MAX_PROMPTS = 2048
_SHAPES = "one of a string, array of strings, array of integers, or array of arrays of integers"


def read_prompts(value: object, field: str) -> tuple[Prompt, ...]:
    """The prompts in `value`, which is that of `field`.

    Raises `InvalidBody` about it. Whether an id is inside the vocabulary is the backend's to say.
    """
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise faults.wrong_type(field, _SHAPES, value)
    if not value:
        raise faults.too_short(field, "array", 1, 0)
    kinds = set(map(type, value))
    if kinds == {int}:
        return (_token_ids(value, field),)
    if len(value) > MAX_PROMPTS:
        raise faults.too_long(field, "array", MAX_PROMPTS, len(value))
    if kinds == {str}:
        return tuple(value)
    if kinds == {list}:
        return tuple(_id_list(ids, field, number) for number, ids in enumerate(value))
    raise _mixed(value, field)


def _id_list(value: list[Any], field: str, number: int) -> tuple[int, ...]:
    if not value:
        raise faults.too_short(f"{field}[{number}]", "array", 1, 0)
    if set(map(type, value)) != {int}:
        raise _mixed(value, field)
    return _token_ids(value, field)


def _token_ids(value: list[int], field: str) -> tuple[int, ...]:
    for token_id in (min(value), max(value)):
        if not 0 <= token_id <= INT32_MAX:
            raise faults.invalid_value(field, f"{faults.cut(str(token_id))} is not a token id.")
    return tuple(value)


def _mixed(value: list[Any], field: str) -> InvalidBody:
    """The first member whose type differs from what the list began with, or that no prompt may hold."""
    first = type(value[0]) if isinstance(value[0], str | int | list) and not isinstance(value[0], bool) else None
    odd = next((member for member in value if type(member) is not first), value[0])
    return faults.wrong_type(field, _SHAPES, odd)
