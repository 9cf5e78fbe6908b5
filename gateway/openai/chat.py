"""`/v1/chat/completions`: the body, its rules, and its translation. How the answer looks is in `chat_answer.py`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from backends.types import ChatTemplate, GenerateRequest, Message, SamplingParams
from gateway.openai import faults, strict
from gateway.openai.answer import Reply
from gateway.openai.caller import Caller
from gateway.openai.chat_answer import ChatAnswer, ChatFolder, ChatStream
from gateway.openai.decoding import decode_request, names_of, read
from gateway.openai.formats import FormatFields, response_format, structured_outputs
from gateway.openai.messages import ChatMessage, translate_message
from gateway.openai.sampling import Count, SamplingFields, check_sampling, sampling_params
from gateway.openai.template import TemplateFields, translate_template
from gateway.openai.tools import ToolFields, Tools, translate_tools
from gateway.openai.unknown import refuse_unknown
from gateway.openai.unused import UNUSED_GROUPS, check_unused
from gateway.openai.wire import LENIENT, WireOptions


class ChatFields(Struct, frozen=True, kw_only=True):
    """The fields that only a chat has, beside its tools and its template.

    `max_completion_tokens` beats its old name `max_tokens`.
    """

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    max_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] = 0
    modalities: list[Literal["text", "audio"]] = []
    include_reasoning: bool = True
    add_special_tokens: bool = False


_GROUPS = (ChatFields, TemplateFields, SamplingFields, FormatFields, ToolFields, *UNUSED_GROUPS)
_KNOWN = names_of(*_GROUPS)


class ChatCompletionRequest(Struct, frozen=True, kw_only=True):
    """A chat that was read and found in order. `body` is what the client sent, `extra` what nothing here knows."""

    fields: ChatFields
    sampling: SamplingFields
    messages: tuple[Message, ...]
    params: SamplingParams
    exact_cap: str | None
    template: ChatTemplate
    tools: Tools
    response_format: dict[str, Any] | None
    structured_outputs: dict[str, Any] | None
    body: dict[str, Any]
    extra: dict[str, Any]

    @property
    def model(self) -> str:
        """The model's id or alias, as the client spells it."""
        return self.sampling.model

    @property
    def stream(self) -> bool:
        """Whether the answer is to be streamed."""
        return self.sampling.stream

    @property
    def lane_wish(self) -> str | None:
        """The lane that the body asks for, None for the key's own."""
        return self.sampling.lane_wish

    @property
    def left_out(self) -> tuple[str, ...]:
        """Nothing: what is not known here has no effect, or is refused."""
        return ()

    def to_generate(self, caller: Caller) -> GenerateRequest:
        """The request as backends read it."""
        request = GenerateRequest(
            request_id=caller.request_id,
            route="chat",
            model=self.model,
            messages=self.messages,
            sampling=self.params,
            exact_cap=self.exact_cap,
            template=self.template,
            add_special_tokens=self.fields.add_special_tokens,
            tools=self.tools.definitions,
            tool_choice=self.tools.choice,
            response_format=self.response_format,
            structured_outputs=self.structured_outputs,
            stream=self.stream,
            body=self.body,
            extra=self.extra,
        )
        return caller.stamp(request)

    def encoder(self, request_id: str, created: int) -> ChatStream:
        """What turns the answer's chunks into events."""
        return ChatStream(self._answer(request_id, created))

    def folder(self, request_id: str, created: int) -> ChatFolder:
        """What turns the answer's chunks into one body."""
        return ChatFolder(self._answer(request_id, created))

    def _answer(self, request_id: str, created: int) -> ChatAnswer:
        return ChatAnswer(
            reply=Reply.to("chatcmpl-", request_id, created, self.sampling),
            num_choices=self.params.n,
            top_logprobs=self.params.logprobs,
            prefix=self._echoed_text(),
            show_reasoning=self.fields.include_reasoning,
            one_call=not self.tools.is_parallel,
            calls_as_functions=self.tools.are_functions,
            has_named_call=self.tools.has_named_choice,
        )

    def _echoed_text(self) -> str:
        """vLLM's `echo`: the text of an assistant's last message comes before its continuation."""
        last = self.messages[-1]
        return last.text if self.sampling.echo and last.role == "assistant" else ""


def decode_chat(body: bytes, options: WireOptions = LENIENT) -> ChatCompletionRequest:
    """The chat in `body`, checked whole. Raises `InvalidBody` for the first fault."""
    whole, present = decode_request(body, "messages")
    if options.refuses_unknown:
        refuse_unknown(whole, _GROUPS)
    fields = read(present, ChatFields)
    sampling = read(present, SamplingFields)
    formats = read(present, FormatFields)
    tool_fields = read(present, ToolFields)
    if options.strict:
        strict.check_shared(sampling, formats)
        strict.check_tools(tool_fields, present)
        strict.check_messages(fields.messages)
    messages = tuple(translate_message(message, number) for number, message in enumerate(fields.messages))
    tools = translate_tools(tool_fields, present)
    check_unused(present)
    capped_by = "max_tokens" if fields.max_completion_tokens is None else "max_completion_tokens"
    max_tokens = getattr(fields, capped_by)
    check_sampling(sampling, max_tokens)
    _check_chat(fields)
    if options.strict:
        strict.check_calls(fields.messages)
        strict.check_limits(fields.max_tokens, fields.max_completion_tokens)
    return ChatCompletionRequest(
        fields=fields,
        sampling=sampling,
        messages=messages,
        params=sampling_params(
            sampling, max_tokens=max_tokens, logprobs=fields.top_logprobs if fields.logprobs else None
        ),
        exact_cap=capped_by if options.strict else None,
        template=translate_template(read(present, TemplateFields), fields.messages),
        tools=tools,
        response_format=response_format(formats.response_format),
        structured_outputs=structured_outputs(formats),
        body=whole,
        extra={name: value for name, value in whole.items() if name not in _KNOWN},
    )


def _check_chat(fields: ChatFields) -> None:
    """The rules among the fields of a chat. Raises `InvalidBody`."""
    if fields.top_logprobs and not fields.logprobs:
        raise faults.broken_rule(
            "top_logprobs", "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled."
        )
    if "audio" in fields.modalities:
        raise faults.unsupported_value("modalities", "audio")
