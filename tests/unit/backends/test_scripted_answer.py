"""Choices played from a script, without waiting: what comes of tokens, caps, stops, reasoning, calls and `best_of`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from backends.script import read_script
from backends.scripted_answer import Answer, Prompt
from backends.types import Chunk, FinishReason, GenerateRequest, SamplingParams, Usage
from backends.words import Vocabulary, split_words, word_id

STOP, LENGTH, TOOL_CALLS = FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS


def _play(script: object = None, prompts: Sequence[str] = ("hi you",), **sampling: Any) -> list[Chunk]:
    words = [Prompt(split_words(prompt)) for prompt in prompts]
    request = GenerateRequest(request_id="r", route="chat", model="m", sampling=SamplingParams(**sampling))
    answer = Answer(words, read_script({"script": script}), request, 8192, Vocabulary())
    chunks = list(answer.open())
    while not answer.done:
        chunks += answer.step()
    return chunks


def _text(chunks: Sequence[Chunk], index: int = 0) -> str:
    return "".join(chunk.text for chunk in chunks if chunk.index == index)


def _ends(chunks: Sequence[Chunk]) -> dict[int, FinishReason]:
    return {chunk.index: chunk.finish_reason for chunk in chunks if chunk.finish_reason is not None}


def test_the_script_is_said_token_by_token() -> None:
    chunks = _play({"tokens": ["He", "llo"], "cached_tokens": 1})

    assert [chunk.text for chunk in chunks] == ["", "He", "llo", ""]
    assert chunks[-1].usage == Usage(prompt_tokens=2, completion_tokens=3, cached_tokens=1)


def test_an_empty_script_ends_at_once() -> None:
    chunks = _play({})

    assert _text(chunks) == ""
    assert chunks[-1].finish_reason is STOP
    assert chunks[-1].usage.completion_tokens == 1


def test_fragments_of_a_character_come_out_whole_with_all_their_rows() -> None:
    chunks = _play({"tokens": [{"bytes": [195]}, {"bytes": [169]}, {"bytes": [240]}]}, logprobs=0)

    assert [chunk.text for chunk in chunks] == ["", "", "é", "", "\N{REPLACEMENT CHARACTER}"]
    assert [len(chunk.logprobs or ()) for chunk in chunks] == [0, 0, 2, 0, 1]


@pytest.mark.parametrize(
    ("cap", "text", "reason", "billed"),
    [(0, "", LENGTH, 0), (1, "a", LENGTH, 1), (2, "ab", LENGTH, 2), (3, "ab", STOP, 3), (None, "ab", STOP, 3)],
)
def test_a_cap_before_the_end_token_is_length_and_together_with_it_is_stop(
    cap: int | None, text: str, reason: FinishReason, billed: int
) -> None:
    chunks = _play({"tokens": ["a", "b"]}, max_tokens=cap)

    assert (_text(chunks), chunks[-1].finish_reason) == (text, reason)
    assert chunks[-1].usage.completion_tokens == billed


@pytest.mark.parametrize("endless", [{"script": {"eos": False}}, {"ignore_eos": True}])
def test_without_an_end_the_last_token_is_repeated(endless: dict[str, Any]) -> None:
    script = {"tokens": ["a", "b"]} | endless.get("script", {})

    chunks = _play(script, max_tokens=5, ignore_eos=endless.get("ignore_eos", False))

    assert _text(chunks) == "abbbb"
    assert chunks[-1].finish_reason is LENGTH


def test_without_an_end_and_without_a_token_the_answer_is_empty_up_to_the_cap() -> None:
    chunks = _play({"eos": False}, max_tokens=3, logprobs=0)

    assert _text(chunks) == ""
    assert all(chunk.logprobs is None for chunk in chunks)
    assert chunks[-1].finish_reason is LENGTH
    assert chunks[-1].usage.completion_tokens == 3


def test_min_tokens_hold_off_the_end_stop_strings_and_stop_ids() -> None:
    script = {"tokens": ["a", "b"]}

    held = _play(script, min_tokens=4)
    stopped = _play(script, min_tokens=4, stop=("b",))
    by_id = _play(script, min_tokens=3, stop_token_ids=(word_id(b"b"),))

    assert (_text(held), held[-1].usage.completion_tokens) == ("abbb", 5)
    assert (_text(stopped), stopped[-1].usage.completion_tokens) == ("abb", 4)
    assert (_text(by_id), by_id[-1].usage.completion_tokens) == ("abb", 4)


def test_a_stop_string_across_tokens_is_cut_and_what_it_cost_is_billed() -> None:
    script = {"tokens": ["quick br", "own f", "ox jumps", " over"]}

    chunks = _play(script, stop=("own fox",), logprobs=0)

    assert _text(chunks) == "quick br"
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == (STOP, "own fox")
    assert chunks[-1].usage.completion_tokens == 3
    assert [row.token for chunk in chunks for row in chunk.logprobs or ()] == ["quick br"]


def test_a_stop_token_ends_without_its_text_and_is_named() -> None:
    chunks = _play({"tokens": ["a", "b", "c"]}, stop_token_ids=(word_id(b"b"),))

    assert _text(chunks) == "a"
    assert (chunks[-1].finish_reason, chunks[-1].stop_reason) == (STOP, word_id(b"b"))
    assert chunks[-1].usage.completion_tokens == 2


def test_a_stop_string_on_the_last_token_of_the_cap_is_a_stop() -> None:
    chunks = _play({"tokens": ["a", "b"]}, max_tokens=2, stop=("b",))

    assert (_text(chunks), chunks[-1].finish_reason) == ("a", STOP)


def test_logprobs_and_alternatives_come_as_told() -> None:
    script = {"tokens": ["a", "b"], "logprobs": [-0.25], "top": [{"z": -3, "a": -0.25, "y": -2}]}

    chunks = _play(script, logprobs=2)

    first, second = (row for chunk in chunks for row in chunk.logprobs or ())
    assert (first.token, first.logprob, first.bytes) == ("a", -0.25, b"a")
    assert [(top.token, top.logprob) for top in first.top] == [("a", -0.25), ("y", -2)]
    assert (second.logprob, second.top) == (-0.5, ())
    assert all(chunk.logprobs is None for chunk in _play(script))


def test_choices_of_several_prompts_come_interleaved() -> None:
    chunks = _play(prompts=("a b", "c"), n=2)

    assert [chunk.index for chunk in chunks[1:]] == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert [_text(chunks, index) for index in range(4)] == ["a b", "a b", "c", "c"]
    assert _ends(chunks) == dict.fromkeys(range(4), STOP)
    assert chunks[-1].usage == Usage(prompt_tokens=3, completion_tokens=10)


def test_a_choice_can_be_told_otherwise() -> None:
    script = {"tokens": ["a"], "choices": [{}, {"tokens": ["x", "y"]}, {"tool_calls": [{"name": "f"}]}]}

    chunks = _play(script, n=3)

    assert [_text(chunks, index) for index in range(3)] == ["a", "xy", "a"]
    assert _ends(chunks) == {0: STOP, 1: STOP, 2: TOOL_CALLS}


def test_best_of_gives_the_most_likely_and_bills_all() -> None:
    choices = [{"logprobs": [-3]}, {"tokens": ["good"], "logprobs": [-0.1]}, {"tokens": ["fair"], "logprobs": [-1]}]

    chunks = _play({"tokens": ["bad"], "choices": choices}, n=2, best_of=3)

    assert [_text(chunks, index) for index in range(2)] == ["good", "fair"]
    assert _ends(chunks) == {0: STOP, 1: STOP}
    assert chunks[-1].usage.completion_tokens == 6


def test_reasoning_comes_before_the_text_and_knows_no_stop_strings() -> None:
    chunks = _play({"reasoning": ["let ", "me"], "tokens": ["ok"]}, stop=("me",), logprobs=0)

    assert [(chunk.reasoning, chunk.text) for chunk in chunks[1:-1]] == [("let ", ""), ("me", ""), ("", "ok")]
    assert sum(len(chunk.logprobs or ()) for chunk in chunks) == 1
    assert chunks[-1].usage == Usage(prompt_tokens=2, completion_tokens=4, reasoning_tokens=2)


def test_min_tokens_count_the_reasoning() -> None:
    chunks = _play({"reasoning": ["hm"], "tokens": ["a", "b"]}, min_tokens=2, stop=("a",))

    assert (_text(chunks), chunks[-1].usage.completion_tokens) == ("", 2)


def test_calls_come_after_the_text_piece_by_piece() -> None:
    script = {"tokens": ["ab"], "tool_calls": [{"name": "f", "arguments": ['{"a"', ":1}"]}, {"name": "g"}]}

    chunks = _play(script, stop=("bX",))

    deltas = [delta for chunk in chunks for delta in chunk.tool_calls]
    assert [(delta.index, delta.name, delta.arguments) for delta in deltas] == [
        (0, "f", '{"a"'),
        (0, None, ":1}"),
        (1, "g", ""),
    ]
    ids = [delta.id for delta in deltas if delta.name is not None]
    assert len(set(ids)) == 2
    assert all(call_id is not None and call_id.startswith("call_") and len(call_id) == 29 for call_id in ids)
    assert _text(chunks) == "ab", "held text comes out before the call"
    assert chunks[-1].finish_reason is TOOL_CALLS
    assert chunks[-1].usage.completion_tokens == 5


def test_a_cap_inside_a_call_is_length() -> None:
    chunks = _play({"tool_calls": [{"name": "f", "arguments": ["{", "}"]}]}, max_tokens=1)

    assert chunks[-1].tool_calls[0].arguments == "{"
    assert chunks[-1].finish_reason is LENGTH
