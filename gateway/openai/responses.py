"""`/v1/responses`: the body, its rules, and its translation. How the answer looks is in `response_answer.py`.

Nothing is stored: a request brings its whole history, and what would need an earlier response is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct

from backends.errors import InvalidRequest
from backends.types import ChatTemplate, GenerateRequest, SamplingParams, TokenizeRequest
from gateway.errors import InvalidBody
from gateway.openai import faults
from gateway.openai.answer import Reply
from gateway.openai.caller import Caller
from gateway.openai.chat_answer import ChatAnswer
from gateway.openai.decoding import decode_object, names_of, read
from gateway.openai.formats import FormatFields, JsonSchema, Name, ResponseFormat, response_format, structured_outputs
from gateway.openai.response_answer import ResponseAnswer, ResponseFolder, ResponseStream
from gateway.openai.response_items import Items, translate_input
from gateway.openai.response_shapes import InputTokens, ResponseHead
from gateway.openai.response_tools import ResponseToolFields, ResponseTools, translate_response_tools
from gateway.openai.sampling import Count, SamplingFields, check_sampling, sampling_params
from gateway.openai.template import TemplateFields, translate_template
from gateway.openai.text import to_json
from gateway.openai.unused import UNUSED, check_unused
from gateway.openai.wire import LENIENT, WireOptions

LOGPROBS = "message.output_text.logprobs"  # in `include`
HINTS = {"messages": "Use 'input' instead.", "response_format": "Use 'text.format' instead."}
FIELDS = {"messages": "input", "max_tokens": "max_output_tokens", "tools": "tools"}  # a chat's name → ours


class TextFormat(Struct, frozen=True, kw_only=True):
    """What the text must look like; of a `json_schema` format all but `description` and `strict` is required."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    schema: Any = None
    description: str = ""
    strict: bool = False


class TextOptions(Struct, frozen=True, kw_only=True):
    """How the text is to be; `verbosity` is a hint."""

    format: TextFormat = TextFormat(type="text")
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(Struct, frozen=True, kw_only=True):
    """How hard to think; it reaches templates that know it. Thoughts are shown as they are, never summed up."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    mode: str | None = None  # this and the next are known, and have no effect
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseFields(Struct, frozen=True, kw_only=True):
    """The fields that only a response has, beside its tools. An item's shape depends on its `type`.

    `truncation` and the rest of `include` ask for nothing that there is here, so they are ignored.
    """

    model: str
    input: str | Annotated[list[Any], Meta(min_length=1)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    text: TextOptions = TextOptions()
    reasoning: ReasoningOptions = ReasoningOptions()
    include: list[str] = []
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    max_tool_calls: Count | None = None
    previous_response_id: str | None = None
    background: bool = False
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] = {}
    context_management: list[dict[str, Any]] = []
    client_metadata: dict[str, Any] = {}


_KNOWN = names_of(ResponseFields, SamplingFields, FormatFields, ResponseToolFields) | UNUSED


class ResponseRequest(Struct, frozen=True, kw_only=True):
    """A request for a response that was read and found in order.

    `body` is what the client sent, `extra` what nothing here knows.
    """

    fields: ResponseFields
    sampling: SamplingFields
    items: Items
    params: SamplingParams
    exact_cap: str | None
    template: ChatTemplate
    tools: ResponseTools
    response_format: dict[str, Any] | None
    structured_outputs: dict[str, Any] | None
    body: dict[str, Any]
    extra: dict[str, Any]

    @property
    def model(self) -> str:
        """The model's id or alias, as the client spells it."""
        return self.fields.model

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
        """Kinds of items and tools that nothing here knows."""
        return tuple(dict.fromkeys((*self.items.skipped, *self.tools.dropped)))

    def to_generate(self, caller: Caller) -> GenerateRequest:
        """The request as backends read it."""
        request = GenerateRequest(
            request_id=caller.request_id,
            route="responses",
            model=self.model,
            messages=self.items.messages,
            sampling=self.params,
            exact_cap=self.exact_cap,
            template=self.template,
            add_special_tokens=False,
            tools=self.tools.tools.definitions,
            tool_choice=self.tools.tools.choice,
            response_format=self.response_format,
            structured_outputs=self.structured_outputs,
            stream=self.stream,
            body=self.body,
            extra=self.extra,
        )
        return caller.stamp(request)

    def encoder(self, request_id: str, created: int) -> ResponseStream:
        """What turns the answer's chunks into events."""
        return ResponseStream(self._answer(request_id, created))

    def folder(self, request_id: str, created: int) -> ResponseFolder:
        """What turns the answer's chunks into one body."""
        return ResponseFolder(self._answer(request_id, created))

    def _answer(self, request_id: str, created: int) -> ResponseAnswer:
        reply = Reply.to("resp_", request_id, created, self.sampling)
        chat = ChatAnswer(reply=reply, top_logprobs=self.params.logprobs, one_call=not self.tools.tools.is_parallel)
        return ResponseAnswer(head=self._head(reply), chat=chat, custom_tools=self.tools.custom)

    def _head(self, reply: Reply) -> ResponseHead:
        body, text = self.body, self.body.get("text") or {}
        return ResponseHead(
            id=reply.id,
            created_at=reply.created,
            model=reply.model,
            instructions=self.fields.instructions,
            max_output_tokens=self.fields.max_output_tokens,
            metadata=body.get("metadata") or {},
            parallel_tool_calls=self.tools.tools.is_parallel,
            reasoning={"effort": self.fields.reasoning.effort, "summary": self.fields.reasoning.summary},
            temperature=self.sampling.temperature,
            text={**text, "format": text.get("format") or {"type": "text"}},
            tool_choice=body.get("tool_choice") or "auto",
            tools=self.tools.shown,
            top_logprobs=self.params.logprobs or 0,
            top_p=self.sampling.top_p,
            service_tier=reply.service_tier or UNSET,
        )


def decode_response(body: bytes, options: WireOptions = LENIENT) -> ResponseRequest:
    """The request in `body`, checked whole. Raises `InvalidBody` for the first fault."""
    whole = decode_object(body)
    present = {name: value for name, value in whole.items() if value is not None}
    _refuse_names_of_chats(present)
    if options.refuses_unknown:
        _refuse_unknown(whole)
    fields = read(present, ResponseFields)
    sampling = read(present, SamplingFields)
    formats = read(present, FormatFields)
    tools = translate_response_tools(read(present, ResponseToolFields))
    check_unused(present)
    check_sampling(sampling, fields.max_output_tokens)
    _refuse(fields, sampling)
    wants_logprobs = fields.top_logprobs is not None or LOGPROBS in fields.include
    return ResponseRequest(
        fields=fields,
        sampling=sampling,
        items=_read_input(fields),
        params=sampling_params(
            sampling,
            max_tokens=fields.max_output_tokens,
            logprobs=(fields.top_logprobs or 0) if wants_logprobs else None,
        ),
        exact_cap="max_output_tokens" if options.strict else None,
        template=_template(fields),
        tools=tools,
        response_format=_format(fields.text.format),
        structured_outputs=structured_outputs(formats),
        body=whole,
        extra={name: value for name, value in whole.items() if name not in _KNOWN},
    )


def _refuse_unknown(body: Mapping[str, Any]) -> None:
    """At the top alone: items and tools of kinds that are not known are left out by every server."""
    for name in body:
        if name not in _KNOWN:
            raise faults.unknown(name)


def decode_input_tokens(body: bytes) -> TokenizeRequest:
    """What is to be counted; its model is empty when the body names none. Raises `InvalidBody`."""
    present = {"model": "", **{name: value for name, value in decode_object(body).items() if value is not None}}
    _refuse_names_of_chats(present)
    fields = read(present, ResponseFields)
    _refuse(fields, SamplingFields(model=fields.model))
    if translate_response_tools(read(present, ResponseToolFields)).shown:
        raise faults.unsupported("tools", "Count without them.")
    return TokenizeRequest(
        model=fields.model,
        messages=_read_input(fields).messages,
        template=_template(fields),
        add_special_tokens=False,
    )


def input_tokens_body(num_tokens: int) -> bytes:
    """The answer of `/v1/responses/input_tokens`."""
    return to_json(InputTokens(input_tokens=num_tokens))


def in_words_of_responses(error: InvalidRequest) -> InvalidRequest:
    """What a backend says of a field, under the name which that field has on this route."""
    if error.param is None:
        return error
    code = error.code
    if error.param == "response_format" and code is None:
        param, code = "text.format.schema", "invalid_json_schema"
    elif error.param.startswith("response_format"):
        param = error.param.replace("response_format", "text.format")
    else:
        param = FIELDS.get(re.split(r"[.[]", error.param)[0], error.param)
    message = error.message.replace(f"'{error.param}'", f"'{param}'").replace("response_format", "text.format")
    return type(error)(message, param=param, code=code)


def _refuse_names_of_chats(present: dict[str, Any]) -> None:
    for name, hint in HINTS.items():
        if name in present:
            raise faults.unsupported(name, hint)


def _refuse(fields: ResponseFields, sampling: SamplingFields) -> None:
    """What needs an earlier response, a stored one, or more than one answer."""
    if fields.previous_response_id is not None:
        raise InvalidBody(
            f"Previous response with id '{faults.cut(fields.previous_response_id)}' not found. "
            "Responses are not stored here: send the whole history as 'input'.",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    if fields.background:
        raise faults.unsupported("background", "Responses are not stored here.")
    for name in ("conversation", "prompt"):
        if getattr(fields, name) is not None:
            raise faults.unsupported(name, "Nothing is stored here.")
    if sampling.n != 1:
        raise faults.unsupported("n")


def _read_input(fields: ResponseFields) -> Items:
    items = translate_input(fields.input, fields.instructions)
    if not items.messages:
        raise faults.invalid_value("input", "none of its items is of a kind that is known here.")
    return items


def _template(fields: ResponseFields) -> ChatTemplate:
    wire = TemplateFields(reasoning_effort=fields.reasoning.effort, chat_template_kwargs=fields.chat_template_kwargs)
    return translate_template(wire, ())


def _format(wire: TextFormat) -> dict[str, Any] | None:
    if wire.type != "json_schema":
        return response_format(ResponseFormat(type=wire.type))
    if wire.name is None:
        raise faults.missing("text.format.name")
    if wire.schema is None:
        raise faults.missing("text.format.schema")
    if not isinstance(wire.schema, dict):
        message = f"Invalid schema for response_format '{wire.name}': it is {faults.noun(wire.schema)}, not an object."
        raise InvalidBody(message, param="text.format.schema", code="invalid_json_schema")
    schema = JsonSchema(name=wire.name, schema=wire.schema, description=wire.description, strict=wire.strict)
    return response_format(ResponseFormat(type="json_schema", json_schema=schema))
