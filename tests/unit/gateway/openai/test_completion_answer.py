"""What a client sees of a completion's answer: each event to the byte, and the whole as the sum of its events."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion

from backends.types import Chunk, FinishReason, TokenLogprob, TopLogprob, Usage
from gateway.openai.answer import system_fingerprint
from gateway.openai.completions import CompletionRequest, decode_completion

NONE = Usage()
HEAD = (
    'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","system_fingerprint":"'
    + system_fingerprint("m")
    + '","choices":['
)
DONE = "data: [DONE]\n\n"


def request(**members: Any) -> CompletionRequest:
    return decode_completion(msgspec.json.encode({"model": "m", "prompt": "p", **members}))


def text(piece: str, index: int = 0, **members: Any) -> Chunk:
    return Chunk(usage=NONE, index=index, text=piece, **members)


def end(reason: FinishReason = FinishReason.STOP, index: int = 0, usage: Usage = NONE, **members: Any) -> Chunk:
    return Chunk(usage=usage, index=index, finish_reason=reason, **members)


def row(
    token: str, logprob: float | None = -0.5, raw: bytes | None = None, top: dict[str, float] | None = None
) -> TokenLogprob:
    others = tuple(TopLogprob(name, value, name.encode()) for name, value in (top or {}).items())
    return TokenLogprob(token, logprob, token.encode() if raw is None else raw, others)


def streamed(chunks: list[Chunk], **members: Any) -> str:
    encoder = request(**members).encoder("req_1", 1)
    return b"".join([*(encoder.encode(chunk) for chunk in chunks), encoder.finish()]).decode()


def folded(chunks: list[Chunk], **members: Any) -> dict[str, Any]:
    folder = request(**members).folder("req_1", 1)
    for chunk in chunks:
        folder.add(chunk)
    body: dict[str, Any] = msgspec.json.decode(folder.body())
    return body


def events(wire: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line.removeprefix("data: ")) for line in wire.split("\n\n")[:-2]]


def test_a_stream_is_text_finish_and_end_mark() -> None:
    wire = streamed([Chunk(usage=NONE), text("Hi"), end()])

    assert wire == (
        HEAD
        + '{"index":0,"text":"Hi","logprobs":null,"finish_reason":null}]}\n\n'
        + HEAD
        + '{"index":0,"text":"","logprobs":null,"finish_reason":"stop"}]}\n\n'
        + DONE
    )


def test_usage_comes_in_one_last_event_without_choices() -> None:
    usage = Usage(prompt_tokens=2, completion_tokens=1)

    wire = events(streamed([text("a"), end(usage=usage)], stream=True, stream_options={"include_usage": True}))

    assert [event["usage"] for event in wire[:-1]] == [None, None]
    assert wire[-1]["choices"] == []
    assert wire[-1]["usage"]["total_tokens"] == 3


def test_the_body_has_every_member_that_openai_promises() -> None:
    body = folded([text("a"), end()])

    assert body["id"] == "cmpl-1"
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0, "audio_tokens": 0}
    Completion.model_validate(body)


def test_each_prompt_has_its_n_choices_sorted_by_index() -> None:
    chunks = [text(str(index), index) for index in (3, 0, 2, 1)] + [end(index=index) for index in range(4)]

    choices = folded(chunks, prompt=["a", "b"], n=2)["choices"]

    assert [(choice["index"], choice["text"]) for choice in choices] == [(0, "0"), (1, "1"), (2, "2"), (3, "3")]


def test_no_tokens_asked_for_is_an_empty_text_that_ends_by_length() -> None:
    choice = folded([end(FinishReason.LENGTH)], max_tokens=0)["choices"][0]

    assert (choice["text"], choice["finish_reason"]) == ("", "length")


def test_logprobs_are_four_lists_whose_offsets_run_on_over_the_echo() -> None:
    chunks = [
        text("score me", logprobs=(row("score", None), row(" me", -1.0, top={" you": -0.5, " me": -1.0}))),
        text(" now", logprobs=(row(" now", -3.0, top={"a": -0.1, "b": -0.2}),)),
        end(FinishReason.LENGTH),
    ]

    logprobs = folded(chunks, echo=True, logprobs=1)["choices"][0]["logprobs"]

    assert logprobs == {
        "tokens": ["score", " me", " now"],
        "token_logprobs": [None, -1.0, -3.0],
        "top_logprobs": [None, {" you": -0.5, " me": -1.0}, {"a": -0.1, " now": -3.0}],
        "text_offset": [0, 5, 8],
    }


def test_logprobs_zero_shows_the_chosen_tokens_alone() -> None:
    chunks = [text("a", logprobs=(row("a", -0.5, top={"b": -0.1}),)), end()]

    logprobs = folded(chunks, logprobs=0)["choices"][0]["logprobs"]

    assert logprobs["top_logprobs"] == [{"a": -0.5}]


@pytest.mark.parametrize("value", [float("-inf"), float("nan"), float("inf")])
def test_what_json_cannot_carry_becomes_the_least_logprob(value: float) -> None:
    chunks = [text("a", logprobs=(row("a", value, top={"b": value}),)), end()]

    logprobs = folded(chunks, logprobs=1)["choices"][0]["logprobs"]

    assert logprobs["token_logprobs"] == [-9999.0]
    assert logprobs["top_logprobs"] == [{"b": -9999.0, "a": -9999.0}]


def test_offsets_of_tokens_inside_a_character_stay_in_the_text() -> None:
    rows = (row("\ufffd", raw=b"\xf0\x9f"), row("\ufffd", raw=b"\x8e\xad"), row("!"))
    chunks = [text("ab", logprobs=(row("ab"),)), text("🎭!", logprobs=rows), text("c", logprobs=(row("c"),)), end()]

    assert folded(chunks, logprobs=0)["choices"][0]["logprobs"]["text_offset"] == [0, 2, 2, 3, 4]


def test_logprobs_of_tokens_without_text_go_with_the_next_event() -> None:
    chunks = [Chunk(usage=NONE, logprobs=(row("x"),)), text("y", logprobs=(row("y"),)), end(logprobs=(row("z"),))]

    shown = [event["choices"][0]["logprobs"]["tokens"] for event in events(streamed(chunks, logprobs=0))]

    assert shown == [["x", "y"], ["z"]]


def test_what_stopped_the_text_is_told() -> None:
    chunks = [text("a"), end(stop_reason="END")]

    assert folded(chunks)["choices"][0]["stop_reason"] == "END"
    assert events(streamed(chunks))[-1]["choices"][0]["stop_reason"] == "END"


pieces = st.text(st.characters(exclude_categories=()), max_size=4)
rows = st.lists(st.builds(row, pieces, st.one_of(st.none(), st.floats()), st.binary(max_size=3)), max_size=3).map(tuple)
random_chunks = st.lists(
    st.builds(Chunk, usage=st.just(NONE), index=st.integers(0, 3), text=pieces, logprobs=st.one_of(st.none(), rows)),
    max_size=12,
)


@given(chunks=random_chunks, logprobs=st.sampled_from([None, 0, 2]))
@settings(max_examples=200, deadline=None)
def test_the_whole_answer_is_the_sum_of_its_stream(chunks: list[Chunk], logprobs: int | None) -> None:
    chunks = [*chunks, *(end(index=index) for index in range(4))]
    members = {"prompt": ["a", "b"], "n": 2, "logprobs": logprobs}

    wire = events(streamed(chunks, **members))
    whole = folded(chunks, **members)

    for choice in whole["choices"]:
        own = [event["choices"][0] for event in wire if event["choices"][0]["index"] == choice["index"]]
        assert "".join(part["text"] for part in own) == choice["text"]
        assert [part["finish_reason"] for part in own if part["finish_reason"]] == [choice["finish_reason"]]
        for name, values in (choice["logprobs"] or {}).items():
            assert [value for part in own for value in (part["logprobs"] or {}).get(name, [])] == values
            assert len(values) == len(choice["logprobs"]["tokens"])
        assert all(0 <= offset <= len(choice["text"]) for offset in (choice["logprobs"] or {}).get("text_offset", []))
