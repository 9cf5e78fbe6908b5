"""The tools of a request: without the wrapping of a chat's, and of kinds that only Anthropic's models know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from gateway.openai import faults
from gateway.openai.decoding import read
from gateway.openai.tools import ToolChoice, Tools

Json: TypeAlias = dict[str, Any]
ToolName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_-]+(?!\n)$")]

_WORDS: dict[str, ToolChoice] = {"auto": "auto", "any": "required", "none": "none"}


class ClientTool(Struct, frozen=True, kw_only=True):
    """A tool of the client's own."""

    name: ToolName
    description: str = ""
    input_schema: Json
    strict: bool = False


class Choice(Struct, frozen=True, kw_only=True):
    """Which of the tools the model must use: any or none, or the one of this `name`."""

    type: Literal["auto", "any", "none", "tool"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class MessageTools(Struct, frozen=True, kw_only=True):
    """The tools as backends read them; `dropped` are the kinds of those that only Anthropic's models know."""

    tools: Tools
    dropped: tuple[str, ...] = ()


def translate_tools(wire: list[Json], choice: Choice | None) -> MessageTools:
    """The tools of a request, and the choice among them. Raises `InvalidBody`."""
    dropped: dict[str, None] = {}
    definitions = tuple(_definitions(wire, dropped))
    names = {definition["function"]["name"] for definition in definitions}
    tools = Tools(
        definitions=definitions,
        choice=_choice(choice, names),
        is_parallel=choice is None or not choice.disable_parallel_tool_use,
    )
    return MessageTools(tools=tools, dropped=tuple(dropped))


def _definitions(wire: list[Json], dropped: dict[str, None]) -> Iterator[Json]:
    for number, tool in enumerate(wire):
        path = f"tools[{number}]"
        kind = tool.get("type") or "custom"
        if not isinstance(kind, str):
            raise faults.wrong_type(f"{path}.type", "a string", kind)
        if kind != "custom":
            dropped[kind] = None
            continue
        own = read(tool, ClientTool, path)
        function = {"name": own.name, "parameters": own.input_schema}
        function |= {member: tool[member] for member in ("description", "strict") if tool.get(member) is not None}
        yield {"type": "function", "function": function}


def _choice(wire: Choice | None, names: set[str]) -> ToolChoice | None:
    """`auto` where tools were given without a choice, None without tools, of which then none can be demanded."""
    if not names:
        if wire is not None and wire.type in ("any", "tool"):
            raise faults.invalid_value("tool_choice", "there are no tools of a kind that is known here.")
        return None
    if wire is None:
        return "auto"
    if wire.type != "tool":
        return _WORDS[wire.type]
    if wire.name is None:
        raise faults.missing("tool_choice.name")
    if wire.name not in names:
        raise faults.invalid_value("tool_choice.name", f"no tool is named '{faults.cut(wire.name)}'.")
    return {"type": "function", "function": {"name": wire.name}}
