"""The OpenAPI document as one page to read: plain HTML and a style sheet, without a script and without another host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

Json: TypeAlias = Mapping[str, Any]

STYLE = Path(__file__).with_suffix(".css")
GROUPS = (("Clients", "/v1/"), ("Operators", "/admin/"), ("Server", "/"))  # title, how its paths begin
BOUNDS = (  # of a schema: its keyword, how it reads
    ("minimum", "from {}"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "to {}"),
    ("minLength", "{} characters or more"),
    ("maxLength", "up to {} characters"),
    ("minItems", "{} or more"),
    ("maxItems", "up to {}"),
    ("maxProperties", "up to {}"),
    ("pattern", "matching {}"),
)


def reference_page(document: Json) -> bytes:
    """The page for an OpenAPI document whose references all go to `components`."""
    return _Page(document).html().encode()


class _Page:
    """One document while it becomes a page."""

    def __init__(self, document: Json) -> None:
        self._info = document["info"]
        self._components: Json = document["components"]
        self._operations = [
            (path, method, operation)
            for path, methods in document["paths"].items()
            for method, operation in methods.items()
        ]

    def html(self) -> str:
        groups = [(title, self._group(begin)) for title, begin in GROUPS]
        schemas = self._components["schemas"]
        title = f"{escape(self._info['title'])} {escape(self._info['version'])}"
        menu = "".join(f"<h2>{name}</h2><ul>{''.join(map(_entry, group))}</ul>" for name, group in groups)
        operations = "".join(f"<h2>{name}</h2>{''.join(map(self._operation, group))}" for name, group in groups)
        shapes = "".join(self._schema(name, schema) for name, schema in schemas.items())
        return (
            f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{STYLE.read_text(encoding='utf-8')}</style></head>"
            f'<body><nav><a href="#top"><b>{title}</b></a>{menu}<h2>Objects</h2><ul>'
            f"{''.join(f'<li>{_link(name)}</li>' for name in schemas)}</ul></nav>"
            f'<main><h1 id="top">{title}</h1><p>{escape(self._info["description"])}</p>'
            '<p class="soft">This page as data: <a href="openapi.json">openapi.json</a>, '
            f'<a href="openapi.yaml">openapi.yaml</a>.</p>{operations}<h2>Objects</h2>{shapes}</main></body></html>\n'
        )

    def _group(self, begin: str) -> list[tuple[str, str, Json]]:
        """The operations whose first matching group this is."""
        earlier = tuple(other for _, other in GROUPS[: [start for _, start in GROUPS].index(begin)])
        return [one for one in self._operations if one[0].startswith(begin) and not one[0].startswith(earlier)]

    def _operation(self, entry: tuple[str, str, Json]) -> str:
        path, method, operation = entry
        notes = [operation["summary"], operation.get("description", "")]
        if operation.get("x-roles"):
            notes.append(f"For keys with the role {' or '.join(operation['x-roles'])}.")
        elif not operation["security"]:
            notes.append("Needs no key.")
        parts = [
            f'<section id="{operation["operationId"]}">{_heading(path, method)}',
            *(f"<p>{_prose(note)}</p>" for note in notes if note),
            _table("Parameters", [self._parameter(parameter) for parameter in operation.get("parameters", ())]),
            _table("Body", self._content(operation.get("requestBody", {}).get("content", {}))),
            _table("Answers", [row for answer in operation["responses"].items() for row in self._answer(*answer)]),
            "</section>",
        ]
        return "".join(parts)

    def _parameter(self, parameter: Json) -> tuple[str, str]:
        required = ", required" if parameter.get("required") else ""
        about = f"{_kind(parameter['schema'])} <span class=soft>in the {parameter['in']}{required}</span>"
        told = f"<br>{_prose(parameter['description'])}" if "description" in parameter else ""
        return _code(parameter["name"]), about + told

    def _content(self, content: Json) -> list[tuple[str, str]]:
        return [(_code(media), _kind(made["schema"])) for media, made in content.items()]

    def _answer(self, status: str, answer: Json) -> Iterable[tuple[str, str]]:
        if "$ref" in answer:
            answer = self._components["responses"][answer["$ref"].rpartition("/")[2]]
            yield _code(status), f"{_prose(answer['description'])} {_kind_of_content(answer)}"
            return
        for media, made in answer["content"].items():
            yield _code(f"{status} {media}"), _kind(made["schema"])

    def _schema(self, name: str, schema: Json) -> str:
        parts = [self._components["schemas"][part["$ref"].rpartition("/")[2]] for part in schema.get("allOf", ())]
        rows = [
            (
                f"{_code(member)}{' <span class=soft>required</span>' if member in part.get('required', ()) else ''}",
                _kind(inner) + _default(inner),
            )
            for part in [schema, *parts]
            for member, inner in part.get("properties", {}).items()
        ]
        told = f"<p>{_prose(schema['description'])}</p>" if "description" in schema else ""
        return f'<section id="{_anchor(name)}"><h3>{escape(name)}</h3>{told}{_table("", rows)}</section>'


def _entry(entry: tuple[str, str, Json]) -> str:
    path, method, operation = entry
    return f'<li><a href="#{operation["operationId"]}">{_method(method)}<span>{escape(path)}</span></a></li>'


def _heading(path: str, method: str) -> str:
    return f'<h3>{_method(method)}<span class="path">{escape(path)}</span></h3>'


def _method(method: str) -> str:
    return f'<span class="method {method}">{method}</span>'


def _table(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Two columns, empty when there is nothing in them."""
    body = "".join(f"<tr><td>{name}</td><td>{told}</td></tr>" for name, told in rows)
    return f"{f'<h4>{title}</h4>' if title else ''}<table>{body}</table>" if body else ""


def _kind(schema: Json) -> str:
    """What a schema allows, in a few words."""
    if "$ref" in schema:
        return _link(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_kind, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(_code(_json(word)) for word in schema["enum"])
    kind = str(schema.get("type", "any JSON"))
    if kind == "array":
        kind = f"array of {_kind(schema['items'])}" if schema.get("items") else "array"
    elif isinstance(schema.get("additionalProperties"), dict):
        kind = f"object of {_kind(schema['additionalProperties'])}"
    bounds = [escape(told.format(schema[word])) for word, told in BOUNDS if word in schema]
    return f"{kind} <span class=soft>{' '.join(bounds)}</span>" if bounds else kind


def _kind_of_content(answer: Json) -> str:
    return "".join(_kind(made["schema"]) for made in answer.get("content", {}).values())


def _default(schema: Json) -> str:
    if schema.get("default") is None or schema["default"] == "":
        return ""
    return f" <span class=soft>default {_code(_json(schema['default']))}</span>"


def _link(name: str) -> str:
    return f'<a href="#{_anchor(name)}">{escape(name)}</a>'


def _anchor(name: str) -> str:
    """Apart from the names of operations, some of which are those of objects."""
    return f"object-{escape(name)}"


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _prose(text: str) -> str:
    """Text whose words in backticks are code."""
    pieces = escape(text).split("`")
    return "".join(f"<code>{piece}</code>" if number % 2 else piece for number, piece in enumerate(pieces))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
