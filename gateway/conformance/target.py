"""The server that is asked: where it is, which model, and what is known of it."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class Target(Struct, frozen=True, kw_only=True):
    """`address` is the root URL without /v1. `window` is the model's whole context in tokens, where that is known.

    `scripted` means that the field `script` of the scripted backend is obeyed, `strict` that all must be refused that
    OpenAI refuses. `pause_s` is how long a scripted stream is silent where that matters, and a client waits before it
    leaves. `lacks` has for each need that is not met the reason, under the need's name.
    """

    address: str
    model: str
    embedding_model: str | None = None
    api_key: str | None = None
    strict: bool = False
    scripted: bool = False
    window: int | None = None
    timeout_s: float = 60.0
    pause_s: float = 1.0
    lacks: Mapping[str, str] = {}
