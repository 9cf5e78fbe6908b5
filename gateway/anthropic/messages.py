"""`/v1/messages`: the body, its rules, and its translation. How the answer looks is in `message_answer.py`.

Messages become those of a chat, so backends know only chats. What is unknown is passed over, however strict `[wire]`
is: that is about OpenAI's document, and the clients of this route send new fields all the time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from backends.errors import InvalidRequest
from backends.types import ChatTemplate, GenerateRequest, Message, SamplingParams, TokenizeRequest
from gateway.anthropic.blocks import Translated, WireMessage, translate
from gateway.anthropic.message_answer import MessageFolder, MessageStream
from gateway.anthropic.shapes import TokenCount
from gateway.anthropic.tools import Choice, MessageTools, translate_tools
from gateway.openai.answer import Reply
from gateway.openai.caller import Caller
from gateway.openai.chat_answer import ChatAnswer
from gateway.openai.decoding import decode_object, names_of, read
from gateway.openai.sampling import INT32_MAX, SMALLEST_NUCLEUS, Count
from gateway.openai.text import to_json

FIELDS = {"stop": "stop_sequences"}  # a chat's name → ours


class Thinking(Struct, frozen=True, kw_only=True):
    """Whether to think (always, but for `disabled`), and whether to show it.

    There is no budget for thoughts alone: `max_tokens` bounds them with the rest.
    """

    type: str
    budget_tokens: Count | None = None
    display: str | None = None

    @property
    def is_shown(self) -> bool:
        """Whether the answer has the thoughts in it."""
        return self.type != "disabled" and self.display != "omitted"


class OutputFormat(Struct, frozen=True, kw_only=True):
    """What the text must look like."""

    type: Literal["json_schema"]
    schema: dict[str, Any]


class OutputConfig(Struct, frozen=True, kw_only=True):
    """How hard to try, which reaches templates that know it, and what the text must look like."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class PromptFields(Struct, frozen=True, kw_only=True):
    """The fields that are read, and counted by `count_tokens`."""

    model: str
    messages: Annotated[list[WireMessage], Meta(min_length=1)]
    system: str | list[Any] = ""
    tools: list[dict[str, Any]] = []
    tool_choice: Choice | None = None
    thinking: Thinking = Thinking(type="disabled")
    output_config: OutputConfig = OutputConfig()
    output_format: OutputFormat | None = None  # the old place of `output_config.format`


class MessageFields(PromptFields, frozen=True, kw_only=True):
    """A body of `/v1/messages`, but for `IgnoredMessageFields`."""

    max_tokens: Count
    stream: bool = False
    stop_sequences: list[Annotated[str, Meta(min_length=1)]] = []
    temperature: Annotated[float, Meta(ge=0, le=1)] = 1.0
    top_p: Annotated[float, Meta(ge=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=0, le=INT32_MAX)] = 0


class Metadata(Struct, frozen=True, kw_only=True):
    """About whoever asks the client."""

    user_id: str = ""


class IgnoredMessageFields(Struct, frozen=True, kw_only=True):
    """Checked for their type alone: about the bill, the cache, and what only Anthropic's servers do with a prompt."""

    metadata: Metadata = Metadata()
    service_tier: str = ""
    cache_control: dict[str, Any] = {}
    context_management: dict[str, Any] = {}
    container: str | dict[str, Any] = ""
    inference_geo: str = ""
    speed: str = ""
    mcp_servers: list[dict[str, Any]] = []


_KNOWN = names_of(MessageFields, IgnoredMessageFields)


class MessagesRequest(Struct, frozen=True, kw_only=True):
    """A request that was read and found in order. `body` is what the client sent, `extra` what nothing here knows."""

    fields: MessageFields
    ignored: IgnoredMessageFields
    prompt: Translated
    tools: MessageTools
    body: dict[str, Any]
    extra: dict[str, Any]

    @property
    def stream(self) -> bool:
        """Whether the answer is to be streamed."""
        return self.fields.stream

    @property
    def lane_wish(self) -> str | None:
        """No lane: the body has no word for one."""
        return None

    @property
    def left_out(self) -> tuple[str, ...]:
        """Kinds of blocks and tools that nothing here knows, and tools on other servers."""
        servers = ("mcp_servers",) if self.ignored.mcp_servers else ()
        return tuple(dict.fromkeys((*self.prompt.skipped, *self.tools.dropped, *servers)))

    def to_generate(self, caller: Caller) -> GenerateRequest:
        """The request as backends read it."""
        request = GenerateRequest(
            request_id=caller.request_id,
            route="messages",
            model=self.fields.model,
            messages=self.prompt.messages,
            sampling=_sampling(self.fields),
            template=_template(self.fields, self.prompt.messages),
            add_special_tokens=False,
            tools=self.tools.tools.definitions,
            tool_choice=self.tools.tools.choice,
            response_format=_format(self.fields.output_config.format or self.fields.output_format),
            stream=self.stream,
            body=self.body,
            extra=self.extra,
        )
        return caller.stamp(request)

    def encoder(self, request_id: str, created: int) -> MessageStream:
        """What turns the answer's chunks into events."""
        return MessageStream(self._answer(request_id, created))

    def folder(self, request_id: str, created: int) -> MessageFolder:
        """What turns the answer's chunks into one body."""
        return MessageFolder(self._answer(request_id, created))

    def _answer(self, request_id: str, created: int) -> ChatAnswer:
        return ChatAnswer(
            reply=Reply(id=f"msg_{request_id.removeprefix('req_')}", created=created, model=self.fields.model),
            show_reasoning=self.fields.thinking.is_shown,
            one_call=not self.tools.tools.is_parallel,
        )


def decode_messages(body: bytes) -> MessagesRequest:
    """The request in `body`, checked whole. Raises `InvalidBody` for the first fault."""
    whole = decode_object(body)
    present = {name: value for name, value in whole.items() if value is not None}
    fields = read(present, MessageFields)
    return MessagesRequest(
        fields=fields,
        ignored=read(present, IgnoredMessageFields),
        prompt=translate(fields.messages, fields.system),
        tools=translate_tools(fields.tools, fields.tool_choice),
        body=whole,
        extra={name: value for name, value in whole.items() if name not in _KNOWN},
    )


class CountRequest(Struct, frozen=True, kw_only=True):
    """What is to be counted: a chat, and the text of its tools, which no tokenizer takes as such."""

    chat: TokenizeRequest
    tools: TokenizeRequest | None


def decode_count(body: bytes) -> CountRequest:
    """What is to be counted. Raises `InvalidBody`."""
    fields = read(decode_object(body), PromptFields)
    tools = translate_tools(fields.tools, fields.tool_choice).tools
    messages = translate(fields.messages, fields.system).messages
    chat = TokenizeRequest(
        model=fields.model,
        messages=messages,
        template=_template(fields, messages),
        add_special_tokens=False,
    )
    if not tools.definitions:
        return CountRequest(chat=chat, tools=None)
    text = to_json(tools.definitions).decode()
    return CountRequest(chat=chat, tools=TokenizeRequest(model=fields.model, prompt=text, add_special_tokens=False))


def count_body(num_tokens: int) -> bytes:
    """The answer of `/v1/messages/count_tokens`."""
    return to_json(TokenCount(input_tokens=num_tokens))


def in_words_of_messages(error: InvalidRequest) -> InvalidRequest:
    """What a backend says of a field, under the name which that field has on this route."""
    param = error.param
    if param is None:
        return error
    if param.startswith("response_format"):
        own = "output_config.format.schema"
    elif param.startswith("messages["):  # counted among the messages of the chat, of which there are others
        own = "messages"
    elif re.match(r"tools\[\d+\]", param):
        own = param.replace("function.parameters", "input_schema").replace("function.", "")
    else:
        own = FIELDS.get(param, param)
    message = error.message.replace(param, own).replace("response_format", "output_config.format")
    return type(error)(message, param=own, code=error.code, retry_after_s=error.retry_after_s)


def _sampling(fields: MessageFields) -> SamplingParams:
    return SamplingParams(
        max_tokens=fields.max_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p or SMALLEST_NUCLEUS,
        top_k=fields.top_k,
        stop=tuple(fields.stop_sequences),
    )


def _template(fields: PromptFields, messages: Sequence[Message]) -> ChatTemplate:
    """What the assistant said last goes on. Templates that let a model think know one of these names."""
    last = messages[-1]
    goes_on = last.role == "assistant" and last.text != "" and not last.tool_calls
    effort = {} if fields.output_config.effort is None else {"reasoning_effort": fields.output_config.effort}
    return ChatTemplate(
        add_generation_prompt=not goes_on,
        continue_final_message=goes_on,
        kwargs={"enable_thinking": fields.thinking.type != "disabled", **effort},
    )


def _format(wire: OutputFormat | None) -> dict[str, Any] | None:
    if wire is None:
        return None
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": wire.schema, "strict": True}}
