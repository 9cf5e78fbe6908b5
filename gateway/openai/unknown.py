"""Finds the members of a body that no wire Struct knows, also inside messages, tools and formats."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec import inspect as mi

from gateway.openai import faults

Finder: TypeAlias = Callable[[Any, str], Iterator[str]]  # (decoded value, its path) → paths that nothing knows


def refuse_unknown(body: Mapping[str, Any], groups: tuple[type[Struct], ...]) -> None:
    """Raise `InvalidBody` for a member of `body` that none of `groups` knows: at the top first, then inside.

    Values of a wrong type are passed over: they are told when they are read.
    """
    members = _members_of(groups)
    for name in body:
        if name not in members:
            raise faults.unknown(name)
    for name, value in body.items():
        for path in members[name](value, name):
            raise faults.unknown(path)


@functools.cache
def _members_of(groups: tuple[type[Struct], ...]) -> dict[str, Finder]:
    """Every member with what looks inside it. The groups are few and fixed."""
    members: dict[str, Finder] = {}
    for group in groups:
        info = mi.type_info(group)
        assert isinstance(info, mi.StructType)
        members.update((field.encode_name, _finder(field.type)) for field in info.fields)
    return members


def _finder(kind: mi.Type) -> Finder:
    match kind:
        case mi.ListType():
            return functools.partial(_in_array, _finder(kind.item_type))
        case mi.StructType():
            members = {field.encode_name: _finder(field.type) for field in kind.fields}
            return functools.partial(_in_object, members, kind.tag_field, kind.tag)
        case mi.UnionType():
            return functools.partial(_in_any, [_finder(option) for option in kind.types])
    return _nothing


def _nothing(value: Any, path: str) -> Iterator[str]:
    """Inside of what is free: plain values, and objects whose names are the client's own."""
    return iter(())


def _in_array(item: Finder, value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for position, member in enumerate(value):
            yield from item(member, f"{path}[{position}]")


def _in_object(members: dict[str, Finder], tag_field: str | None, tag: object, value: Any, path: str) -> Iterator[str]:
    """A Struct that goes by a tag looks only at objects with that tag."""
    if not isinstance(value, dict) or (tag_field is not None and value.get(tag_field) != tag):
        return
    for name, member in value.items():
        if name in members:
            yield from members[name](member, f"{path}.{name}")
        elif name != tag_field:
            yield f"{path}.{name}"


def _in_any(options: list[Finder], value: Any, path: str) -> Iterator[str]:
    """At most one of the options is of the value's kind."""
    for option in options:
        yield from option(value, path)
