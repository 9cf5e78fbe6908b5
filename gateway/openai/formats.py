"""What the text of an answer must look like: `response_format`, vLLM's `structured_outputs`, and the old `guided_*`.

Only the form of these fields is judged here; whether a schema, a pattern or a grammar compiles is the backend's to say.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from gateway.openai import faults

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.-]+(?!\n)$")]


class JsonSchema(Struct, frozen=True, kw_only=True):
    """The schema of a `json_schema` format. `schema` is any JSON here, so that a wrong one is blamed on the format."""

    name: Name
    schema: Any
    description: str = ""
    strict: bool = False


class ResponseFormat(Struct, frozen=True, kw_only=True):
    """OpenAI's `response_format`."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StructuredOutputs(Struct, frozen=True, kw_only=True):
    """vLLM's `structured_outputs`: exactly one member may be set."""

    json: str | dict[str, Any] | None = None
    regex: str | None = None
    choice: Annotated[list[str], Meta(min_length=1)] | None = None
    grammar: str | None = None
    json_object: bool = False
    structural_tag: str | dict[str, Any] | None = None


class FormatFields(Struct, frozen=True, kw_only=True):
    """The fields of a body that bind the form of the answer. The `guided_*` ones are vLLM's old names."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], Meta(min_length=1)] | None = None
    guided_grammar: str | None = None


def response_format(wire: ResponseFormat | None) -> dict[str, Any] | None:
    """The format as backends read it, None when any text will do. Raises `InvalidBody` for one that is incomplete."""
    if wire is None or wire.type == "text":
        return None
    if wire.type == "json_object":
        return {"type": "json_object"}
    if wire.json_schema is None:
        raise faults.missing("response_format.json_schema")
    schema = wire.json_schema.schema
    if not isinstance(schema, dict):
        got = faults.noun(schema)
        raise faults.broken_rule(
            "response_format",
            f"Invalid schema for response_format '{wire.json_schema.name}': it is {got}, not an object.",
        )
    described = {"name": wire.json_schema.name, "schema": schema, "strict": wire.json_schema.strict}
    return {"type": "json_schema", "json_schema": described}


def structured_outputs(fields: FormatFields) -> dict[str, Any] | None:
    """The one constraint that is asked for, under vLLM's present name for it; None when there is none."""
    wire = fields.structured_outputs or StructuredOutputs()
    asked = {
        f"structured_outputs.{name}": value
        for name in wire.__struct_fields__
        if (value := getattr(wire, name)) is not None and value is not False
    }
    guided = {f"guided_{name}": getattr(fields, f"guided_{name}") for name in ("json", "regex", "choice", "grammar")}
    asked.update((name, value) for name, value in guided.items() if value is not None)
    if len(asked) > 1:
        param = "structured_outputs" if fields.structured_outputs else next(iter(asked))
        raise faults.combination(param, f"Only one constraint may be set, but got {', '.join(sorted(asked))}.")
    return {
        name.removeprefix("structured_outputs.").removeprefix("guided_"): value for name, value in asked.items()
    } or None
