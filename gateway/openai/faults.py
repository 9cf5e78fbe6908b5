"""What can be wrong with a field, in OpenAI's words: one function per code, each makes the `InvalidBody` to raise."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.errors import InvalidBody

SHOWN_LENGTH = 200  # characters of a client's own value that a message may repeat


def missing(path: str) -> InvalidBody:
    """A required field that is absent or null."""
    return InvalidBody(f"Missing required parameter: '{path}'.", param=path, code="missing_required_parameter")


def unknown(path: str) -> InvalidBody:
    """A member that no route of this kind knows; its name is the client's own."""
    shown = cut(path)
    return InvalidBody(f"Unknown parameter: '{shown}'.", param=shown, code="unknown_parameter")


def wrong_type(path: str, expected: str, value: object) -> InvalidBody:
    """`expected` is a noun with its article, such as `an integer`."""
    message = f"Invalid type for '{path}': expected {expected}, but got {noun(value)} instead."
    return InvalidBody(message, param=path, code="invalid_type")


def below(path: str, kind: str, bound: float, value: float, *, exclusive: bool = False) -> InvalidBody:
    """A number under its least value; `kind` is `integer` or `decimal`."""
    message = (
        f"Invalid '{path}': {kind} below minimum value. "
        f"Expected a value {'>' if exclusive else '>='} {_number(bound)}, but got {_number(value)} instead."
    )
    return InvalidBody(message, param=path, code=f"{kind}_below_min_value")


def above(path: str, kind: str, bound: float, value: float) -> InvalidBody:
    """A number over its greatest value; `kind` is `integer` or `decimal`."""
    message = (
        f"Invalid '{path}': {kind} above maximum value. "
        f"Expected a value <= {_number(bound)}, but got {_number(value)} instead."
    )
    return InvalidBody(message, param=path, code=f"{kind}_above_max_value")


def too_short(path: str, kind: str, bound: int, length: int) -> InvalidBody:
    """An array or a string (`kind`) with too little in it."""
    found = f"{_article(kind)} {kind} with length {length}" if length else f"an empty {kind}"
    code = "empty_array" if kind == "array" and length == 0 else f"{kind}_below_min_length"
    fault = f"empty {kind}" if length == 0 else f"{kind} too short"
    message = f"Expected {_article(kind)} {kind} with minimum length {bound}, but got {found} instead."
    return InvalidBody(f"Invalid '{path}': {fault}. {message}", param=path, code=code)


def too_long(path: str, kind: str, bound: int, length: int) -> InvalidBody:
    """An array or a string (`kind`) with too much in it."""
    name = f"{_article(kind)} {kind}"
    message = (
        f"Invalid '{path}': {kind} too long. "
        f"Expected {name} with maximum length {bound}, but got {name} with length {length} instead."
    )
    return InvalidBody(message, param=path, code=f"{kind}_above_max_length")


def too_many_properties(path: str, bound: int, length: int) -> InvalidBody:
    """An object with too many keys."""
    message = (
        f"Invalid '{path}': too many properties. "
        f"Expected an object with at most {bound} properties, but got an object with {length} properties instead."
    )
    return InvalidBody(message, param=path, code="object_above_max_properties")


def property_name_too_long(path: str, bound: int, name: str) -> InvalidBody:
    """A key of an object that is too long."""
    message = (
        f"Invalid property name in '{path}': '{cut(name)}' is too long. "
        f"Expected a property name with maximum length {bound}, but got one with length {len(name)} instead."
    )
    return InvalidBody(message, param=path, code="property_name_above_max_length")


def not_one_of(path: str, value: object, supported: Iterable[str]) -> InvalidBody:
    """A word outside a closed list."""
    message = f"Invalid value: '{cut(str(value))}'. Supported values are: {_listing(supported)}."
    return InvalidBody(message, param=path, code="invalid_value")


def no_match(path: str, pattern: str) -> InvalidBody:
    """A string that does not have the form asked for."""
    message = (
        f"Invalid '{path}': string does not match pattern. Expected a string that matches the pattern '{pattern}'."
    )
    return InvalidBody(message, param=path, code="invalid_value")


def invalid_value(path: str, why: str) -> InvalidBody:
    """A value of the right type that cannot work; `why` is a whole sentence."""
    return InvalidBody(f"Invalid '{path}': {why}", param=path, code="invalid_value")


def combination(path: str, why: str) -> InvalidBody:
    """Fields that exclude each other; `why` is a whole sentence."""
    return InvalidBody(why, param=path, code="invalid_parameter_combination")


def broken_rule(path: str, why: str) -> InvalidBody:
    """A rule among fields for which OpenAI has no code; `why` is a whole sentence."""
    return InvalidBody(why, param=path)


def unsupported(path: str, hint: str = "") -> InvalidBody:
    """A field that nothing here can honour; ignoring it would change the answer."""
    message = f"Unsupported parameter: '{path}' is not supported with this model."
    return InvalidBody(f"{message} {hint}".rstrip(), param=path, code="unsupported_parameter")


def unsupported_value(path: str, value: str) -> InvalidBody:
    """A legal value that nothing here can honour."""
    message = f"Unsupported value: '{path}' does not support '{cut(value)}' with this model."
    return InvalidBody(message, param=path, code="unsupported_value")


def noun(value: object) -> str:
    """The JSON type of a decoded value, with its article."""
    names = {bool: "a boolean", int: "an integer", float: "a decimal", str: "a string", list: "an array"}
    return "null" if value is None else names.get(type(value), "an object")


def cut(text: str) -> str:
    """`text`, short enough to be repeated in a message."""
    return text if len(text) <= SHOWN_LENGTH else f"{text[:SHOWN_LENGTH]}…"


def _article(kind: str) -> str:
    return "an" if kind[0] in "aeiou" else "a"


def _number(value: float) -> str:
    """Decimals that are whole are shown as integers, as OpenAI does."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return cut(str(value))


def _listing(words: Iterable[str]) -> str:
    quoted = [f"'{word}'" for word in words]
    if len(quoted) < 3:
        return " and ".join(quoted)
    return f"{', '.join(quoted[:-1])}, and {quoted[-1]}"
