"""Messages reach every template in a form it takes, in order and whole; what it refuses is the caller's error."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from transformers import PreTrainedTokenizerFast

from backends.errors import InvalidRequest, UnsupportedParameter
from backends.hf.chat_template import ChatPrompt
from backends.hf.tokenizer import HFTokenizer
from backends.types import ChatTemplate, MediaPart, Message, TextPart, ToolCall
from tests.unit.backends.hf.fake_tokenizers import CHATML, byte_level

# Refuses a system message and turns that do not alternate, as Gemma and early Mistral do.
STRICT = (
    "{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant') }}{% endif %}"
    "[{{ m['role'] }}:{{ m['content'] }}]{% endfor %}"
)
# Reads a system message in first place only and drops the others without a word.
FIRST_ONLY = (
    "{% if messages[0]['role'] == 'system' %}[system:{{ messages[0]['content'] }}]{% endif %}"
    "{% for m in messages %}{% if m['role'] != 'system' %}[{{ m['role'] }}:{{ m['content'] }}]{% endif %}{% endfor %}"
)
# Wants lists of parts, as models that also see do.
PARTS = (
    "{% for m in messages %}[{{ m['role'] }}:{% for part in m['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}]{% endfor %}"
)
TOOLS = (
    "{% for m in messages %}[{{ m['role'] }}:{{ m['content'] }}"
    "{% for c in m['tool_calls'] or [] %}{{ c.function.name }}({% for k, v in c.function.arguments.items() %}"
    "{{ k }}={{ v }}{% endfor %}){% endfor %}]{% endfor %}"
)


def prompt(template: str | None) -> ChatPrompt:
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level(), bos_token="<|bos|>", eos_token="<|end|>")
    tokenizer.chat_template = template
    return ChatPrompt(cast(HFTokenizer, tokenizer))


def render(template: str | None, *messages: Message, **options: object) -> str:
    return prompt(template).render(messages, ChatTemplate(add_generation_prompt=False, **options))  # type: ignore[arg-type]


def said(role: str) -> Callable[[str], Message]:
    return lambda text: Message(role=role, content=text)  # type: ignore[arg-type]


system, user, assistant, developer = said("system"), said("user"), said("assistant"), said("developer")


def test_messages_are_rendered_as_they_are_where_the_template_takes_them() -> None:
    assert render(CHATML, system("S"), user("A"), system("T"), user("B")) == (
        "<system>S</><user>A</><system>T</><user>B</>"
    )


def test_developer_becomes_system_unless_the_template_knows_it() -> None:
    knows = CHATML + "{# developer #}"

    assert render(CHATML, developer("D"), user("A")) == "<system>D</><user>A</>"
    assert render(knows, developer("D"), user("A")) == "<developer>D</><user>A</>"


def test_late_system_messages_move_to_the_front_where_they_would_be_dropped() -> None:
    assert render(FIRST_ONLY, user("A"), system("S"), user("B"), system("T")) == "[system:S\n\nT][user:A][user:B]"
    assert render(FIRST_ONLY, system("S"), user("A")) == "[system:S][user:A]"


def test_system_text_joins_the_first_user_turn_where_the_role_is_refused() -> None:
    assert render(STRICT, system("S"), user("A"), assistant("B"), user("C")) == "[user:S\n\nA][assistant:B][user:C]"
    assert render(STRICT, system("S")) == "[user:S]"


def test_neighbours_of_one_role_are_joined_where_the_template_wants_turns_to_alternate() -> None:
    assert render(STRICT, user("A"), user("B"), assistant("C"), user("D")) == "[user:A\n\nB][assistant:C][user:D]"
    assert render(CHATML, user("A"), user("B")) == "<user>A</><user>B</>"


def test_parts_are_joined_for_templates_that_want_text_and_kept_as_a_list_for_the_others() -> None:
    message = Message(role="user", content=(TextPart("one"), TextPart("two")))

    assert render(CHATML, message) == "<user>one\ntwo</>"
    assert render(PARTS, message, assistant("plain")) == "[user:one\ntwo][assistant:plain]"


def test_a_part_that_is_no_text_is_refused_with_its_place() -> None:
    message = Message(role="user", content=(TextPart("look"), MediaPart("image_url")))

    with pytest.raises(UnsupportedParameter, match="image_url") as caught:
        render(CHATML, user("hi"), message)
    assert caught.value.param == "messages[1].content[1]"


@pytest.mark.parametrize("arguments", ['{"city": "Rome"}', "null", "", "[]", "{broken", '"text"'])
def test_tool_arguments_reach_the_template_as_an_object(arguments: str) -> None:
    call = Message(role="assistant", tool_calls=(ToolCall(id="c", name="weather", arguments=arguments),))
    answer = Message(role="tool", content="sunny", tool_call_id="c")
    expected = "city=Rome" if "Rome" in arguments else ""

    assert render(TOOLS, user("A"), call, answer) == f"[user:A][assistant:weather({expected})][tool:sunny]"


def test_empty_and_missing_contents_are_rendered_as_nothing() -> None:
    assert render(CHATML, user(""), Message(role="assistant"), user("B")) == "<user></><assistant></><user>B</>"


def test_the_templates_own_words_explain_a_refusal() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        render(STRICT, assistant("A"), user("B"))
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "template", ["{{ 1 / 0 }}", "{{ messages[0].content + 1 }}", "{% broken", "{{ nothing.at.all }}"]
)
def test_a_broken_template_is_an_error_and_not_a_crash(template: str) -> None:
    with pytest.raises(InvalidRequest):
        render(template, user("A"))


def test_a_template_cannot_reach_python() -> None:
    with pytest.raises(InvalidRequest):
        render("{{ ''.__class__.__mro__[1].__subclasses__() }}", user("A"))


@pytest.mark.parametrize("name", ["messages", "tools", "tokenize", "chat_template", "add_generation_prompt"])
def test_template_variables_cannot_replace_what_the_request_decides(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name) as caught:
        render(CHATML, user("A"), kwargs={name: "x"})
    assert caught.value.param == f"chat_template_kwargs.{name}"


def test_other_template_variables_reach_the_template() -> None:
    assert render("{{ mood }} {{ messages[0].content }}", user("A"), kwargs={"mood": "calm"}) == "calm A"


def test_the_last_message_can_be_continued() -> None:
    assert render(CHATML, user("A"), assistant("So"), continue_final_message=True) == "<user>A</><assistant>So"


def test_a_model_without_a_template_says_where_to_go() -> None:
    with pytest.raises(InvalidRequest, match="/v1/completions"):
        render(None, user("A"))
