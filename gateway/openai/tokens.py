"""`/tokenize` and `/detokenize`, in vLLM's form."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from backends.types import TokenizeRequest, Tokens
from gateway.openai import faults
from gateway.openai.decoding import decode_object, read
from gateway.openai.messages import ChatMessage, translate_message
from gateway.openai.sampling import TokenId
from gateway.openai.template import TemplateFields, translate_template
from gateway.openai.text import to_json


class TokenizeBody(Struct, frozen=True, kw_only=True):
    """A text, or the messages of a chat with `TemplateFields` beside them. Without a model the server chooses.

    `add_special_tokens` is by default true for a text and false for messages, whose template has its own.
    """

    model: str = ""
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False
    chat_template: str | None = None
    tools: list[dict[str, Any]] = []


class DetokenizeBody(Struct, frozen=True, kw_only=True):
    """Token ids to turn into text. Without a model the server chooses."""

    model: str | None = None
    tokens: list[TokenId]


class TokenizeAnswer(Struct, frozen=True, kw_only=True):
    """`max_model_len` is in tokens."""

    count: int
    max_model_len: int | None
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None


class DetokenizeAnswer(Struct, frozen=True, kw_only=True):
    """The text of token ids."""

    prompt: str


def decode_tokenize(body: bytes) -> TokenizeRequest:
    """The request in `body`; its model is empty when the body names none. Raises `InvalidBody`."""
    values = decode_object(body)
    wire = read(values, TokenizeBody)
    _refuse(wire)
    if wire.messages is None:
        if wire.prompt is None:
            raise faults.missing("prompt")
        return TokenizeRequest(
            model=wire.model,
            prompt=wire.prompt,
            add_special_tokens=wire.add_special_tokens is not False,
            return_token_strs=wire.return_token_strs,
        )
    return TokenizeRequest(
        model=wire.model,
        messages=tuple(translate_message(message, number) for number, message in enumerate(wire.messages)),
        template=translate_template(read(values, TemplateFields), wire.messages),
        add_special_tokens=wire.add_special_tokens is True,
        return_token_strs=wire.return_token_strs,
    )


def decode_detokenize(body: bytes) -> DetokenizeBody:
    """The request in `body`. Raises `InvalidBody`; whether an id is inside the vocabulary is the backend's to say."""
    return read(decode_object(body), DetokenizeBody)


def tokenize_body(tokens: Tokens, max_model_len: int | None) -> bytes:
    """The answer of `/tokenize`."""
    return to_json(
        TokenizeAnswer(count=len(tokens.ids), max_model_len=max_model_len, tokens=tokens.ids, token_strs=tokens.strs)
    )


def detokenize_body(text: str) -> bytes:
    """The answer of `/detokenize`."""
    return to_json(DetokenizeAnswer(prompt=text))


def _refuse(wire: TokenizeBody) -> None:
    """What would change the tokens and cannot be obeyed."""
    if wire.prompt is not None and wire.messages is not None:
        raise faults.combination("messages", "Only one of 'prompt' and 'messages' may be set.")
    if wire.chat_template is not None:
        raise faults.unsupported("chat_template")
    if wire.tools:
        raise faults.unsupported("tools")
