"""POST /v1/chat/completions."""

from __future__ import annotations

from gateway.api.generating import Dialect
from gateway.openai.chat import decode_chat

CHAT = Dialect("chat", "/v1/chat/completions", decode_chat, "messages")
