"""POST /v1/chat/completions."""

from __future__ import annotations

import functools

from gateway.api.generating import Dialect
from gateway.openai.chat import decode_chat
from gateway.openai.wire import WireOptions


def chat_dialect(options: WireOptions) -> Dialect:
    """The dialect of chats, as strict as `options` say."""
    decode = functools.partial(decode_chat, options=options)
    return Dialect("chat", "/v1/chat/completions", decode, "messages", options)
