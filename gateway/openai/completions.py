"""`/v1/completions`: the body, its rules, and its translation. No chat template is applied on this route, ever."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from backends.types import GenerateRequest, SamplingParams
from gateway.openai import faults, strict
from gateway.openai.answer import Reply
from gateway.openai.caller import Caller
from gateway.openai.completion_answer import CompletionAnswer, CompletionFolder, CompletionStream
from gateway.openai.decoding import decode_request, names_of, read
from gateway.openai.formats import FormatFields, response_format, structured_outputs
from gateway.openai.prompts import Prompt, read_prompts
from gateway.openai.sampling import CountOrZero, SamplingFields, check_sampling, sampling_params
from gateway.openai.unknown import refuse_unknown
from gateway.openai.unused import UNUSED_GROUPS, check_unused
from gateway.openai.wire import LENIENT, WireOptions


class CompletionFields(Struct, frozen=True, kw_only=True):
    """The fields that only a completion has. `prompt` is read by `prompts.py`, since it comes in four shapes.

    Its default is the empty text, which models with a begin token can continue.
    """

    prompt: Any = ""
    max_tokens: CountOrZero = 16
    logprobs: Annotated[int, Meta(ge=0, le=5)] | None = None
    best_of: Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: str = ""
    prompt_embeds: Any = None
    add_special_tokens: bool = True


_GROUPS = (CompletionFields, SamplingFields, FormatFields, *UNUSED_GROUPS)
_KNOWN = names_of(*_GROUPS)


class CompletionRequest(Struct, frozen=True, kw_only=True):
    """A completion, read and found in order. `body` is what the client sent, `extra` what nothing here knows."""

    fields: CompletionFields
    sampling: SamplingFields
    prompts: tuple[Prompt, ...]
    params: SamplingParams
    exact_cap: str | None
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
            route="completions",
            model=self.model,
            prompts=self.prompts,
            sampling=self.params,
            exact_cap=self.exact_cap,
            add_special_tokens=self.fields.add_special_tokens,
            response_format=self.response_format,
            structured_outputs=self.structured_outputs,
            stream=self.stream,
            body=self.body,
            extra=self.extra,
        )
        return caller.stamp(request)

    def encoder(self, request_id: str, created: int) -> CompletionStream:
        """What turns the answer's chunks into events."""
        return CompletionStream(self._answer(request_id, created))

    def folder(self, request_id: str, created: int) -> CompletionFolder:
        """What turns the answer's chunks into one body."""
        return CompletionFolder(self._answer(request_id, created))

    def _answer(self, request_id: str, created: int) -> CompletionAnswer:
        return CompletionAnswer(
            reply=Reply.to("cmpl-", request_id, created, self.sampling),
            num_choices=len(self.prompts) * self.params.n,
            logprobs=self.params.logprobs,
        )


def decode_completion(body: bytes, options: WireOptions = LENIENT) -> CompletionRequest:
    """The completion in `body`, checked whole. Raises `InvalidBody` for the first fault."""
    whole, present = decode_request(body)
    if options.refuses_unknown:
        refuse_unknown(whole, _GROUPS)
    fields = read(present, CompletionFields)
    prompts = read_prompts(fields.prompt, "prompt")
    sampling = read(present, SamplingFields)
    formats = read(present, FormatFields)
    if options.strict:
        strict.check_shared(sampling, formats)
    check_unused(present)
    check_sampling(sampling, fields.max_tokens)
    _check_completion(fields)
    return CompletionRequest(
        fields=fields,
        sampling=sampling,
        prompts=prompts,
        params=sampling_params(
            sampling,
            max_tokens=fields.max_tokens,
            logprobs=fields.logprobs,
            echo=sampling.echo,
            best_of=_best_of(fields, sampling),
        ),
        exact_cap="max_tokens" if options.strict and "max_tokens" in present else None,
        response_format=response_format(formats.response_format),
        structured_outputs=structured_outputs(formats),
        body=whole,
        extra={name: value for name, value in whole.items() if name not in _KNOWN},
    )


def _check_completion(fields: CompletionFields) -> None:
    """Refuse what no backend can do, since leaving it out would change the answer."""
    if fields.suffix:
        raise faults.unsupported("suffix")
    if fields.prompt_embeds is not None:
        raise faults.unsupported("prompt_embeds")


def _best_of(fields: CompletionFields, sampling: SamplingFields) -> int | None:
    """How many choices to draw the best `n` from; None when that is `n` itself, so that backends need not look."""
    best_of, n = fields.best_of, sampling.n
    if best_of is None or best_of == n:
        return None
    if best_of < n:
        raise faults.invalid_value("best_of", f"it must be at least 'n', which is {n}, but got {best_of}.")
    if sampling.stream:
        raise faults.combination(
            "best_of", f"'best_of' must not be more than 'n', which is {n}, when 'stream' is true."
        )
    return best_of
