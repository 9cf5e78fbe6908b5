"""OpenAI's document, as `openapi/openai.yaml` has it: its schemas, and how the Structs of a body differ from one."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import yaml
from jsonschema import Draft202012Validator
from msgspec import Struct
from msgspec import inspect as mi

Json: TypeAlias = dict[str, Any]
Kinds: TypeAlias = Mapping[str, Mapping[str, type[Struct]]]  # a path → tag → what code reads such objects with

FILE = Path(__file__).parents[2] / "openapi" / "openai.yaml"
BOUNDS = {
    "string": (("minLength", "min_length"), ("maxLength", "max_length"), ("pattern", "pattern")),
    "number": (("minimum", "ge"), ("maximum", "le")),
    "array": (("minItems", "min_length"), ("maxItems", "max_length")),
}
LOWEST = {"minLength", "minimum", "minItems"}  # of several alternatives the lowest of these counts, else the highest


@functools.cache
def document() -> Json:
    """The whole document."""
    loaded: Json = _with_nulls(yaml.load(FILE.read_bytes(), Loader=yaml.CSafeLoader))
    return loaded


def _with_nulls(value: Any) -> Any:
    """The document still says `nullable` here and there, which its version of OpenAPI does not know any more."""
    if isinstance(value, list):
        return [_with_nulls(member) for member in value]
    if not isinstance(value, dict):
        return value
    plain = {name: _with_nulls(member) for name, member in value.items() if name != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if value.get("nullable") is True else plain


def schema(name: str) -> Json:
    """A named schema."""
    found: Json = document()["components"]["schemas"][name]
    return found


def request_schema(path: str) -> Json:
    """The schema of the JSON body of `POST path`."""
    found: Json = document()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return found


def answer_schema(path: str, method: str, media_type: str = "application/json") -> Json:
    """The schema of a successful answer, or of one event of it."""
    responses = document()["paths"][path][method]["responses"]
    found: Json = responses["200"]["content"][media_type]["schema"]
    return found


def faults(value: object, wanted: Json) -> list[str]:
    """Where `value` breaks the schema `wanted`; empty when it holds."""
    validator = Draft202012Validator({**wanted, "components": document()["components"]})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def additions(value: object, wanted: Json, path: str = "$") -> set[str]:
    """Places of members of `value` that `wanted` does not name, where it names any."""
    options = alternatives(wanted)
    if isinstance(value, list):
        items = {"anyOf": [option["items"] for option in options if "items" in option]}
        return {place for member in value for place in additions(member, items, f"{path}[]")}
    objects = [option for option in options if "properties" in option]
    if not isinstance(value, dict) or not objects:
        return set()
    found: set[str] = set()
    for name, member in value.items():
        known = [option["properties"][name] for option in objects if name in option["properties"]]
        found |= additions(member, {"anyOf": known}, f"{path}.{name}") if known else {f"{path}.{name}"}
    return found


def places(found: Iterable[str]) -> set[str]:
    """Where the faults are, without the numbers of array members."""
    return {re.sub(r"\[\d+\]", "[]", fault.partition(":")[0]) for fault in found}


def alternatives(wanted: Json) -> list[Json]:
    """`wanted` without references and combinations: one schema for each thing that may stand there, null left out."""
    if "$ref" in wanted:
        target = schema(wanted["$ref"].rpartition("/")[2])
        return alternatives(_merged(target, {name: value for name, value in wanted.items() if name != "$ref"}))
    for word in ("anyOf", "oneOf"):
        if word in wanted:
            rest = {name: value for name, value in wanted.items() if name not in (word, "discriminator")}
            return [made for option in wanted[word] for made in alternatives(_merged(option, rest))]
    if "allOf" in wanted:
        made: list[Json] = [{name: value for name, value in wanted.items() if name != "allOf"}]
        for part in wanted["allOf"]:
            made = [_merged(one, other) for one in made for other in alternatives(part)]
        return made
    if isinstance(wanted.get("type"), list):
        return [made for kind in wanted["type"] for made in alternatives({**wanted, "type": kind})]
    return [] if wanted.get("type") == "null" else [wanted]


def _merged(one: Json, other: Json) -> Json:
    """A schema that asks for both."""
    both = {**one, **other}
    if "properties" in one and "properties" in other:
        both["properties"] = {**one["properties"], **other["properties"]}
    if "required" in one and "required" in other:
        both["required"] = [*one["required"], *other["required"]]
    return both


class Comparison:
    """Walks a schema and our Structs side by side. `differences` are `path: what differs`, sorted.

    A path has `[]` for the members of an array, and `<tag>` for the objects of one type or role.
    """

    def __init__(self, wanted: Json, groups: Iterable[type[Struct]], read_by_code: Kinds) -> None:
        self._read_by_code = read_by_code
        self._found: set[str] = set()
        self.paths: set[str] = set()
        self._objects(alternatives(wanted), [mi.type_info(group) for group in groups], "")
        self.differences = sorted(self._found)

    def _note(self, path: str, what: str) -> None:
        self._found.add(f"{path}: {what}")

    def _value(self, wanted: Json, ours: list[mi.Type], path: str) -> None:
        self.paths.add(path)
        options = alternatives(wanted)
        kinds = list(_kinds(ours))
        if path in self._read_by_code:
            self._objects(options, [], path)
            return
        if any(isinstance(kind, mi.AnyType) for kind in kinds):
            self._note(path, "free")
            return
        by_type: dict[str, list[Json]] = {}
        for option in options:
            by_type.setdefault(_type(option), []).append(option)
        for name in by_type:
            if not any(name in _types(kind) for kind in kinds):
                self._note(path, f"no {name}")
        for name in sorted({_types(kind)[0] for kind in kinds} - set(by_type)):
            self._note(path, f"also {name}")
        for name, schemas in by_type.items():
            same = [kind for kind in kinds if name in _types(kind)]
            if not same:
                continue
            if name == "object":
                self._objects(schemas, same, path)
            elif name == "array":
                self._bounds("array", schemas, same, path)
                items = [schema.get("items", {}) for schema in schemas]
                inner = [kind.item_type for kind in same if isinstance(kind, mi.ListType)]
                self._value({"anyOf": items}, inner, f"{path}[]")
            elif name == "string":
                self._strings(schemas, same, path)
            elif name in ("integer", "number"):
                self._bounds("number", schemas, same, path)

    def _objects(self, schemas: list[Json], ours: list[mi.Type], path: str) -> None:
        if any(isinstance(kind, mi.DictType) for kind in ours):
            if any("properties" in schema for schema in schemas):
                self._note(path, "free")
            return
        for wanted in schemas:
            for tag in _tags(wanted):
                where = f"{path}<{tag}>" if tag and len(schemas) > 1 else path
                structs = self._structs(path, tag, ours)
                if structs:
                    self._members(wanted, structs, where)
                else:
                    self._note(where, "unknown")

    def _structs(self, path: str, tag: str, ours: list[mi.Type]) -> list[mi.StructType]:
        """What reads objects with `tag`."""
        named = self._read_by_code.get(path)
        kinds = ours if named is None else [mi.type_info(named[tag])] if tag in named else []
        return [kind for kind in kinds if isinstance(kind, mi.StructType) and _fits(kind, tag)]

    def _members(self, wanted: Json, structs: list[mi.StructType], path: str) -> None:
        prefix = f"{path}." if path else ""
        fields: dict[str, list[mi.Field]] = {}
        for struct in structs:
            for field in struct.fields:
                fields.setdefault(field.encode_name, []).append(field)
        required = set(wanted.get("required", ()))
        for name, inner in wanted.get("properties", {}).items():
            self.paths.add(prefix + name)
            if name == _tag_name(wanted) and path.endswith(("]", ">")):
                continue
            if name in fields:
                self._value(inner, [field.type for field in fields[name]], prefix + name)
                if name in required and not any(field.required for field in fields[name]):
                    self._note(prefix + name, "may be absent")
            else:
                self._note(prefix + name, "unknown")
        for name, known in fields.items():
            if any(field.required for field in known) and name not in required:
                self._note(prefix + name, "required")

    def _strings(self, schemas: list[Json], ours: list[mi.Type], path: str) -> None:
        theirs = (
            None
            if any(_words(schema) is None for schema in schemas)
            else {word for schema in schemas for word in _words(schema) or ()}
        )
        known = (
            None
            if any(isinstance(kind, mi.StrType) for kind in ours)
            else {str(word) for kind in ours if isinstance(kind, mi.LiteralType) for word in kind.values}
        )
        if theirs is not None and known is not None:
            for word in sorted(theirs - known):
                self._note(path, f"no '{word}'")
            for word in sorted(known - theirs):
                self._note(path, f"also '{word}'")
        elif theirs is not None:
            self._note(path, "any text")
        elif known is not None:
            self._note(path, "fewer texts")
        else:
            self._bounds("string", schemas, ours, path)

    def _bounds(self, kind: str, schemas: list[Json], ours: list[mi.Type], path: str) -> None:
        for word, attribute in BOUNDS[kind]:
            widest = min if word in LOWEST else max
            theirs = [schema.get(word) for schema in schemas]
            known = [getattr(kind, attribute, None) for kind in ours]
            asked = None if None in theirs else widest(value for value in theirs if value is not None)
            held = None if None in known else widest(value for value in known if value is not None)
            if asked != held:
                self._note(path, f"{word} {_shown(held)} for {_shown(asked)}")


def _shown(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _kinds(types: Iterable[mi.Type]) -> Iterator[mi.Type]:
    for kind in types:
        if isinstance(kind, mi.UnionType):
            yield from _kinds(kind.types)
        elif not isinstance(kind, mi.NoneType):
            yield kind


def _types(kind: mi.Type) -> tuple[str, ...]:
    """JSON types that a type of ours takes."""
    match kind:
        case mi.StrType() | mi.LiteralType():
            return ("string",)
        case mi.BoolType():
            return ("boolean",)
        case mi.IntType():
            return ("integer",)
        case mi.FloatType():
            return ("number", "integer")
        case mi.ListType():
            return ("array",)
    return ("object",)


def _type(wanted: Json) -> str:
    if "type" in wanted:
        return str(wanted["type"])
    return "string" if _words(wanted) is not None else "object"


def _words(wanted: Json) -> list[str] | None:
    """The closed list of a string, None for any text."""
    if "const" in wanted:
        return [str(wanted["const"])]
    return [str(word) for word in wanted["enum"] if word is not None] if "enum" in wanted else None


def _tag_name(wanted: Json) -> str | None:
    """The member that tells an object from others in its place: its type, else its role."""
    for name in ("type", "role"):
        if any(_words(option) for option in alternatives(wanted.get("properties", {}).get(name, {}))):
            return name
    return None


def _tags(wanted: Json) -> list[str]:
    """What an object may say of its kind; one empty word when it says nothing."""
    name = _tag_name(wanted)
    if name is None:
        return [""]
    return [word for option in alternatives(wanted["properties"][name]) for word in _words(option) or ()]


def _fits(kind: mi.StructType, tag: str) -> bool:
    """Whether objects with `tag` are read with this Struct."""
    return kind.tag_field is None or not tag or kind.tag == tag
