"""How the messages of a chat become a prompt, as far as a client may say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from backends.types import ChatTemplate
from gateway.openai import faults
from gateway.openai.messages import ChatMessage

# What a template is rendered with beside the client's words for it; none of it can come by `chat_template_kwargs`.
_RESERVED = frozenset(
    (
        "messages",
        "conversation",
        "tools",
        "documents",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "tokenizer_kwargs",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
    )
)


class TemplateFields(Struct, frozen=True, kw_only=True):
    """vLLM's fields about the template, and OpenAI's effort, which reaches templates that know it."""

    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


def translate_template(fields: TemplateFields, messages: Sequence[ChatMessage]) -> ChatTemplate:
    """The template's switches as backends read them. Raises `InvalidBody`.

    A continued message has no new turn to begin, whatever `add_generation_prompt` is by default.
    """
    if fields.continue_final_message:
        _check_continuation(fields, messages)
    for name in fields.chat_template_kwargs:
        if name in _RESERVED:
            raise faults.invalid_value("chat_template_kwargs", f"'{name}' cannot be set by a request.")
    effort = {} if fields.reasoning_effort is None else {"reasoning_effort": fields.reasoning_effort}
    return ChatTemplate(
        add_generation_prompt=not fields.continue_final_message and fields.add_generation_prompt is not False,
        continue_final_message=fields.continue_final_message,
        kwargs={**effort, **fields.chat_template_kwargs},
    )


def _check_continuation(fields: TemplateFields, messages: Sequence[ChatMessage]) -> None:
    if fields.add_generation_prompt:
        raise faults.combination(
            "continue_final_message", "'continue_final_message' and 'add_generation_prompt' cannot both be true."
        )
    if messages[-1].role != "assistant":
        raise faults.invalid_value("continue_final_message", "the last message must be from the assistant.")
