"""Cuts OpenAI's published document down to the routes that Laneway serves: `trim.py openapi.yaml COMMIT > openai.yaml`.

Kept are paths, schemas and bounds; left out are prose, examples and vendor extensions, which no test reads.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import yaml

Json: TypeAlias = Any

OPERATIONS = {
    "/chat/completions": ("post",),
    "/completions": ("post",),
    "/embeddings": ("post",),
    "/models": ("get",),
    "/models/{model}": ("get", "delete"),
    "/responses": ("post",),
    "/responses/{response_id}": ("get", "delete"),
    "/responses/{response_id}/cancel": ("post",),
    "/responses/{response_id}/input_items": ("get",),
    "/responses/input_tokens": ("post",),
    "/files": ("get", "post"),
    "/files/{file_id}": ("get", "delete"),
    "/files/{file_id}/content": ("get",),
    "/batches": ("get", "post"),
    "/batches/{batch_id}": ("get",),
    "/batches/{batch_id}/cancel": ("post",),
}
PROSE = {"description", "summary", "title", "example", "examples", "externalDocs", "tags"}
NAMED = {"properties", "schemas", "paths", "content", "responses", "patternProperties", "$defs", "mapping"}
HEAD = """\
# OpenAI's API document, cut down to the routes that Laneway serves, without prose and examples.
# Source: https://github.com/openai/openai-openapi, openapi.yaml at commit {commit}.
# Copyright (c) OpenAI (https://openai.com), under the MIT License: openai.LICENSE, beside this file.
# Made by openapi/trim.py; not edited by hand.
"""


def main() -> None:
    """Read the whole document, and write the trimmed one to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("document", type=Path, help="the whole document, YAML")
    parser.add_argument("commit", help="the commit that it is from")
    arguments = parser.parse_args()
    whole = yaml.load(arguments.document.read_bytes(), Loader=yaml.CSafeLoader)
    sys.stdout.write(HEAD.format(commit=arguments.commit))
    yaml.dump(trimmed(whole), sys.stdout, Dumper=Plain, sort_keys=False, width=120, allow_unicode=True)


def trimmed(whole: Json) -> Json:
    """The part of the document that `OPERATIONS` need. Raises `KeyError` for an operation that it lacks."""
    paths = {path: {method: whole["paths"][path][method] for method in methods} for path, methods in OPERATIONS.items()}
    paths = bare(paths, is_names=True)
    components: dict[str, dict[str, Json]] = {}
    waiting = [*references(paths)]
    while waiting:
        kind, name = waiting.pop().removeprefix("#/components/").split("/")
        if name not in components.setdefault(kind, {}):
            components[kind][name] = bare(whole["components"][kind][name])
            waiting += references(components[kind][name])
    return {
        "openapi": whole["openapi"],
        "info": {name: whole["info"][name] for name in ("title", "version", "license")},
        "paths": paths,
        "components": {kind: dict(sorted(named.items())) for kind, named in sorted(components.items())},
    }


def bare(value: Json, *, is_names: bool = False) -> Json:
    """`value` without prose. The keys of an object of names (`is_names`), such as `properties`, are all kept."""
    if isinstance(value, list):
        return [bare(member) for member in value]
    if not isinstance(value, dict):
        return value
    return {
        name: bare(member, is_names=name in NAMED and not is_names)
        for name, member in value.items()
        if is_names or not (name in PROSE or name.startswith("x-"))
    }


def references(value: Json) -> Iterator[str]:
    """Every `$ref` in `value`."""
    if isinstance(value, list):
        for member in value:
            yield from references(member)
    elif isinstance(value, dict):
        for name, member in value.items():
            if name == "$ref" and isinstance(member, str):
                yield member
            else:
                yield from references(member)


class Plain(yaml.CSafeDumper):
    """Writes without anchors: what is there twice is written twice."""

    def ignore_aliases(self, data: object) -> bool:
        """Always."""
        return True


if __name__ == "__main__":
    main()
