"""Tools that a model may call, and which of them it must: checks of form, and the deprecated `functions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from gateway.openai import faults
from gateway.openai.formats import Name

ToolChoice: TypeAlias = str | dict[str, Any]

_WORDS = ("none", "auto", "required")
_CHOICE_TYPES = ("function", "allowed_tools", "custom")


class FunctionDefinition(Struct, frozen=True, kw_only=True):
    """A function; without `parameters` it takes no arguments."""

    name: Name
    description: str = ""
    parameters: dict[str, Any] = {}
    strict: bool = False


class ToolDefinition(Struct, frozen=True, kw_only=True):
    """A tool; without a type it is a function."""

    type: Literal["function", "custom"] = "function"
    function: FunctionDefinition | None = None
    custom: Any = None


class ToolFields(Struct, frozen=True, kw_only=True):
    """The fields of a chat body about tools. `functions` and `function_call` are their deprecated names."""

    tools: Annotated[list[ToolDefinition], Meta(max_length=128)] = []
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    functions: Annotated[list[FunctionDefinition], Meta(max_length=128)] = []
    function_call: ToolChoice | None = None


class Tools(Struct, frozen=True, kw_only=True):
    """Tools as backends read them: OpenAI's tool objects, and its word or object for the choice among them."""

    definitions: tuple[dict[str, Any], ...] = ()
    choice: ToolChoice | None = None
    is_parallel: bool = True
    are_functions: bool = False  # asked for in the deprecated way, so answered in it

    @property
    def has_named_choice(self) -> bool:
        """Whether the model has to call one certain function."""
        return isinstance(self.choice, dict) and self.choice.get("type") == "function"


def translate_tools(fields: ToolFields, body: Mapping[str, Any]) -> Tools:
    """The tools of a chat; `body` holds them with every member they came with. Raises `InvalidBody`."""
    if not fields.functions and fields.function_call is None:
        names = {_function(tool, f"tools[{number}]").name for number, tool in enumerate(fields.tools)}
        whole = tuple({"type": "function", **tool} for tool in body.get("tools") or ())
        return Tools(
            definitions=whole, choice=_choice(fields.tool_choice, names), is_parallel=fields.parallel_tool_calls
        )
    if fields.tools or fields.tool_choice is not None:
        raise faults.combination("functions", "'functions' and 'function_call' cannot be used with 'tools'.")
    names = {function.name for function in fields.functions}
    whole = tuple({"type": "function", "function": function} for function in body.get("functions") or ())
    return Tools(
        definitions=whole, choice=_function_choice(fields.function_call, names), is_parallel=False, are_functions=True
    )


def _function(tool: ToolDefinition, path: str) -> FunctionDefinition:
    if tool.type == "custom":
        raise faults.unsupported_value(f"{path}.type", tool.type)
    if tool.function is None:
        raise faults.missing(f"{path}.function")
    return tool.function


def _choice(wire: ToolChoice | None, names: set[str]) -> ToolChoice | None:
    """`auto` where tools were given without a choice, None without tools."""
    if not names:
        if wire is None or wire in ("none", "auto"):
            return None
        raise faults.broken_rule("tool_choice", "'tool_choice' is only allowed when 'tools' are specified.")
    if wire is None:
        return "auto"
    if isinstance(wire, str):
        if wire not in _WORDS:
            raise faults.not_one_of("tool_choice", wire, _WORDS)
        return wire
    return _choice_object(wire, names)


def _choice_object(wire: dict[str, Any], names: set[str]) -> dict[str, Any]:
    match wire.get("type"):
        case "function":
            _named(wire.get("function"), "tool_choice", "tool_choice.function", names)
        case "allowed_tools":
            _allowed(wire.get("allowed_tools"), names)
        case "custom":
            raise faults.unsupported_value("tool_choice.type", "custom")
        case None:
            raise faults.missing("tool_choice.type")
        case other:
            raise faults.not_one_of("tool_choice.type", other, _CHOICE_TYPES)
    return wire


def _named(wire: object, param: str, path: str, names: set[str]) -> str:
    """The function that `wire` names; one that was not given is blamed on `param`."""
    if wire is None:
        raise faults.missing(path)
    if not isinstance(wire, dict):
        raise faults.wrong_type(path, "an object", wire)
    name = wire.get("name")
    if name is None:
        raise faults.missing(f"{path}.name")
    if not isinstance(name, str):
        raise faults.wrong_type(f"{path}.name", "a string", name)
    if name not in names:
        raise faults.invalid_value(param, f"no tool is named '{faults.cut(name)}'.")
    return name


def _allowed(wire: object, names: set[str]) -> None:
    path = "tool_choice.allowed_tools"
    if wire is None:
        raise faults.missing(path)
    if not isinstance(wire, dict):
        raise faults.wrong_type(path, "an object", wire)
    if wire.get("mode") not in ("auto", "required"):
        raise faults.not_one_of(f"{path}.mode", wire.get("mode"), ("auto", "required"))
    tools = wire.get("tools")
    if not isinstance(tools, list):
        raise faults.wrong_type(f"{path}.tools", "an array", tools)
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise faults.wrong_type(f"{path}.tools[{number}]", "an object", tool)
        _named(tool.get("function"), "tool_choice", f"{path}.tools[{number}].function", names)


def _function_choice(wire: ToolChoice | None, names: set[str]) -> ToolChoice | None:
    """The deprecated choice (`none`, `auto` or a name) as the present one."""
    if not isinstance(wire, dict):
        if wire not in (None, "none", "auto"):
            raise faults.not_one_of("function_call", wire, ("none", "auto"))
        return (wire or "auto") if names else None
    return {"type": "function", "function": {"name": _named(wire, "function_call", "function_call", names)}}
