"""The tools of a response: flat where a chat's are nested, and of kinds that only OpenAI can run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from gateway.openai import faults
from gateway.openai.decoding import read
from gateway.openai.formats import Name
from gateway.openai.tools import FunctionDefinition, ToolChoice, ToolFields, Tools, translate_tools

Json: TypeAlias = dict[str, Any]

INPUT: Json = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}


class CustomFormat(Struct, frozen=True, kw_only=True):
    """How the text of a custom tool must look. The model is told, and not held to it."""

    type: Literal["text", "grammar"] = "text"
    syntax: Literal["lark", "regex"] | None = None
    definition: str | None = None


class CustomTool(Struct, frozen=True, kw_only=True):
    """A tool that takes a text."""

    name: Name
    description: str = ""
    format: CustomFormat = CustomFormat()


class ResponseToolFields(Struct, frozen=True, kw_only=True):
    """The fields of a response's body about tools."""

    tools: Annotated[list[dict[str, Any]], Meta(max_length=128)] = []
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True


class ResponseTools(Struct, frozen=True, kw_only=True):
    """The tools of a response. `shown` are those that the model has, as the client wrote them.

    `custom` are the names of those that it knows as functions, `dropped` the kinds of those that it does not have.
    """

    tools: Tools
    shown: list[Json]
    custom: frozenset[str]
    dropped: tuple[str, ...]


def translate_response_tools(fields: ResponseToolFields) -> ResponseTools:
    """The tools as backends read them. Raises `InvalidBody`."""
    definitions: list[Json] = []
    shown: list[Json] = []
    custom: set[str] = set()
    dropped: list[str] = []
    for number, tool in enumerate(fields.tools):
        kind = tool.get("type") or "function"
        path = f"tools[{number}]"
        if not isinstance(kind, str):
            raise faults.wrong_type(f"{path}.type", "a string", kind)
        if kind == "function":
            definitions.append(_function(tool, path))
        elif kind == "custom":
            definitions.append(_custom(tool, path))
            custom.add(tool["name"])
        else:
            dropped.append(kind)
            continue
        shown.append(tool)
    chat = {
        "tools": definitions,
        "tool_choice": _choice(fields.tool_choice),
        "parallel_tool_calls": fields.parallel_tool_calls,
    }
    tools = translate_tools(read(chat, ToolFields), chat)
    return ResponseTools(tools=tools, shown=shown, custom=frozenset(custom), dropped=tuple(dropped))


def _function(tool: Json, path: str) -> Json:
    read(tool, FunctionDefinition, path)
    members = ("name", "description", "parameters", "strict")
    function = {member: tool[member] for member in members if tool.get(member) is not None}
    return {"type": "function", "function": function}


def _custom(tool: Json, path: str) -> Json:
    wire = read(tool, CustomTool, path)
    asked = [wire.description, "The input is plain text."]
    if wire.format.type == "grammar":
        for member in ("syntax", "definition"):
            if getattr(wire.format, member) is None:
                raise faults.missing(f"{path}.format.{member}")
        asked[1] = f"The input must follow this grammar ({wire.format.syntax}):\n{wire.format.definition}"
    description = "\n\n".join(filter(None, asked))
    return {"type": "function", "function": {"name": wire.name, "description": description, "parameters": INPUT}}


def _choice(wire: ToolChoice | None) -> ToolChoice | None:
    """The choice as a chat writes it."""
    if not isinstance(wire, dict):
        return wire
    match wire.get("type"):
        case "function" | "custom":
            return {"type": "function", "function": _named(wire, "tool_choice")}
        case "allowed_tools":
            return {"type": "allowed_tools", "allowed_tools": _allowed(wire)}
        case None:
            raise faults.missing("tool_choice.type")
        case other:
            raise faults.unsupported_value("tool_choice.type", str(other))


def _allowed(wire: Json) -> Json:
    """Those that the model does not have are left out, as they are among its tools."""
    mode = wire.get("mode")
    if mode not in ("auto", "required"):
        raise faults.not_one_of("tool_choice.mode", mode, ("auto", "required"))
    tools = wire.get("tools")
    if not isinstance(tools, list):
        raise faults.wrong_type("tool_choice.tools", "an array", tools)
    functions: list[Json] = []
    for number, tool in enumerate(tools):
        path = f"tool_choice.tools[{number}]"
        if not isinstance(tool, dict):
            raise faults.wrong_type(path, "an object", tool)
        if tool.get("type") in ("function", "custom"):
            functions.append({"type": "function", "function": _named(tool, path)})
    return {"mode": mode, "tools": functions}


def _named(wire: Mapping[str, Any], path: str) -> Json:
    name = wire.get("name")
    if name is None:
        raise faults.missing(f"{path}.name")
    if not isinstance(name, str):
        raise faults.wrong_type(f"{path}.name", "a string", name)
    return {"name": name}
