"""Whose API a route belongs to: it decides how a reply tells a failure, carries its id, and breaks a silence."""

from __future__ import annotations

import re
from collections.abc import Callable

from msgspec import Struct

from gateway.anthropic import errors as anthropic
from gateway.anthropic.message_answer import PING
from gateway.openai import errors as openai
from gateway.openai.errors import Fault
from gateway.openai.sse import COMMENT

_MESSAGES = re.compile(r"/v1/messages(/|$)")  # after whatever prefix the server has


class Family(Struct, frozen=True, kw_only=True):
    """Routes whose clients expect the same of every reply, also of those that no handler made.

    `body` gets a fault and the id that the reply shows, `id_headers` carry that id, `keep_alive` is an event that says
    nothing.
    """

    status: Callable[[Fault], int]
    body: Callable[[Fault, str], bytes]
    id_headers: tuple[bytes, ...]
    keep_alive: bytes


OPENAI = Family(
    status=openai.status_of,
    body=openai.error_body,
    id_headers=(b"x-request-id",),
    keep_alive=COMMENT,
)
ANTHROPIC = Family(
    status=anthropic.status_of,
    body=anthropic.error_body,
    id_headers=(b"x-request-id", b"request-id"),
    keep_alive=PING,
)


def family_of(path: str) -> Family:
    """The family of the routes at and below `path`; what is nobody else's is OpenAI's."""
    return ANTHROPIC if _MESSAGES.search(path) else OPENAI
