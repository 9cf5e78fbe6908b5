"""Counting: exact where there is a tokenizer, estimated and flagged where there is none, never a download."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backends.base import Backend
from backends.scripted import ScriptedBackend, ScriptedOptions
from backends.types import Chunk, GenerateRequest, Message, ToolCallDelta, Usage
from gateway.counting import Count, Counter, Tally, prompt_bytes


class Mute:
    """A backend that cannot tokenize; only its kind matters here."""


MUTE: Backend = Mute()  # type: ignore[assignment]


def chat(model: str, *texts: str) -> GenerateRequest:
    messages = tuple(Message(role="user", content=text) for text in texts)
    return GenerateRequest(request_id="r", route="chat", model=model, messages=messages)


def completion(model: str, *prompts: str | tuple[int, ...]) -> GenerateRequest:
    return GenerateRequest(request_id="r", route="completions", model=model, prompts=prompts)


def count(counter: Counter, request: GenerateRequest, backend: Backend = MUTE) -> Count:
    return asyncio.run(counter.prompt(request, backend))


def test_a_backend_that_tokenizes_is_asked() -> None:
    backend = ScriptedBackend(ScriptedOptions(models=("m",)))

    assert count(Counter(), chat("m", "one two three"), backend) == Count(3, "counted")
    assert count(Counter(), completion("m", "one two", (5, 6, 7)), backend) == Count(5, "counted")


def test_a_request_its_backend_cannot_tokenize_is_estimated_and_not_refused_here() -> None:
    backend = ScriptedBackend(ScriptedOptions(models=("m",)))

    assert count(Counter(), chat("of-another", "x" * 40), backend) == Count(10, "estimated")


@pytest.mark.parametrize(("model", "tokens"), [("gpt-4", 9), ("gpt-3.5-turbo-0125", 9), ("ft:gpt-4:acme", 9)])
def test_openai_chats_are_counted_with_the_frame_of_each_message(model: str, tokens: int) -> None:
    """3 for the answer's beginning, 3 for the message, 1 for its role, and the two of its text."""
    assert count(Counter(), chat(model, "Hello world")) == Count(tokens, "counted")


def test_openai_completions_are_counted_without_any_frame() -> None:
    assert count(Counter(), completion("davinci-002", "Hello world", (1, 2, 3))) == Count(5, "counted")


def test_a_vocabulary_that_is_not_here_is_never_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_network(address: str) -> bytes:
        raise AssertionError(f"tried to load {address}")

    monkeypatch.setattr("tiktoken.load.read_file", no_network)

    assert count(Counter(tmp_path), chat("gpt-4o", "x" * 400)) == Count(100, "estimated")


def test_a_damaged_file_in_the_cache_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tiktoken.load.read_file", lambda _: pytest.fail("tried to load"))
    damaged = tmp_path / "fb374d419588a4632f3f557e76b4b70aebbca790"  # o200k_base's place
    damaged.write_bytes(b"not a vocabulary")

    assert count(Counter(tmp_path), chat("gpt-4o-mini", "x" * 400)).source == "estimated"
    assert damaged.read_bytes() == b"not a vocabulary"


def test_unknown_models_are_estimated_by_their_bytes_and_ids_count_as_they_are() -> None:
    assert count(Counter(), completion("m", "x" * 40, (1, 2, 3))) == Count(13, "estimated")
    assert count(Counter(), completion("m", "é" * 40)) == Count(20, "estimated")


def test_estimates_follow_what_backends_report() -> None:
    counter = Counter()

    for _ in range(200):
        counter.learn("m", 2000, 1000)

    assert counter.estimate(completion("m", "x" * 40)).tokens == 20
    assert counter.estimate(completion("another", "x" * 40)).tokens == 10


def test_a_nonsensical_report_does_not_spoil_estimates() -> None:
    counter = Counter()

    counter.learn("m", 1_000_000, 8)
    counter.learn("n", 0, 0)

    assert counter.estimate(completion("m", "x" * 160)).tokens == 10
    assert counter.estimate(completion("n", "x" * 160)).tokens == 40


def test_bytes_are_those_of_utf_8() -> None:
    assert prompt_bytes(chat("m", "abc", "äö")) == 7


def test_an_answer_without_usage_is_counted_from_its_text_reasoning_and_calls() -> None:
    tally = Tally(Counter(), "gpt-4", Count(9, "counted"))

    so_far = tally.add(Chunk(usage=Usage(source="missing"), text="Hello world", reasoning="hm"))
    tally.add(Chunk(usage=Usage(source="missing"), tool_calls=(ToolCallDelta(index=0, arguments="{}"),)))

    assert so_far == Usage(prompt_tokens=9, completion_tokens=3, source="estimated")
    assert tally.count() == Usage(prompt_tokens=9, completion_tokens=4, source="counted")
    assert asyncio.run(tally.full_count(MUTE)) == tally.count()


def test_an_answer_of_a_backend_with_a_tokenizer_is_counted_by_it() -> None:
    tally = Tally(Counter(), "m", Count(2, "counted"))
    tally.add(Chunk(usage=Usage(source="missing"), text="one two three four"))

    counted = asyncio.run(tally.full_count(ScriptedBackend(ScriptedOptions(models=("m",)))))

    assert counted == Usage(prompt_tokens=2, completion_tokens=4, source="counted")


def test_one_estimated_half_makes_the_whole_an_estimate() -> None:
    tally = Tally(Counter(), "gpt-4", Count(9, "estimated"))
    tally.add(Chunk(usage=Usage(source="missing"), text="Hello"))

    assert tally.count().source == "estimated"
