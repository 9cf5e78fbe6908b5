"""Extra bodies that say how the scripted backend is to answer; see docs/scripted.md."""

from __future__ import annotations

from typing import Any


def says(*tokens: str, **script: Any) -> dict[str, Any]:
    """A text, token by token."""
    return {"script": {"tokens": list(tokens), **script}}


def calls(name: str, arguments: str) -> dict[str, Any]:
    """A call, its arguments in two pieces."""
    half = len(arguments) // 2
    return {"script": {"tool_calls": [{"name": name, "arguments": [arguments[:half], arguments[half:]]}]}}


def fails(kind: str) -> dict[str, Any]:
    """A failure before the first token."""
    return says("never", fail={"kind": kind})


BREAKS_OFF = says("a", "b", fail={"kind": "unavailable", "after_tokens": 1, "message": "lost"})
ENDLESS = says("word ", eos=False, delay_s=0.02)
