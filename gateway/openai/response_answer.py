"""Chunks → a response, as a stream of events or as one body. Both come from the steps of one `Output`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from backends.types import Chunk, ToolCallDelta, Usage
from gateway.openai.chat_answer import ChatAnswer, ChatChoice, Piece
from gateway.openai.response_shapes import (
    CustomCallItem,
    FunctionCallItem,
    IncompleteDetails,
    InputTokensDetails,
    Item,
    ItemStatus,
    MessageItem,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    Response,
    ResponseError,
    ResponseEvent,
    ResponseHead,
    ResponseUsage,
)
from gateway.openai.text import to_json

Rows: TypeAlias = list[dict[str, Any]]  # logprobs, a row a token


class ResponseAnswer(Struct, frozen=True, kw_only=True):
    """What of a request shapes its response. Calls of `custom_tools` are shown as such and not as functions'."""

    head: ResponseHead
    chat: ChatAnswer
    custom_tools: Collection[str] = frozenset()


class Step(Struct, frozen=True):
    """One thing that happened to a response: an event but for its number."""

    type: str
    members: dict[str, Any]


class Growing(ABC):
    """An item while it is made. `at` is its place among the items of its response."""

    prefix: str  # of its id

    def __init__(self, response_id: str, at: int) -> None:
        self.id = f"{self.prefix}_{response_id.removeprefix('resp_')}{at:04x}"
        self.at = at
        self.status: ItemStatus = "in_progress"

    @abstractmethod
    def item(self) -> Item:
        """The item with all that it has by now."""

    def opened(self) -> Iterator[Step]:
        """It is there, and empty."""
        yield Step("response.output_item.added", {"output_index": self.at, "item": self.item()})

    def closed(self, status: ItemStatus) -> Iterator[Step]:
        """It is whole, or was cut."""
        self.status = status
        yield Step("response.output_item.done", {"output_index": self.at, "item": self.item()})

    def step(self, event: str, **members: Any) -> Step:
        """A step inside it."""
        return Step(f"response.{event}", {"output_index": self.at, "item_id": self.id, **members})


class Message(Growing):
    """The text of the answer, in one part."""

    prefix = "msg"

    def __init__(self, response_id: str, at: int) -> None:
        super().__init__(response_id, at)
        self._pieces: list[str] = []
        self._rows: Rows = []

    def item(self) -> Item:
        """Without its part until the first piece of text."""
        return MessageItem(id=self.id, status=self.status, content=[self._part()] if self._pieces else [])

    def opened(self) -> Iterator[Step]:
        """The item, then its part."""
        yield from super().opened()
        yield self.step("content_part.added", content_index=0, part=self._part())

    def add(self, text: str, rows: Rows) -> Iterator[Step]:
        """More text. Rows without text are of tokens that show nothing, and are told at the end."""
        self._pieces.append(text)
        self._rows += rows
        if text:
            yield self.step("output_text.delta", content_index=0, delta=text, logprobs=rows)

    def closed(self, status: ItemStatus) -> Iterator[Step]:
        """The text, the part and the item, each whole."""
        part = self._part()
        yield self.step("output_text.done", content_index=0, text=part.text, logprobs=part.logprobs)
        yield self.step("content_part.done", content_index=0, part=part)
        yield from super().closed(status)

    def _part(self) -> OutputText:
        return OutputText(text="".join(self._pieces), logprobs=[*self._rows])


class Reasoning(Growing):
    """The thoughts before the answer, in one part."""

    prefix = "rs"

    def __init__(self, response_id: str, at: int) -> None:
        super().__init__(response_id, at)
        self._pieces: list[str] = []

    def item(self) -> Item:
        """Without its part until the first piece of text."""
        return ReasoningItem(id=self.id, status=self.status, content=[self._part()] if self._pieces else [])

    def opened(self) -> Iterator[Step]:
        """The item, then its part."""
        yield from super().opened()
        yield self.step("content_part.added", content_index=0, part=self._part())

    def add(self, text: str) -> Iterator[Step]:
        """More text."""
        self._pieces.append(text)
        yield self.step("reasoning_text.delta", content_index=0, delta=text)

    def closed(self, status: ItemStatus) -> Iterator[Step]:
        """The text, the part and the item, each whole."""
        part = self._part()
        yield self.step("reasoning_text.done", content_index=0, text=part.text)
        yield self.step("content_part.done", content_index=0, part=part)
        yield from super().closed(status)

    def _part(self) -> ReasoningText:
        return ReasoningText(text="".join(self._pieces))


class Call(Growing):
    """A call of a function."""

    prefix = "fc"

    def __init__(self, response_id: str, at: int, begun: ToolCallDelta) -> None:
        super().__init__(response_id, at)
        self.call_id, self.name = begun.id or "", begun.name or ""
        self._pieces: list[str] = []

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self._pieces)

    def item(self) -> Item:
        """With the arguments so far."""
        return FunctionCallItem(
            id=self.id, status=self.status, call_id=self.call_id, name=self.name, arguments=self.arguments
        )

    def add(self, arguments: str) -> Iterator[Step]:
        """More of the arguments."""
        self._pieces.append(arguments)
        yield self.step("function_call_arguments.delta", delta=arguments)

    def closed(self, status: ItemStatus) -> Iterator[Step]:
        """The arguments and the item, each whole."""
        yield self.step("function_call_arguments.done", name=self.name, arguments=self.arguments)
        yield from super().closed(status)


class CustomCall(Call):
    """A call of a custom tool. To the model it is a function, so its text can be read once the arguments are whole."""

    prefix = "ctc"

    def item(self) -> Item:
        """With the text as far as it can be read."""
        text = custom_input(self.arguments)
        return CustomCallItem(id=self.id, status=self.status, call_id=self.call_id, name=self.name, input=text)

    def add(self, arguments: str) -> Iterator[Step]:
        """More of the arguments, which shows nothing."""
        self._pieces.append(arguments)
        yield from ()

    def closed(self, status: ItemStatus) -> Iterator[Step]:
        """The text and the item, each whole."""
        text = custom_input(self.arguments)
        if text:
            yield self.step("custom_tool_call_input.delta", delta=text)
        yield self.step("custom_tool_call_input.done", input=text)
        yield from Growing.closed(self, status)


class Output:
    """A response while it is made: its items, and the steps in which they come.

    A message and thoughts end where an item of another kind begins. Calls stay open to the end of the answer, since
    their pieces may come mixed.
    """

    def __init__(self, answer: ResponseAnswer) -> None:
        self._answer = answer
        self._head = asdict(answer.head)
        self._choice = ChatChoice(answer.chat)
        self._items: list[Growing] = []
        self._text: Message | Reasoning | None = None  # the one that grows
        self._calls: dict[int, Call] = {}
        self._usage = Usage()

    def take(self, chunk: Chunk) -> Iterator[Step]:
        """What `chunk` adds."""
        self._usage = chunk.usage
        piece = self._choice.take(chunk)
        if piece is None:
            return
        if piece.reasoning:
            yield from self._think(piece.reasoning)
        rows = piece.logprobs or []
        if piece.text or (rows and isinstance(self._text, Message)):
            yield from self._say(piece.text, rows)
        for call in piece.calls:
            yield from self._call(call)
        if piece.finish_reason is not None:
            yield from self._end(piece)

    def response(self) -> Response:
        """The response so far."""
        match self._choice.finish_reason:
            case None:
                return self._response(status="in_progress")
            case "length":
                details = IncompleteDetails(reason="max_output_tokens")
            case "content_filter":
                details = IncompleteDetails(reason="content_filter")
            case _:
                return self._response(status="completed", usage=_usage(self._usage))
        return self._response(status="incomplete", usage=_usage(self._usage), incomplete_details=details)

    def failed(self, error: ResponseError) -> Response:
        """The response as far as it came before it failed."""
        for growing in self._items:
            if growing.status == "in_progress":
                growing.status = "incomplete"
        return self._response(status="failed", error=error)

    def _response(self, **members: Any) -> Response:
        return Response(**self._head, output=[growing.item() for growing in self._items], **members)

    def _think(self, text: str) -> Iterator[Step]:
        thought = self._text
        if not isinstance(thought, Reasoning):
            yield from self._end_text("completed")
            thought = self._text = Reasoning(*self._place())
            yield from self._begin(thought)
        yield from thought.add(text)

    def _say(self, text: str, rows: Rows) -> Iterator[Step]:
        message = self._text
        if not isinstance(message, Message):
            yield from self._end_text("completed")
            message = self._text = Message(*self._place())
            yield from self._begin(message)
        yield from message.add(text, rows)

    def _call(self, delta: ToolCallDelta) -> Iterator[Step]:
        call = self._calls.get(delta.index)
        if call is None:
            yield from self._end_text("completed")
            kind = CustomCall if delta.name in self._answer.custom_tools else Call
            call = self._calls[delta.index] = kind(*self._place(), delta)
            yield from self._begin(call)
        if delta.arguments:
            yield from call.add(delta.arguments)

    def _end(self, last: Piece) -> Iterator[Step]:
        """An answer that ended by itself has a call or a message, which may be empty."""
        is_cut = last.finish_reason in ("length", "content_filter")
        if not is_cut and all(isinstance(growing, Reasoning) for growing in self._items):
            yield from self._say("", [])
        status: ItemStatus = "incomplete" if is_cut else "completed"
        yield from self._end_text(status)
        for call in self._calls.values():
            yield from call.closed(status)

    def _end_text(self, status: ItemStatus) -> Iterator[Step]:
        text, self._text = self._text, None
        if text is not None:
            yield from text.closed(status)

    def _begin(self, growing: Growing) -> Iterator[Step]:
        self._items.append(growing)
        yield from growing.opened()

    def _place(self) -> tuple[str, int]:
        return self._answer.head.id, len(self._items)


class ResponseStream:
    """Chunks → events, each with its type twice and a number. There is no end mark."""

    def __init__(self, answer: ResponseAnswer) -> None:
        self._output = Output(answer)
        self._num_events = 0

    def encode(self, chunk: Chunk) -> bytes:
        """The events that show `chunk`; before the first of them the response itself."""
        empty = None if self._num_events else self._output.response()
        steps = list(self._output.take(chunk))
        if empty is not None and steps:
            steps = [_about("created", empty), _about("in_progress", empty), *steps]
        return b"".join(self._event(step) for step in steps)

    def finish(self) -> bytes:
        """The whole response, with its usage."""
        response = self._output.response()
        return self._event(_about(response.status, response))

    def fail(self, envelope: bytes) -> bytes:
        """The failed response, then the error in both its forms: each is all that some client heeds."""
        error = msgspec.json.decode(envelope)["error"]
        told = ResponseError(code=error["code"] or error["type"], message=error["message"])
        members = {"code": told.code, "message": told.message, "param": error["param"], "error": error}
        return self._event(_about("failed", self._output.failed(told))) + self._event(Step("error", members))

    def _event(self, step: Step) -> bytes:
        event = ResponseEvent(type=step.type, sequence_number=self._num_events, **step.members)
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (step.type.encode(), to_json(event))


class ResponseFolder:
    """Chunks → one `response` object."""

    def __init__(self, answer: ResponseAnswer) -> None:
        self._output = Output(answer)

    def add(self, chunk: Chunk) -> None:
        """Take in the next chunk."""
        for _ in self._output.take(chunk):
            pass

    def body(self) -> bytes:
        """The response."""
        return to_json(self._output.response())


def custom_input(arguments: str) -> str:
    """The text in the arguments of the function that a custom tool is to the model, which may have got them wrong."""
    try:
        text = msgspec.json.decode(arguments)["input"]
    except (msgspec.DecodeError, TypeError, LookupError, RecursionError):
        return arguments
    return text if isinstance(text, str) else arguments


def _about(what: str, response: Response) -> Step:
    return Step(f"response.{what}", {"response": response})


def _usage(usage: Usage) -> ResponseUsage:
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(cached_tokens=usage.cached_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
    )
