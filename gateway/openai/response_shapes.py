"""The objects of `/v1/responses` as the wire has them: what answers are made of, and what the OpenAPI document shows.

OpenAI requires members that are always empty here, such as `annotations`; strict clients fail without them.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]
ResponseStatus: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="output_text"):
    """What the model said."""

    text: str
    annotations: list[Any] = []
    logprobs: list[dict[str, Any]] = []


class ReasoningText(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="reasoning_text"
):
    """What the model thought, word for word: nothing is summed up."""

    text: str


class ReasoningItem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="reasoning"):
    """The model's thoughts before it answered."""

    id: str
    status: ItemStatus
    content: list[ReasoningText]
    summary: list[Any] = []


class MessageItem(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="message"):
    """The model's answer in text."""

    id: str
    status: ItemStatus
    content: list[OutputText]
    role: Literal["assistant"] = "assistant"


class FunctionCallItem(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="function_call"
):
    """A function that the model wants called. `arguments` is JSON in a string; `call_id` goes with its output."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class CustomCallItem(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type", tag="custom_tool_call"
):
    """A custom tool that the model wants called, with a text of no set form."""

    id: str
    status: ItemStatus
    call_id: str
    name: str
    input: str


Part: TypeAlias = OutputText | ReasoningText
Item: TypeAlias = ReasoningItem | MessageItem | FunctionCallItem | CustomCallItem


class InputTokensDetails(Struct, frozen=True, kw_only=True):
    """Kinds of tokens that were read."""

    cached_tokens: int
    cache_write_tokens: Literal[0] = 0  # nothing is billed for being kept


class OutputTokensDetails(Struct, frozen=True, kw_only=True):
    """Kinds of tokens that were generated."""

    reasoning_tokens: int


class ResponseUsage(Struct, frozen=True, kw_only=True):
    """What a response used, in tokens. `output_tokens` includes reasoning and the end token."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseError(Struct, frozen=True, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(Struct, frozen=True, kw_only=True):
    """Why a response ended early."""

    reason: Literal["max_output_tokens", "content_filter"]


class ResponseHead(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of a response before it begins: who it is, and what it repeats of its request.

    Nothing is stored, so nothing can be referred to. `created_at` is in Unix seconds.
    """

    id: str
    object: Literal["response"] = "response"
    created_at: int
    model: str
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    reasoning: dict[str, Any]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    service_tier: str | UnsetType = UNSET
    background: Literal[False] = False
    previous_response_id: None = None
    store: Literal[False] = False
    truncation: Literal["disabled"] = "disabled"


class Response(ResponseHead, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A response as far as it has come; `usage` is there once it has ended."""

    status: ResponseStatus
    output: list[Item]
    usage: ResponseUsage | None = None
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None


class ResponseEvent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One event of a streamed response; which members it has depends on its `type`, which is also its `event:` line.

    The last is `response.completed` or `response.incomplete`; after a failure `response.failed` and then `error`, whose
    members stand both beside `type` and under `error`. There is no `[DONE]`.
    """

    type: str
    sequence_number: int
    response: Response | UnsetType = UNSET
    output_index: int | UnsetType = UNSET
    item_id: str | UnsetType = UNSET
    item: Item | UnsetType = UNSET
    content_index: int | UnsetType = UNSET
    part: Part | UnsetType = UNSET
    delta: str | UnsetType = UNSET
    logprobs: list[dict[str, Any]] | UnsetType = UNSET
    text: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET
    input: str | UnsetType = UNSET
    code: str | UnsetType | None = UNSET
    message: str | UnsetType = UNSET
    param: str | UnsetType | None = UNSET
    error: dict[str, Any] | UnsetType = UNSET


class InputTokens(Struct, frozen=True, kw_only=True):
    """How many tokens a request would give to read."""

    input_tokens: int
    object: Literal["response.input_tokens"] = "response.input_tokens"
