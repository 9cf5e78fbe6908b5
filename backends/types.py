"""What crosses the backend contract: the request, its sampling, the chunks of its answer. No I/O, no wire format."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct, field

Route: TypeAlias = Literal["chat", "completions", "responses", "messages", "embeddings"]
UsageSource: TypeAlias = Literal["reported", "counted", "estimated", "missing"]


class FinishReason(enum.StrEnum):
    """Why a choice ended. OpenAI's words; an aborted choice has none."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CONTENT_FILTER = "content_filter"


class Usage(Struct, frozen=True, kw_only=True):
    """Token counts of one request, over all its choices. `completion_tokens` includes the end token and reasoning.

    `source` says where they come from: the backend reports them, or (the gateway's doing) they were counted with a
    tokenizer, or estimated from the text's length. A backend that is told nothing by its server says `missing`, which
    is not the same as zero.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    source: UsageSource = "reported"


class TopLogprob(Struct, frozen=True):
    """One alternative at a position. `bytes` is the token's UTF-8, perhaps a fragment of a character."""

    token: str
    logprob: float
    bytes: bytes


class TokenLogprob(Struct, frozen=True):
    """The chosen token at a position and its best alternatives, highest first.

    `logprob` is None only for the first token of an echoed prompt, which has no left context.
    """

    token: str
    logprob: float | None
    bytes: bytes
    top: tuple[TopLogprob, ...] = ()


class ToolCallDelta(Struct, frozen=True, kw_only=True):
    """A piece of a tool call. `id` and `name` come once, with the first piece of call `index`."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class Chunk(Struct, frozen=True, kw_only=True):
    """One piece of the answer.

    `index` is the choice (prompt_index * n + i). `usage` is cumulative over the whole request, so the last chunk seen
    is always a valid bill (one of source `missing` asks the gateway to count). An empty chunk (no text, call or finish)
    says that work began: the request waits no more. `wire` is the upstream's own event, set only when it may be
    written to the client as it is. `vector` is the whole answer to one input of an `EmbedRequest`, as little-endian
    float32; it comes with the finish reason.
    """

    usage: Usage
    index: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    wire: bytes | None = None
    vector: bytes | None = None

    @property
    def is_visible(self) -> bool:
        """Whether a client could see anything of it; the first visible chunk fixes the HTTP status."""
        return bool(self.text or self.reasoning or self.tool_calls or self.finish_reason or self.wire)


class TextPart(Struct, frozen=True):
    """Text inside a message."""

    text: str


class MediaPart(Struct, frozen=True):
    """An image, a sound or a file inside a message; `kind` is the wire's name of it, such as `image_url`."""

    kind: str


class ToolCall(Struct, frozen=True, kw_only=True):
    """A finished call in an assistant message of the history; `arguments` is the text as the client sent it."""

    id: str
    name: str
    arguments: str


class Message(Struct, frozen=True, kw_only=True):
    """One message of a chat."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | tuple[TextPart | MediaPart, ...] | None = None
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """All text of the message, parts joined by a newline (as vLLM does for templates that want a string)."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))


class ChatTemplate(Struct, frozen=True, kw_only=True):
    """How the messages become a prompt."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)


class SamplingParams(Struct, frozen=True, kw_only=True):
    """How tokens are chosen and when a choice ends. Checked at the edge, trusted afterwards.

    `max_tokens` None means what the context leaves. `top_k` 0 is off. `logprobs` None is off, k asks for k alternatives
    beside the chosen token. `seed` makes a choice repeatable: noise depends on (seed, choice index, position) alone.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    n: int = 1
    best_of: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    echo: bool = False


class GenerateRequest(Struct, frozen=True, kw_only=True):
    """One request to generate. Exactly one of `messages` (chat) and `prompts` (text or token ids) is set.

    `body` is the client's decoded object with every field it had; `extra` holds the fields no Struct knows, such as
    `script`. Deadlines are `time.monotonic()` instants: by `first_token_at` the first token must be there, by
    `deadline_at` the whole answer.

    `tools` are OpenAI's tool objects, `tool_choice` its word or object (None without tools). `response_format` and
    `structured_outputs` (one of json, regex, choice, grammar, json_object, structural_tag) are None when any text does.
    A backend that cannot honour one of them raises `UnsupportedParameter`; it never ignores one.

    `exact_cap` is the client's name of `sampling.max_tokens` where more than the context has room for is to be refused
    under that name; None cuts it to the room.
    """

    request_id: str
    route: Route
    model: str
    messages: tuple[Message, ...] | None = None
    prompts: tuple[str | tuple[int, ...], ...] = ()
    sampling: SamplingParams = field(default_factory=SamplingParams)
    exact_cap: str | None = None
    template: ChatTemplate = field(default_factory=ChatTemplate)
    add_special_tokens: bool = True
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    response_format: Mapping[str, Any] | None = None
    structured_outputs: Mapping[str, Any] | None = None
    stream: bool = False
    tenant: str = "default"
    lane: str = "standard"
    weight: float = 1.0
    first_token_at: float | None = None
    deadline_at: float | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


class EmbedRequest(GenerateRequest, frozen=True, kw_only=True):
    """One request for the vectors of its `prompts`: in lanes, limits and ledger like any other, with no token to make.

    `dimensions` None means all that the model has. Of an input longer than `truncate_to` tokens only its last so many
    are read; -1 stands for as many as the model takes, None refuses what is too long.
    """

    route: Route = "embeddings"
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(max_tokens=0))
    dimensions: int | None = None
    truncate_to: int | None = None


class TokenizeRequest(Struct, frozen=True, kw_only=True):
    """Text or messages to turn into token ids, without generating."""

    model: str
    prompt: str | None = None
    messages: tuple[Message, ...] | None = None
    template: ChatTemplate = field(default_factory=ChatTemplate)
    add_special_tokens: bool = True
    return_token_strs: bool = False


class Tokens(Struct, frozen=True, kw_only=True):
    """Token ids of a text, and each token as text when that was asked for."""

    ids: tuple[int, ...]
    strs: tuple[str, ...] | None = None


class ModelCard(Struct, frozen=True, kw_only=True):
    """A model as `/v1/models` lists it. `created` is in Unix seconds, `max_model_len` in tokens."""

    id: str
    created: int
    owned_by: str = "laneway"
    root: str | None = None
    max_model_len: int | None = None


class Metric(Struct, frozen=True, kw_only=True):
    """One number a backend reports to `/metrics`; exported as `laneway_<name>` with the backend's name as a label."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    value: float


class BackendHealth(Struct, frozen=True, kw_only=True):
    """Whether answers flow now, and what the backend is doing. `detail` is for operators, without path or secret."""

    ready: bool
    detail: str = ""
    running: int = 0
    waiting: int = 0
    metrics: tuple[Metric, ...] = ()
