"""The objects of `/v1/messages` as the wire has them: what answers are made of, and what the OpenAPI document shows."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]


class TextBlock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """What the model said."""

    text: str


class ThinkingBlock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="thinking"):
    """What the model thought before it answered. `signature` is a digest of it, since clients look for one."""

    thinking: str
    signature: str


class ToolUseBlock(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="tool_use"):
    """A tool that the model wants used."""

    id: str
    name: str
    input: dict[str, Any]


ContentBlock: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class TextDelta(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="text_delta"):
    """More text."""

    text: str


class ThinkingDelta(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="thinking_delta"
):
    """More thoughts."""

    thinking: str


class SignatureDelta(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="signature_delta"
):
    """The signature of thoughts that are whole."""

    signature: str


class InputJsonDelta(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="input_json_delta"
):
    """More of the JSON text of a tool's input."""

    partial_json: str


BlockDelta: TypeAlias = TextDelta | ThinkingDelta | SignatureDelta | InputJsonDelta


class MessageTokensDetails(Struct, frozen=True, kw_only=True):
    """Kinds of tokens that were generated."""

    thinking_tokens: int


class MessageUsage(Struct, frozen=True, kw_only=True):
    """What a message used, in tokens. The prompt is the sum of the first three; `output_tokens` includes thoughts."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int
    output_tokens: int
    output_tokens_details: MessageTokensDetails


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer. While it is streamed it begins without content and without a reason to stop."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class MessageError(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What went wrong. The message begins with the field at fault, where there is one."""

    type: str
    message: str


class MessageErrorEnvelope(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="error"
):
    """Every failing reply of these routes, and the event that ends a stream which failed."""

    error: MessageError
    request_id: str


class MessageStart(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="message_start"
):
    """The message as it begins."""

    message: Message


class Ping(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="ping"):
    """Nothing happened, and the stream lives."""


class ContentBlockStart(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="content_block_start"
):
    """A block begins, empty; `index` is its place in the message."""

    index: int
    content_block: ContentBlock


class ContentBlockDelta(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="content_block_delta"
):
    """More of a block."""

    index: int
    delta: BlockDelta


class ContentBlockStop(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="content_block_stop"
):
    """A block is whole."""

    index: int


class Ending(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a message ended."""

    stop_reason: StopReason | None = None
    stop_sequence: str | None = None


class MessageDeltaEvent(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="message_delta"
):
    """How the message ended, and all that it used."""

    delta: Ending
    usage: MessageUsage


class MessageStop(Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="message_stop"):
    """The message is whole."""


# The events of a streamed message, each under its type in its `event:` line: `message_start`; for each block its start,
# its deltas and its stop; `message_delta`, `message_stop`. A `ping` may come at any time; after a failure `error` is
# the last.
MessageEvent: TypeAlias = (
    MessageStart
    | Ping
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDeltaEvent
    | MessageStop
    | MessageErrorEnvelope
)


class TokenCount(Struct, frozen=True, kw_only=True):
    """How many tokens a request would give to read."""

    input_tokens: int
