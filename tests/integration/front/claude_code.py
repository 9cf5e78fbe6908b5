"""Requests in the shape that Claude Code sends, made for these tests: everything at once, and its small ones."""

from __future__ import annotations

from typing import Any

HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27",
    "anthropic-dangerous-direct-browser-access": "true",
    "user-agent": "claude-cli/2.1.100 (external, cli)",
    "x-app": "cli",
    "x-stainless-lang": "js",
    "x-stainless-retry-count": "0",
    "x-stainless-timeout": "600",
}
EPHEMERAL = {"type": "ephemeral"}
BILL = "x-anthropic-billing-header: cc_version=2.1.100.7b4; cc_entrypoint=cli; cch={count:05x};"
NAMES = ("Bash", "Edit", "Glob", "Grep", "Read", "Task", "TodoWrite", "WebFetch", "Write")


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def tool(name: str) -> dict[str, Any]:
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"what": {"type": "string", "description": "What to do."}},
        "required": ["what"],
        "additionalProperties": False,
    }
    return {"name": name, "description": f"{name} does its work.", "input_schema": schema}


def turn(count: int = 1, **members: Any) -> dict[str, Any]:
    """A turn in the middle of the work: a history of tools, all its tools, and fields of its own."""
    return {
        "model": "scripted",
        "max_tokens": 32000,
        "stream": True,
        "system": [
            text(BILL.format(count=count)),
            text("You are a coding agent.", cache_control=EPHEMERAL),
            text("Work in /src.", cache_control=EPHEMERAL),
        ],
        "messages": [
            {
                "role": "user",
                "content": [
                    text("<system-reminder>\nToday is Tuesday.\n</system-reminder>\n"),
                    text("Rename the function.", cache_control=EPHEMERAL),
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Look first.", "signature": "c2lnbmF0dXJl"},
                    {"type": "redacted_thinking", "data": "gAAAA"},
                    text("Looking."),
                    {"type": "tool_use", "id": "toolu_01", "name": "Bash", "input": {"what": "ls"}},
                    {"type": "tool_use", "id": "toolu_02", "name": "Read", "input": {"what": "b.py"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_01", "content": "a.py", "is_error": False},
                    {
                        "type": "tool_result",
                        "tool_use_id": "toolu_02",
                        "content": [text("<tool_use_error>No such file.</tool_use_error>")],
                        "is_error": True,
                    },
                ],
            },
            {"role": "system", "content": [text("<total_tokens>31000 tokens left</total_tokens>")]},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "toolu_03", "name": "TodoWrite", "input": {}}],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "toolu_03"},
                    text("Go on.", cache_control=EPHEMERAL),
                ],
            },
        ],
        "tools": [
            *map(tool, NAMES),
            *(tool(f"mcp__server-{number}__{'x' * 60}") for number in range(140)),
            {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        ],
        "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"s"}'},
        "temperature": 1,
        "betas": ["claude-code-20250219"],
        **members,
    }


def title() -> dict[str, Any]:
    """A small request on the side, for the name of a session: bound to a schema, without tools."""
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    return {
        "model": "scripted",
        "max_tokens": 512,
        "stream": True,
        "system": [text(BILL.format(count=7)), text("Name the session.")],
        "messages": [{"role": "user", "content": [text("Rename the function.")]}],
        "tools": [],
        "thinking": {"type": "disabled"},
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
        "metadata": {"user_id": "u"},
        "temperature": 1,
    }


def quota() -> dict[str, Any]:
    """What it asks first, to see whether it may."""
    return {
        "model": "scripted",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "quota"}],
        "metadata": {"user_id": "u"},
    }
