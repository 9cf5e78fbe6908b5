"""Log-probabilities in both forms, and the completions of the old kind."""

from __future__ import annotations

from typing import Any

from gateway.conformance.case import Group, Need
from gateway.conformance.probe import Probe
from gateway.conformance.reply import Reply, expect, same

logprobs = Group("logprobs")
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
WORDS = {"tokens": ["one", " two", " three"], "top": [{"one": -0.1, "uno": -2.0}, {" two": -0.2}, {" three": -0.3}]}
LOWEST = -9999.0  # JSON has no infinity
TEXT = (Need.TEXT_LOGPROBS,)
CHAT = (Need.LOGPROBS,)


def check_lists(given: Any, length: int) -> None:
    """Four lists of one length."""
    expect(isinstance(given, dict), "logprobs is an object of four lists", given)
    for name in LISTS:
        expect(isinstance(given.get(name), list), f"logprobs.{name} is a list", given)
        same(len(given[name]), length, f"the length of logprobs.{name}")


def entries(reply: Reply) -> list[dict[str, Any]]:
    """What a chat says of its tokens, each with its four members."""
    given = [choice.get("logprobs") for choice in reply.choices()]
    found = [entry for one in given if one is not None for entry in one["content"] or []]
    expect(bool(found), "logprobs.content has entries", given)
    for entry in found:
        expect({"token", "logprob", "bytes", "top_logprobs"} <= set(entry), "an entry has its four members", entry)
    return found


@logprobs.case("B71", "echo has the log-probabilities of the prompt", "ggml-org/llama.cpp#27174", needs=TEXT)
async def echo_has_the_prompt(probe: Probe) -> None:
    reply = await probe.complete("a b c", echo=True, logprobs=1, max_tokens=1, script=WORDS)
    (choice,) = reply.choices()
    check_lists(choice["logprobs"], reply.usage["prompt_tokens"] + 1)
    same(choice["logprobs"]["token_logprobs"][0], None, "the log-probability of the first token")


@logprobs.case(
    "B72",
    "A completion has four lists of one length",
    "ggml-org/llama.cpp#11346",
    "ggml-org/llama.cpp#10733",
    needs=TEXT,
)
async def four_lists(probe: Probe) -> None:
    reply = await probe.complete("Once upon a", logprobs=2, max_tokens=3, script=WORDS)
    check_lists(reply.choices()[0]["logprobs"], reply.usage["completion_tokens"] if not probe.scripted else 3)


@logprobs.case("B73", "A chat has a list of entries with bytes", "abetlen/llama-cpp-python#1787", needs=CHAT)
async def chats_have_entries(probe: Probe) -> None:
    for entry in entries(await probe.chat(logprobs=True, top_logprobs=2, script=WORDS)):
        expect(len(entry["top_logprobs"]) <= 2, "there are at most two alternatives", entry)
        same(bytes(entry["bytes"] or entry["token"].encode()).decode(errors="replace"), entry["token"], "its bytes")


@logprobs.case(
    "B74",
    "A streamed completion has log-probabilities and a finish",
    "huggingface/text-generation-inference#1682",
    "huggingface/text-generation-inference#2211",
    needs=TEXT,
)
async def streamed_completions_have_both(probe: Probe) -> None:
    reply = await probe.complete("Once upon a", stream=True, logprobs=1, max_tokens=2, script=WORDS)
    tokens = [token for choice in reply.choices() if choice.get("logprobs") for token in choice["logprobs"]["tokens"]]
    same((len(tokens), reply.finish()), (2, "length"), "the number of tokens and the finish")


@logprobs.case(
    "B75",
    "A log-probability of minus infinity is a finite number",
    "vllm-project/vllm#10234",
    needs=(*TEXT, Need.SCRIPT),
)
async def minus_infinity(probe: Probe) -> None:
    script = {"tokens": ["d"], "prompt_logprobs": [None, "-inf", -1.0]}
    reply = await probe.complete("a b c", echo=True, logprobs=5, max_tokens=1, script=script)
    same(reply.choices()[0]["logprobs"]["token_logprobs"][1], LOWEST, "the log-probability")


@logprobs.case("B76", "logprobs without top_logprobs has empty lists", "vllm-project/vllm#4795", needs=CHAT)
async def no_alternatives(probe: Probe) -> None:
    for entry in entries(await probe.chat(logprobs=True, script=WORDS)):
        same(entry["top_logprobs"], [], "top_logprobs")


@logprobs.case(
    "B77", "A token that is half a character has its bytes", "vllm-project/vllm#16540", needs=(*CHAT, Need.SCRIPT)
)
async def half_characters(probe: Probe) -> None:
    script = {"tokens": [{"bytes": [0xC3]}, {"bytes": [0xA9]}]}
    first, second, *_ = entries(await probe.chat(logprobs=True, top_logprobs=20, script=script))
    same((first["bytes"], second["bytes"]), ([0xC3], [0xA9]), "the bytes of the halves")
    expect("\N{REPLACEMENT CHARACTER}" in first["token"], "the token shows U+FFFD", first)


@logprobs.case(
    "B78", "A prompt can be scored without an answer", "vllm-project/vllm#6521", "vllm-project/vllm#10432", needs=TEXT
)
async def scoring(probe: Probe) -> None:
    for prompt in ("score me", [5, 6, 7]):
        reply = await probe.complete(prompt, echo=True, max_tokens=0, logprobs=1)
        (choice,) = reply.choices()
        check_lists(choice["logprobs"], reply.usage["prompt_tokens"])
        same(choice["finish_reason"], "length", "the finish")
        if isinstance(prompt, str):
            same(choice["text"], prompt, "the text")
        else:
            same(reply.usage["prompt_tokens"], len(prompt), "prompt_tokens of token ids")


@logprobs.case("B79", "Echo and log-probabilities are streamed whole", "vllm-project/vllm#2703", needs=TEXT)
async def streamed_echo(probe: Probe) -> None:
    asked: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 3, "script": WORDS}
    whole = (await probe.complete("up down", **asked)).choices()[0]["logprobs"]
    reply = await probe.complete("up down", stream=True, **asked)
    lists = [choice["logprobs"] for choice in reply.choices() if choice.get("logprobs")]
    expect(reply.text().startswith("up down"), "the text begins with the prompt", reply.text())
    for name in ("tokens", "text_offset") if probe.scripted else ():
        same([entry for given in lists for entry in given[name]], whole[name], f"{name}, all chunks together")
    expect(sum(len(given["tokens"]) for given in lists) > 3, "prompt and answer are in the lists", lists)


@logprobs.case("B80", "A chat has log-probabilities, streamed and whole", "ollama/ollama#16117", needs=CHAT)
async def both_modes(probe: Probe) -> None:
    for stream in (False, True):
        found = entries(await probe.chat(stream=stream, logprobs=True, top_logprobs=1, max_tokens=3, script=WORDS))
        same(len(found[0]["top_logprobs"]), 1, "the number of alternatives")


@logprobs.case("B81", "Several prompts have log-probabilities", "sgl-project/sglang#5984", needs=TEXT)
async def several_prompts(probe: Probe) -> None:
    for num in (0, 1):
        reply = await probe.complete(["one", "two"], logprobs=num, max_tokens=2, script=WORDS)
        for index in (0, 1):
            check_lists(reply.choices(index)[0]["logprobs"], 2)


@logprobs.case(
    "B82", "There are completions of the old kind", "huggingface/transformers#44558", needs=(Need.COMPLETIONS,)
)
async def old_completions(probe: Probe) -> None:
    reply = await probe.complete("abc", script=WORDS)
    same(reply.json["object"], "text_completion", "the object")
    expect(isinstance(reply.choices()[0]["text"], str), "a choice has its text")
