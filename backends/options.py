"""Option tables (TOML, environment) to Structs, with errors that name the field, the value and what is allowed."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct
from msgspec import inspect as mi

from backends.errors import ConfigError

StructT = TypeVar("StructT", bound=Struct)

SECRET_ENDINGS = ("key", "keys", "secret", "token", "password", "webhook_url")
SHOWN_CHARS = 60
ARRAYS = (list, tuple, set, frozenset)


def convert(table: Mapping[str, object], to: type[StructT], path: str, *, strict: bool = True) -> StructT:
    """Build `to` from a decoded table; `path` is its place in the config, such as `backends.local`, or "".

    Every problem is found and reported at once, one a line, each with its own path. `strict=False` also reads numbers
    and booleans from text, for values that come from the environment. Unknown fields are always refused.
    Raises `ConfigError`.
    """
    found = list(find_problems(table, to, path, strict=strict))
    if found:
        raise ConfigError("\n".join(found))
    return msgspec.convert(table, to, strict=strict)


def find_problems(value: object, to: Any, path: str, *, strict: bool = True) -> Iterator[str]:
    """What keeps a decoded `value` from being a `to`, each as `path: what is wrong; what is allowed`.

    Descends as far as the value and the type have the same shape, then lets msgspec judge what is left.
    """
    found = False
    for problem in _inner_problems(value, to, path, strict):
        found = True
        yield problem
    if not found:
        try:
            msgspec.convert(value, to, strict=strict)
        except (msgspec.ValidationError, ValueError) as error:
            yield _problem(value, to, path, str(error))


def _inner_problems(value: object, to: Any, path: str, strict: bool) -> Iterator[str]:
    shape = _shape_for(value, to)
    if _is_struct(shape) and isinstance(value, Mapping):
        yield from _field_problems(value, shape, path, strict)
    elif get_origin(shape) is dict and isinstance(value, Mapping):
        for key, item in value.items():
            yield from find_problems(item, get_args(shape)[1], _join(path, key), strict=strict)
    elif get_origin(shape) in ARRAYS and isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from find_problems(item, get_args(shape)[0], f"{path}[{at}]", strict=strict)


def _field_problems(table: Mapping[Any, object], to: type[Struct], path: str, strict: bool) -> Iterator[str]:
    hints = get_type_hints(to, include_extras=True)
    fields = {field.encode_name: field for field in msgspec.structs.fields(to)}
    tag_field = to.__struct_config__.tag_field
    for name in table:
        if name not in fields and name != tag_field:
            yield f"{_join(path, name)[:200]}: unknown option; {_known(str(name), list(fields))}"
    for name, field in fields.items():
        here = _join(path, name)
        if name in table:
            yield from find_problems(table[name], hints[field.name], here, strict=strict)
        elif field.required:
            yield f"{here}: missing; allowed: {_describe(hints[field.name])}"


def _is_struct(to: Any) -> bool:
    return isinstance(to, type) and issubclass(to, Struct)


def _shape_for(value: object, to: Any) -> Any:
    """The container type inside `to` that `value` must be meant for, or `to` when there is no single one."""
    if get_origin(to) is Annotated:
        return _shape_for(value, get_args(to)[0])
    if get_origin(to) not in (Union, types.UnionType):
        return to
    arms = [_shape_for(value, arm) for arm in get_args(to)]
    if isinstance(value, Mapping):
        arms = [arm for arm in arms if get_origin(arm) is dict or _is_struct(arm)]
    elif isinstance(value, list | tuple):
        arms = [arm for arm in arms if get_origin(arm) in ARRAYS]
    else:
        return to
    return arms[0] if len(arms) == 1 else to


def _problem(value: object, to: Any, path: str, reason: str) -> str:
    if _is_struct(_shape_for(value, to)) and isinstance(value, Mapping):
        return f"{path}: {reason}" if path else reason  # every field is right: a `__post_init__` refused them together
    shown = show(value, path)
    bounds = [_bounds(arm) for arm in _arms(mi.type_info(to)) if _is_number_for(value, arm)]
    if bounds and all(bounds):
        return f"{path}: {shown} is out of range; allowed: {_one_of(bounds + _describe_other_arms(value, to))}"
    return f"{path}: {shown} does not fit; allowed: {_describe(to)}"


def is_secret(path: str, value: object) -> bool:
    """Whether what stands at `path` must not be shown: by its name, or because it is an address with a password."""
    last = path.rsplit(".", 1)[-1].split("[", 1)[0].lower()
    return last.endswith(SECRET_ENDINGS) or (isinstance(value, str) and _has_password(value))


def _has_password(value: str) -> bool:
    """Of an address; `?password=` is how libpq takes one too."""
    return "://" in value and ("@" in value or "password=" in value)


def show(value: object, path: str) -> str:
    """A value as an error may show it: like TOML, cut short, and never one that is kept secret."""
    if is_secret(path, value):
        return "the value (not shown)"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, str):
        cut = value if len(value) <= SHOWN_CHARS else value[:SHOWN_CHARS] + "…"
        return f'"{cut}"'
    if isinstance(value, list | tuple):
        return f"an array of {len(value)}"
    return str(value)[:SHOWN_CHARS]


def _describe(to: Any) -> str:
    return _one_of([_describe_type(arm) for arm in _arms(mi.type_info(to))])


def _describe_other_arms(value: object, to: Any) -> list[str]:
    return [_describe_type(arm) for arm in _arms(mi.type_info(to)) if not _is_number_for(value, arm)]


def _arms(info: mi.Type) -> list[mi.Type]:
    """The alternatives of a type; None is left out, since an absent field is how a file says None."""
    if isinstance(info, mi.Metadata):
        return _arms(info.type)
    if isinstance(info, mi.UnionType):
        return [arm for part in info.types for arm in _arms(part)]
    return [] if isinstance(info, mi.NoneType) else [info]


def _is_number_for(value: object, info: mi.Type) -> bool:
    if isinstance(value, bool):
        return False
    return (isinstance(info, mi.FloatType) and isinstance(value, int | float)) or (
        isinstance(info, mi.IntType) and isinstance(value, int)
    )


def _describe_type(info: mi.Type) -> str:
    if isinstance(info, mi.IntType | mi.FloatType):
        noun = "a whole number" if isinstance(info, mi.IntType) else "a number"
        return f"{noun} {_bounds(info)}".rstrip()
    if isinstance(info, mi.LiteralType):
        return _one_of([f'"{value}"' for value in info.values])
    if isinstance(info, mi.EnumType):
        return _one_of([f'"{member.value}"' for member in info.cls])
    if isinstance(info, mi.StrType):
        return f"text{_lengths(info)}"
    if isinstance(info, mi.ListType | mi.SetType | mi.FrozenSetType | mi.VarTupleType):
        items = _one_of([_describe_type(arm) for arm in _arms(info.item_type)])
        return f"an array{_lengths(info)} of {items}"
    return _NOUNS.get(type(info), "a value of another kind")


_NOUNS: dict[type[mi.Type], str] = {
    mi.BoolType: "true or false",
    mi.StructType: "a table",
    mi.DictType: "a table",
    mi.AnyType: "any value",
}


def _bounds(info: mi.Type) -> str:
    """`>= 1 and <= 4096`; empty when there are none."""
    assert isinstance(info, mi.IntType | mi.FloatType)
    limits = ((">", info.gt), (">=", info.ge), ("<", info.lt), ("<=", info.le), ("a multiple of", info.multiple_of))
    return " and ".join(f"{sign} {_number(limit)}" for sign, limit in limits if limit is not None)


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _lengths(info: mi.StrType | mi.CollectionType) -> str:
    low, high = info.min_length, info.max_length
    pattern = info.pattern if isinstance(info, mi.StrType) else None
    unit = "characters" if isinstance(info, mi.StrType) else "items"
    parts = [f"at least {low} {unit}"] if low is not None else []
    parts += [f"at most {high} {unit}"] if high is not None else []
    parts += [f"matching {pattern}"] if pattern is not None else []
    return f" ({', '.join(parts)})" if parts else ""


def _one_of(words: list[str]) -> str:
    return " or ".join(words) if len(words) < 3 else f"{', '.join(words[:-1])} or {words[-1]}"


def _known(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"known: {', '.join(known)}" + (f" (did you mean {close[0]}?)" if close else "")


def _join(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)
