"""Messages → prompt text through the model's own chat template, bending messages only where that template refuses them.

The template runs in transformers' sandbox. What it cannot take (developer or several system messages, neighbours of one
role, lists of parts) is renamed, moved or joined; nothing is dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import msgspec

from backends.errors import InvalidRequest, UnsupportedParameter
from backends.types import ChatTemplate, MediaPart, Message, ToolCall

JSON: TypeAlias = "str | int | float | bool | Sequence[JSON] | Mapping[str, JSON] | None"
Turn: TypeAlias = dict[str, JSON]

# Parameters of the renderer that a client's template variables would otherwise replace.
RESERVED_KWARGS = frozenset(
    {
        "messages",
        "conversation",
        "tools",
        "chat_template",
        "add_generation_prompt",
        "continue_final_message",
        "tokenize",
        "sanitize_control_tokens",
        "padding",
        "truncation",
        "max_length",
        "return_tensors",
        "return_dict",
        "return_assistant_tokens_mask",
        "tokenizer_kwargs",
    }
)
JOINT = "\n\n"  # between messages that had to become one


class TemplateTokenizer(Protocol):
    """The part of a transformers tokenizer that renders."""

    @property
    def chat_template(self) -> str | Mapping[str, str] | None:
        """The template's source, or several by name."""
        ...

    @property
    def apply_chat_template(self) -> Callable[..., str]:
        """Renders; with `tokenize=False` the answer is text."""
        ...


class ChatPrompt:
    """Renders with one model's template, whose habits it has found out by rendering probes."""

    def __init__(self, tokenizer: TemplateTokenizer) -> None:
        self._tokenizer = tokenizer
        source = tokenizer.chat_template
        self.exists = source is not None
        self._knows_developer = "developer" in str(source)
        self._wants_parts = not self._shows([_probe("user", "A")]) and self._shows([_probe("user", "A", parts=True)])
        self._takes_system = self._shows([self._probe("system", "A"), self._probe("user", "B")])
        mixed = zip(("system", "system", "user", "system", "user"), "ABCDE", strict=True)
        self._takes_any_system = self._takes_system and self._shows([self._probe(role, mark) for role, mark in mixed])

    def render(
        self, messages: Sequence[Message], template: ChatTemplate, tools: Sequence[Mapping[str, JSON]] | None = None
    ) -> str:
        """The prompt's text.

        Raises `InvalidRequest` when there is no template, when it refuses these messages, or when a template variable
        would replace one of the renderer's own; `UnsupportedParameter` for parts that are not text.
        """
        if not self.exists:
            raise InvalidRequest(
                "This model has no chat template, so it cannot take messages; use /v1/completions.", param="messages"
            )
        _check_kwargs(template.kwargs)
        turns = self._fit_system([self._turn(i, message) for i, message in enumerate(messages)])
        try:
            return self._apply(turns, template, tools)
        except Exception as error:  # a template is code: it may raise anything
            refusal = error
        joined = _join_neighbours(turns)
        if joined != turns:
            with contextlib.suppress(Exception):
                return self._apply(joined, template, tools)
        raise InvalidRequest(_refusal(refusal), param="messages") from refusal

    def _apply(self, turns: Sequence[Turn], template: ChatTemplate, tools: Sequence[Mapping[str, JSON]] | None) -> str:
        return self._tokenizer.apply_chat_template(
            list(turns),
            tools=list(tools) if tools else None,
            add_generation_prompt=template.add_generation_prompt,
            continue_final_message=template.continue_final_message,
            tokenize=False,
            **template.kwargs,
        )

    def _turn(self, index: int, message: Message) -> Turn:
        """One message as templates expect it; content is always there, since many templates add to it unasked."""
        turn: Turn = {"role": self._role(message.role), "content": self._content(index, message)}
        if message.name is not None:
            turn["name"] = message.name
        if message.reasoning is not None:
            turn["reasoning_content"] = message.reasoning
        if message.tool_calls:
            turn["tool_calls"] = [_call(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            turn["tool_call_id"] = message.tool_call_id
        return turn

    def _role(self, role: str) -> str:
        if role == "developer" and not self._knows_developer:
            return "system"
        return "tool" if role == "function" else role

    def _content(self, index: int, message: Message) -> JSON:
        if isinstance(message.content, tuple):
            for j, part in enumerate(message.content):
                if isinstance(part, MediaPart):
                    raise UnsupportedParameter(
                        f"This model reads text only; it cannot take a part of type {part.kind[:40]!r}.",
                        param=f"messages[{index}].content[{j}]",
                        code="unsupported_value",
                    )
        return _parts(message.text) if self._wants_parts else message.text

    def _fit_system(self, turns: list[Turn]) -> list[Turn]:
        """Move system text to where this template reads it: anywhere, first only, or inside the first user turn."""
        places = [i for i, turn in enumerate(turns) if turn["role"] == "system"]
        if not places or self._takes_any_system or (self._takes_system and places == [0]):
            return turns
        merged = turns[places[0]]
        for i in places[1:]:
            merged = _join(merged, turns[i])
        others = [turn for turn in turns if turn["role"] != "system"]
        if self._takes_system:
            return [merged, *others]
        user = next((i for i, turn in enumerate(others) if turn["role"] == "user"), None)
        if user is None:
            return [{**merged, "role": "user"}, *others]
        others[user] = {**others[user], "content": _join(merged, others[user])["content"]}
        return others

    def _probe(self, role: str, mark: str) -> Turn:
        return _probe(role, mark, parts=self._wants_parts)

    def _shows(self, turns: Sequence[Turn]) -> bool:
        """Whether the template renders these probes with all their texts, in order."""
        if not self.exists:
            return False
        try:
            text = self._apply(turns, ChatTemplate(), None)
        except Exception:  # whatever a template raises, it does not take these
            return False
        places = [text.find(_mark(mark)) for mark in "ABCDE"[: len(turns)]]
        return -1 not in places and places == sorted(places)


def _mark(letter: str) -> str:
    return f"laneway probe {letter}"


def _probe(role: str, mark: str, parts: bool = False) -> Turn:
    return {"role": role, "content": _parts(_mark(mark)) if parts else _mark(mark)}


def _parts(text: str) -> JSON:
    return [{"type": "text", "text": text}]


def _join(first: Turn, second: Turn) -> Turn:
    """One turn with both contents; strings meet with an empty line between, lists follow each other."""
    a, b = first["content"], second["content"]
    if isinstance(a, str) and isinstance(b, str):
        return {**first, "content": JOINT.join(text for text in (a, b) if text)}
    assert isinstance(a, list) and isinstance(b, list)
    return {**first, "content": [*a, *b]}


def _join_neighbours(turns: Sequence[Turn]) -> list[Turn]:
    """For templates that demand alternating roles. Turns with tool calls and tool answers keep their own place."""
    joined: list[Turn] = []
    for turn in turns:
        plain = turn["role"] in ("user", "assistant", "system") and "tool_calls" not in turn
        if joined and plain and joined[-1]["role"] == turn["role"] and "tool_calls" not in joined[-1]:
            joined[-1] = _join(joined[-1], turn)
        else:
            joined.append(turn)
    return joined


def _call(call: ToolCall) -> JSON:
    """A call of the history. Arguments become an object, as templates expect; anything else becomes an empty one."""
    try:
        arguments = msgspec.json.decode(call.arguments)
    except msgspec.DecodeError:
        arguments = {}
    if not isinstance(arguments, dict):
        arguments = {}
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _check_kwargs(kwargs: Mapping[str, object]) -> None:
    for name in kwargs:
        if name in RESERVED_KWARGS:
            raise InvalidRequest(
                f"chat_template_kwargs cannot set {name!r}: the request's own fields decide it.",
                param=f"chat_template_kwargs.{name}",
            )


def _refusal(error: Exception) -> str:
    """The template's own words when it raised on purpose; else only the kind of failure, since details are code."""
    said = str(error).strip().split("\n")[0][:200]
    if type(error).__module__.startswith("jinja2") or isinstance(error, ValueError):
        return f"The model's chat template refuses these messages: {said}"
    return f"The model's chat template cannot render these messages ({type(error).__name__})."
