"""Bytes of a body → a JSON object → a wire Struct. The Structs say what is allowed; this says what is wrong.

msgspec converts a good body at the speed of C. What it refuses is read once more by the readers below, made from the
same Struct: they accept what OpenAI accepts and msgspec does not (`1.0` for an integer, null for an optional member),
and otherwise name the first fault in OpenAI's words.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from msgspec import inspect as mi

from gateway.errors import InvalidBody
from gateway.openai import faults

T = TypeVar("T", bound=Struct)
Reader: TypeAlias = Callable[[Any, str], Any]  # (decoded value, its path) → checked value, or raises InvalidBody

_BOM = b"\xef\xbb\xbf"
_DECODER = msgspec.json.Decoder()


def decode_object(body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. A byte order mark is dropped; of duplicate keys the last wins.

    Raises `InvalidBody` for anything else: broken JSON, invalid UTF-8, a lone surrogate, nesting too deep to read, a
    number out of range, or JSON that is not an object.
    """
    try:
        value = _DECODER.decode(body.removeprefix(_BOM))
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _unreadable(str(error)) from None
    except RecursionError:
        raise _unreadable("it is nested too deeply") from None
    if not isinstance(value, dict):
        raise _unreadable(f"expected an object, but got {faults.noun(value)}")
    return value


def decode_request(body: bytes, *required: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The object of a request to a model: as it came, and without its nulls, which mean the same as absence.

    Raises `InvalidBody` as `decode_object` does, when no model is named, and when one of `required` is absent.
    """
    whole = decode_object(body)
    present = {name: value for name, value in whole.items() if value is not None}
    if "model" not in present:
        raise InvalidBody("you must provide a model parameter")
    for name in required:
        if name not in present:
            raise faults.missing(name)
    return whole, present


def read(values: Mapping[str, Any], kind: type[T], path: str = "") -> T:
    """`values` as a `kind`. Unknown members are passed over, null is the same as absent. `path` is where they stand.

    Raises `InvalidBody` with the path of the first fault: required members first, then in the order of the Struct.
    """
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError:
        value: T = _struct_reader(kind)(values, path)
        return value


def names_of(*kinds: type[Struct]) -> frozenset[str]:
    """The members that these Structs know, in wire spelling."""
    return frozenset(name for kind in kinds for name in kind.__struct_encode_fields__)


def _unreadable(reason: str) -> InvalidBody:
    return InvalidBody(
        "We could not parse the JSON body of your request. "
        f"(HINT: the body must be one JSON object in UTF-8; {faults.cut(reason)}.)"
    )


@functools.cache
def _struct_reader(kind: type[Struct]) -> Reader:
    """A reader for one Struct class. Made at the first fault, then kept: the classes are few and fixed."""
    info = mi.type_info(kind)
    assert isinstance(info, mi.StructType)
    return _struct(info)


def _reader(kind: mi.Type) -> Reader:
    match kind:
        case mi.AnyType():
            return lambda value, path: value
        case mi.BoolType():
            return _boolean
        case mi.IntType():
            return functools.partial(_integer, kind)
        case mi.FloatType():
            return functools.partial(_decimal, kind)
        case mi.StrType():
            return functools.partial(_string, kind)
        case mi.LiteralType():
            return functools.partial(_word, [str(word) for word in kind.values])
        case mi.ListType():
            return functools.partial(_array, kind, _reader(kind.item_type))
        case mi.DictType():
            return functools.partial(_map, kind, _reader(kind.value_type))
        case mi.StructType():
            return _struct(kind)
        case mi.UnionType():
            return _union(kind)
    raise TypeError(f"a wire Struct uses {kind}, for which there is no reader")


def _boolean(value: Any, path: str) -> bool:
    if isinstance(value, bool):
        return value
    raise faults.wrong_type(path, "a boolean", value)


def _integer(kind: mi.IntType, value: Any, path: str) -> int:
    """Takes a decimal without a fraction (`20.0`) too, which clients in languages without integers send."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise faults.wrong_type(path, "an integer", value)
    if isinstance(value, float):
        if not value.is_integer():
            raise faults.wrong_type(path, "an integer", value)
        value = int(value)
    if kind.ge is not None and value < kind.ge:
        raise faults.below(path, "integer", kind.ge, value)
    if kind.le is not None and value > kind.le:
        raise faults.above(path, "integer", kind.le, value)
    return int(value)


def _decimal(kind: mi.FloatType, value: Any, path: str) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, float) and math.isnan(value))
    ):
        raise faults.wrong_type(path, "a decimal", value)
    if kind.ge is not None and value < kind.ge:
        raise faults.below(path, "decimal", kind.ge, value)
    if kind.gt is not None and value <= kind.gt:
        raise faults.below(path, "decimal", kind.gt, value, exclusive=True)
    if kind.le is not None and value > kind.le:
        raise faults.above(path, "decimal", kind.le, value)
    return float(value)


def _string(kind: mi.StrType, value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise faults.wrong_type(path, "a string", value)
    if kind.min_length is not None and len(value) < kind.min_length:
        raise faults.too_short(path, "string", kind.min_length, len(value))
    if kind.max_length is not None and len(value) > kind.max_length:
        raise faults.too_long(path, "string", kind.max_length, len(value))
    if kind.pattern is not None and not re.search(kind.pattern, value):
        raise faults.no_match(path, kind.pattern)
    return value


def _word(words: Iterable[str], value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise faults.wrong_type(path, "a string", value)
    if value not in words:
        raise faults.not_one_of(path, value, words)
    return value


def _array(kind: mi.ListType, item: Reader, value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise faults.wrong_type(path, "an array", value)
    if kind.min_length is not None and len(value) < kind.min_length:
        raise faults.too_short(path, "array", kind.min_length, len(value))
    if kind.max_length is not None and len(value) > kind.max_length:
        raise faults.too_long(path, "array", kind.max_length, len(value))
    return [item(member, f"{path}[{position}]") for position, member in enumerate(value)]


def _map(kind: mi.DictType, item: Reader, value: Any, path: str) -> dict[str, Any]:
    """Keys are the client's own words, so a fault inside is reported at the map."""
    if not isinstance(value, dict):
        raise faults.wrong_type(path, "an object", value)
    if kind.max_length is not None and len(value) > kind.max_length:
        raise faults.too_many_properties(path, kind.max_length, len(value))
    longest = kind.key_type.max_length if isinstance(kind.key_type, mi.StrType) else None
    for name in value:
        if longest is not None and len(name) > longest:
            raise faults.property_name_too_long(path, longest, name)
    return {name: item(member, path) for name, member in value.items()}


def _struct(kind: mi.StructType) -> Reader:
    members = [(field.encode_name, field.required, _reader(field.type)) for field in kind.fields]
    required = [name for name, is_required, _ in members if is_required]

    def read_struct(value: Any, path: str) -> Struct:
        if not isinstance(value, dict):
            raise faults.wrong_type(path, "an object", value)
        prefix = f"{path}." if path else ""
        for name in required:
            if value.get(name) is None:
                raise faults.missing(prefix + name)
        found = {name: read(value[name], prefix + name) for name, _, read in members if value.get(name) is not None}
        result: Struct = kind.cls(**found)
        return result

    return read_struct


def _union(kind: mi.UnionType) -> Reader:
    """A union is told apart by JSON type; Structs in it by their tag. Null in it only means that it is optional."""
    options = [option for option in kind.types if not isinstance(option, mi.NoneType)]
    if len(options) == 1:
        return _reader(options[0])
    structs = [option for option in options if isinstance(option, mi.StructType)]
    if len(structs) == len(options):
        return _tagged(structs)
    choices = [(_json_type(option), _reader(option)) for option in options]
    expected = _expected(kind)

    def read_union(value: Any, path: str) -> Any:
        for json_type, read in choices:
            if isinstance(value, json_type):
                return read(value, path)
        raise faults.wrong_type(path, expected, value)

    return read_union


def _tagged(structs: list[mi.StructType]) -> Reader:
    field = structs[0].tag_field
    assert field is not None
    readers = {str(option.tag): _struct(option) for option in structs}

    def read_tagged(value: Any, path: str) -> Any:
        if not isinstance(value, dict):
            raise faults.wrong_type(path, "an object", value)
        tag = value.get(field)
        if tag is None:
            raise faults.missing(f"{path}.{field}")
        return readers[_word(readers, tag, f"{path}.{field}")](value, path)

    return read_tagged


def _json_type(kind: mi.Type) -> type:
    match kind:
        case mi.StrType() | mi.LiteralType():
            return str
        case mi.ListType():
            return list
        case mi.DictType() | mi.StructType():
            return dict
    raise TypeError(f"a union of a wire Struct holds {kind}, which has no JSON type of its own")


def _expected(kind: mi.UnionType) -> str:
    """Such as `one of a string or array of objects`."""
    names = [_plain(option) for option in kind.types if not isinstance(option, mi.NoneType)]
    names.sort(key=lambda name: name.startswith("array"))
    return f"one of a {' or '.join(names)}"


def _plain(kind: mi.Type) -> str:
    match kind:
        case mi.StrType() | mi.LiteralType():
            return "string"
        case mi.ListType():
            items = kind.item_type
            return f"array of {_plain(items.types[0] if isinstance(items, mi.UnionType) else items)}s"
        case _:
            return "object"
