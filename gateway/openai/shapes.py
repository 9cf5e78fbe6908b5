"""The answers as the OpenAPI document shows them. They are made elsewhere; a test holds real answers against these."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

from gateway.errors import LimitReport
from gateway.openai.answer import UsageObject

FinishWord: TypeAlias = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]
Logprobs: TypeAlias = dict[str, Any] | None


class FunctionCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The function that the model wants called. `arguments` is JSON in a string."""

    name: str
    arguments: str


class ToolCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call that the model wants made."""

    id: str
    type: Literal["function"]
    function: FunctionCall


class AssistantMessage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the model said. `reasoning` equals `reasoning_content`; both are absent when it did not think."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    annotations: list[Any]
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET
    function_call: FunctionCall | UnsetType = UNSET


class ChatCompletionChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the `n` answers. `stop_reason` is the stop string or token id that ended it."""

    index: int
    message: AssistantMessage
    logprobs: Logprobs
    finish_reason: FinishWord
    stop_reason: str | int | None


class ChatCompletion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole answer to a chat."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None
    service_tier: str | UnsetType = UNSET
    choices: list[ChatCompletionChoice]
    usage: UsageObject


class FunctionDelta(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A piece of a call: its name once, its arguments bit by bit."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A piece of call number `index`; id and type come with its first piece."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionDelta


class MessageDelta(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an event adds to a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET
    function_call: FunctionDelta | UnsetType = UNSET


class ChatCompletionChunkChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an event adds to a choice."""

    index: int
    delta: MessageDelta
    logprobs: Logprobs
    finish_reason: FinishWord | None
    stop_reason: str | int | UnsetType = UNSET


class ChatCompletionChunk(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event of a streamed chat. The stream ends with `data: [DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str | None
    service_tier: str | UnsetType = UNSET
    choices: list[ChatCompletionChunkChoice]
    usage: UsageObject | UnsetType | None = UNSET


class CompletionChoice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One continuation of one prompt; on events `finish_reason` is null until the last."""

    index: int
    text: str
    logprobs: Logprobs
    finish_reason: Literal["stop", "length", "content_filter"] | None
    stop_reason: str | int | UnsetType | None = UNSET


class Completion(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole completion, or one event of a streamed one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    service_tier: str | UnsetType = UNSET
    choices: list[CompletionChoice]
    usage: UsageObject | UnsetType | None = UNSET


class ErrorObject(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What went wrong; `param` is the field at fault. `limit`, which is ours, says which limit refused and why."""

    message: str
    type: str
    param: str | None
    code: str | None
    limit: LimitReport | UnsetType = UNSET


class ErrorEnvelope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every failing reply, and the event that ends a stream which failed."""

    error: ErrorObject
