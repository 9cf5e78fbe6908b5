"""Query strings and bodies of admin calls → Structs. Unlike the OpenAI routes, a name that is not known is refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from msgspec import UNSET, Struct
from msgspec import inspect as mi

from gateway.errors import InvalidBody
from gateway.openai import decoding, faults

T = TypeVar("T", bound=Struct)

_WORDS = {"true": True, "false": False}


def read_body_as(body: bytes, kind: type[T]) -> T:
    """The JSON object in `body`; nothing at all is an empty one. Raises `InvalidBody` naming the first fault."""
    return _read(decoding.decode_object(body) if body.strip() else {}, kind)


def read_query(items: Iterable[tuple[str, str]], kind: type[T] | None) -> T | None:
    """The parameters after `?`, each at most once. Raises `InvalidBody` naming the first fault."""
    values: dict[str, str] = {}
    for name, text in items:
        if name in values:
            raise InvalidBody(f"The parameter '{faults.cut(name)}' is given twice.", param=name[:60])
        values[name] = text
    if kind is None:
        _refuse_unknown(values, ())
        return None
    kinds = {field.encode_name: field.type for field in mi.type_info(kind).fields}  # type: ignore[attr-defined]
    return _read({name: _plain(text, kinds.get(name)) for name, text in values.items()}, kind)


def check_text(text: str, param: str) -> None:
    """Raises `InvalidBody` for what no database takes as text."""
    if "\0" in text:
        raise faults.invalid_value(param, "it contains a NUL character.")


def _read(values: Mapping[str, Any], kind: type[T]) -> T:
    _refuse_unknown(values, kind.__struct_encode_fields__)
    for name, value in values.items():
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str):
                check_text(text, name)
    made = decoding.read(values, kind)
    # What is read leniently has lost its nulls, and in a change null says something else than absence.
    nulls = [name for name, value in values.items() if value is None and getattr(made, name) is UNSET]
    for name in nulls:
        raise faults.wrong_type(name, "a value", None)
    return made


def _refuse_unknown(values: Mapping[str, Any], known: Iterable[str]) -> None:
    for name in values:
        if name not in known:
            allowed = f" Supported parameters are: {', '.join(known)}." if known else ""
            raise InvalidBody(
                f"Unknown parameter: '{faults.cut(name)}'.{allowed}", param=name[:60], code="unknown_parameter"
            )


def _plain(text: str, kind: mi.Type | None) -> Any:
    """A parameter's text as the JSON value that its field wants; the text itself where it is none."""
    if isinstance(kind, mi.UnionType):
        kind = next(option for option in kind.types if not isinstance(option, mi.NoneType))
    match kind:
        case mi.IntType() if re.fullmatch(r"-?[0-9]{1,18}", text, re.ASCII):
            return int(text)
        case mi.BoolType():
            return _WORDS.get(text, text)
        case _:
            return text
