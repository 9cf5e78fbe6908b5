"""The built-in engine as a backend: what a request becomes, what comes back, and what is refused before the engine."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest

from backends.base import Backend, BackendContext, Supervised, Tokenizing
from backends.errors import (
    BackendError,
    BackendFailed,
    ConfigError,
    DeadlineExceeded,
    EngineDied,
    InvalidRequest,
    PromptTooLong,
    Unavailable,
    UnsupportedParameter,
)
from backends.hf.answer import Answer
from backends.hf.backend import FrontModel, HFBackend, served_name
from backends.hf.local import EngineThread, LocalClient
from backends.hf.messages import ERROR_DEADLINE, ERROR_FAILED, ERROR_TOO_LONG, Output, Submit
from backends.hf.options import HFOptions
from backends.hf.prompts import Prompt, Work, prepare
from backends.hf.tokenizer import ModelTokenizer
from backends.types import (
    Chunk,
    FinishReason,
    GenerateRequest,
    MediaPart,
    Message,
    SamplingParams,
    TokenizeRequest,
)
from tests.unit.backends.hf.fake_engine import (
    CRASH_TOKEN,
    END_TOKEN,
    MAX_MODEL_LEN,
    VOCABULARY_SIZE,
    FakeEngine,
    answer_to,
    build,
    until,
    welcome,
)
from tests.unit.backends.hf.fake_tokenizers import byte_level, save

EMOJI = list("😀".encode())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> ModelTokenizer:
    return ModelTokenizer.load(save(byte_level(), tmp_path_factory.mktemp("model")))


class Fixture:
    """A backend over a fake engine in a thread, and that engine."""

    def __init__(self, tokenizer: ModelTokenizer) -> None:
        made: list[FakeEngine] = []
        self.thread = EngineThread(build(step_s=0.0005, made=made))
        self.thread.start()
        self.engine = made[0]
        self.client = LocalClient(self.thread)
        options = HFOptions(model="org/tiny", max_output_tokens=1500)
        self.backend = HFBackend(options, self.client, lambda: FrontModel(tokenizer, MAX_MODEL_LEN))


@pytest.fixture
async def served(tokenizer: ModelTokenizer) -> AsyncIterator[Fixture]:
    fixture = Fixture(tokenizer)
    await fixture.backend.start()
    await until(lambda: fixture.backend.health().ready)
    yield fixture
    await fixture.backend.stop()
    fixture.thread.stop()


def text_request(*prompts: str | tuple[int, ...], **sampling: Any) -> GenerateRequest:
    params = SamplingParams(**({"max_tokens": 8} | sampling))
    return GenerateRequest(
        request_id="r",
        route="completions",
        model="org/tiny",
        prompts=prompts,
        sampling=params,
        add_special_tokens=False,
    )


def chat_request(*messages: Message, **fields: Any) -> GenerateRequest:
    return GenerateRequest(request_id="r", route="chat", model="org/tiny", messages=messages, **fields)


async def collect(chunks: AsyncGenerator[Chunk, None]) -> list[Chunk]:
    async with aclosing(chunks):
        return [chunk async for chunk in chunks]


def text_of(chunks: list[Chunk], index: int = 0) -> str:
    return "".join(chunk.text for chunk in chunks if chunk.index == index)


async def test_it_has_the_contract_and_its_capabilities(served: Fixture) -> None:
    assert isinstance(served.backend, Backend)
    assert isinstance(served.backend, Tokenizing)
    assert isinstance(served.backend, Supervised)
    assert served.backend.models[0].id == "org/tiny"
    assert served.backend.models[0].max_model_len == MAX_MODEL_LEN
    assert served.backend.capacity is None


async def test_the_first_chunk_is_empty_and_the_rest_is_the_engines_text(served: Fixture) -> None:
    chunks = await collect(served.backend.generate(text_request("hello")))

    assert not chunks[0].is_visible
    assert chunks[0].usage.prompt_tokens == 5
    assert text_of(chunks) == bytes(answer_to(b"hello", 8)).decode()
    assert chunks[-1].finish_reason is FinishReason.LENGTH
    assert [chunk.usage.completion_tokens for chunk in chunks] == list(range(9))


async def test_a_chat_is_rendered_with_the_models_template(served: Fixture) -> None:
    chunks = await collect(
        served.backend.generate(chat_request(Message(role="user", content="hi"), sampling=SamplingParams(max_tokens=4)))
    )

    assert text_of(chunks) == bytes(answer_to(b"<user>hi</><assistant>", 4)).decode()
    assert chunks[-1].usage.prompt_tokens == len("<user>hi</><assistant>")


async def test_choices_and_prompts_become_sequences_of_one_bill(served: Fixture) -> None:
    chunks = await collect(served.backend.generate(text_request("ab", (99, 100), n=2, max_tokens=3)))

    assert [text_of(chunks, i) for i in range(4)] == [
        bytes(answer_to(prompt, 3)).decode() for prompt in (b"ab", b"ab", b"cd", b"cd")
    ]
    assert chunks[-1].usage.prompt_tokens == 4
    assert chunks[-1].usage.completion_tokens == 12


async def test_a_stop_string_aborts_the_sequence_and_bills_what_was_made(served: Fixture) -> None:
    whole = bytes(answer_to(b"x", 1000)).decode()
    stop = whole[5:9]
    chunks = await collect(served.backend.generate(text_request("x", max_tokens=1400, stop=(stop,))))

    assert text_of(chunks) == whole[: whole.index(stop)]
    assert chunks[-1].finish_reason is FinishReason.STOP
    assert chunks[-1].stop_reason == stop
    assert chunks[-1].usage.completion_tokens == whole.index(stop) + len(stop)
    assert served.client.num_sequences == 0
    await until(lambda: not served.engine.live)


async def test_echo_puts_each_prompt_before_its_answers(served: Fixture) -> None:
    chunks = await collect(served.backend.generate(text_request("ab", (99, 100), n=2, max_tokens=2, echo=True)))

    assert text_of(chunks, 1) == "ab" + bytes(answer_to(b"ab", 2)).decode()
    assert text_of(chunks, 2) == "cd" + bytes(answer_to(b"cd", 2)).decode()


async def test_an_answer_of_no_tokens_needs_no_engine(served: Fixture) -> None:
    chunks = await collect(served.backend.generate(text_request("ab", max_tokens=0, echo=True)))

    assert [(chunk.text, chunk.finish_reason) for chunk in chunks] == [("ab", FinishReason.LENGTH)]
    assert chunks[-1].usage.prompt_tokens == 2
    assert served.engine.num_submitted == 0


async def test_cancels_at_random_moments_leave_no_sequence(served: Fixture) -> None:
    rng = random.Random(5)
    for _ in range(200):
        request = text_request("hello", max_tokens=1400, n=rng.choice([1, 3]))
        task = asyncio.create_task(collect(served.backend.generate(request)))
        await asyncio.sleep(rng.random() * 0.004)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    assert served.client.num_sequences == 0
    await until(lambda: not served.engine.live)


async def test_an_engine_that_dies_fails_the_stream_and_the_health(served: Fixture) -> None:
    doomed = asyncio.create_task(collect(served.backend.generate(text_request("hello", max_tokens=1400))))
    await until(lambda: bool(served.engine.live))
    with pytest.raises(EngineDied):
        await collect(served.backend.generate(text_request((CRASH_TOKEN,))))
    with pytest.raises(EngineDied):
        await doomed

    assert not served.backend.health().ready
    with pytest.raises(Unavailable) as caught:
        await collect(served.backend.generate(text_request("hello")))
    assert caught.value.retry_after_s is not None


async def test_before_the_tokenizer_is_there_requests_are_told_to_come_back(tokenizer: ModelTokenizer) -> None:
    loading = threading.Event()

    def load() -> FrontModel:
        loading.wait()
        return FrontModel(tokenizer)

    thread = EngineThread(build())
    thread.start()
    backend = HFBackend(HFOptions(model="org/tiny"), LocalClient(thread), load)
    await backend.start()
    with pytest.raises(Unavailable, match="tokenizer is being loaded"):
        await collect(backend.generate(text_request("hello")))
    assert "tokenizer" in backend.health().detail
    loading.set()
    await until(lambda: backend.health().ready)
    await backend.stop()
    thread.stop()


async def test_the_event_loop_turns_while_a_long_prompt_is_tokenized(served: Fixture) -> None:
    """A five-megabyte prompt, and short requests meanwhile that are answered before it is refused."""
    long = asyncio.create_task(collect(served.backend.generate(text_request("word " * 1_000_000))))
    num_short = 0
    while not long.done():
        await collect(served.backend.generate(text_request("hi", max_tokens=1)))
        num_short += 1

    assert num_short > 3
    with pytest.raises(PromptTooLong, match="5000000 tokens"):
        await long


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"presence_penalty": -0.5}, "presence_penalty"),
        ({"repetition_penalty": 1.1}, "repetition_penalty"),
        ({"logit_bias": {5: 1.0}}, "logit_bias"),
        ({"logprobs": 0}, "logprobs"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
        ({"best_of": 3, "n": 2}, "best_of"),
    ],
)
async def test_what_the_engine_cannot_do_is_refused_by_name(
    served: Fixture, sampling: dict[str, Any], param: str
) -> None:
    with pytest.raises(UnsupportedParameter, match=param) as caught:
        await collect(served.backend.generate(text_request("hi", **sampling)))
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": ({"type": "function"},)}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"choice": ["a"]}}, "structured_outputs"),
    ],
)
async def test_features_to_come_are_refused_and_not_ignored(
    served: Fixture, fields: dict[str, Any], param: str
) -> None:
    message = Message(role="user", content="hi")
    with pytest.raises(UnsupportedParameter, match=param):
        await collect(served.backend.generate(chat_request(message, **fields)))


@pytest.mark.parametrize(
    "fields", [{"tools": ({},), "tool_choice": "none"}, {"response_format": {"type": "text"}}, {"tools": ()}]
)
async def test_their_neutral_values_pass(served: Fixture, fields: dict[str, Any]) -> None:
    request = chat_request(Message(role="user", content="hi"), sampling=SamplingParams(max_tokens=1), **fields)

    assert await collect(served.backend.generate(request))


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (text_request((1, VOCABULARY_SIZE)), "prompt"),
        (text_request((-1,)), "prompt"),
        (text_request("hi", stop_token_ids=(10**9,)), "stop_token_ids"),
        (text_request("a", "b", n=65), "n"),
        (text_request("hi", n=5_000_000), "n"),
        (text_request("x" * MAX_MODEL_LEN), "prompt"),
        (chat_request(Message(role="user", content="x" * MAX_MODEL_LEN)), "messages"),
        (chat_request(Message(role="user", content=(MediaPart("image_url"),))), "messages[0].content[0]"),
    ],
)
async def test_one_bad_field_is_refused_before_the_engine(
    served: Fixture, request_: GenerateRequest, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await collect(served.backend.generate(request_))

    assert caught.value.param == param
    assert served.engine.num_submitted == 0


async def test_text_and_ids_convert_both_ways(served: Fixture) -> None:
    tokens = await served.backend.tokenize(
        TokenizeRequest(model="org/tiny", prompt="hé", add_special_tokens=False, return_token_strs=True)
    )
    chat = await served.backend.tokenize(
        TokenizeRequest(model="org/tiny", messages=(Message(role="user", content="hi"),))
    )

    assert tokens.ids == tuple("hé".encode())
    assert tokens.strs == ("h", "Ã", "©")
    assert bytes(chat.ids) == b"<user>hi</><assistant>"
    assert await served.backend.detokenize("org/tiny", tokens.ids) == "hé"
    with pytest.raises(InvalidRequest):
        await served.backend.detokenize("org/tiny", [VOCABULARY_SIZE])


def submits(request: GenerateRequest, tokenizer: ModelTokenizer, cap: int | None = None) -> tuple[Submit, ...]:
    return prepare(request, tokenizer, welcome(), cap).submits


def test_the_cap_is_the_least_of_wish_room_and_the_operators(tokenizer: ModelTokenizer) -> None:
    for wish, cap, expected in [
        (5, None, 5),
        (10**6, None, MAX_MODEL_LEN - 4),
        (None, None, MAX_MODEL_LEN - 4),
        (None, 7, 7),
        (9, 7, 7),
    ]:
        (submit,) = submits(text_request("abcd", max_tokens=wish, min_tokens=100), tokenizer, cap)

        assert submit.max_tokens == expected
        assert submit.min_tokens == min(100, expected)


def test_a_prompt_that_leaves_room_for_one_token_fits(tokenizer: ModelTokenizer) -> None:
    (submit,) = submits(text_request("x" * (MAX_MODEL_LEN - 1)), tokenizer)

    assert submit.max_tokens == 1
    with pytest.raises(PromptTooLong, match=f"maximum context length is {MAX_MODEL_LEN} tokens") as caught:
        submits(text_request("x" * MAX_MODEL_LEN), tokenizer)
    assert f"{MAX_MODEL_LEN} tokens" in caught.value.message


def test_seeds_are_kept_and_choices_numbered_within_their_prompt(tokenizer: ModelTokenizer) -> None:
    seeded = submits(text_request("a", "b", n=2, seed=-1), tokenizer)
    drawn = submits(text_request("a", "a", n=2), tokenizer)

    assert [submit.choice for submit in seeded] == [0, 1, 0, 1]
    assert {submit.seed for submit in seeded} == {2**63 - 1}
    assert drawn[0].seed == drawn[1].seed != drawn[2].seed
    assert all(0 <= submit.seed < 2**63 for submit in drawn)


def test_end_tokens_stop_unless_they_are_ignored(tokenizer: ModelTokenizer) -> None:
    (usual,) = submits(text_request("a", stop_token_ids=(5,)), tokenizer)
    (ignoring,) = submits(text_request("a", stop_token_ids=(5,), ignore_eos=True), tokenizer)

    assert usual.stop_token_ids == [5, END_TOKEN]
    assert ignoring.stop_token_ids == [5]


def test_an_empty_prompt_becomes_the_token_that_begins_a_text(tokenizer: ModelTokenizer) -> None:
    (submit,) = submits(text_request(""), tokenizer)

    assert submit.prompt_ids == [tokenizer.bos_id]


def answer(tokenizer: ModelTokenizer, **sampling: Any) -> Answer:
    return Answer(Work((Prompt([65]),), ()), SamplingParams(**sampling), tokenizer)


def test_a_character_in_pieces_is_shown_once_it_is_whole(tokenizer: ModelTokenizer) -> None:
    chunks = [
        answer_so_far.take(0, Output(1, token_ids=[byte])) for answer_so_far in [answer(tokenizer)] for byte in EMOJI
    ]

    assert [chunk.text for chunk in chunks] == ["", "", "", "😀"]
    assert chunks[-1].token_ids == tuple(EMOJI)


def test_the_end_token_is_billed_and_not_shown(tokenizer: ModelTokenizer) -> None:
    chunk = answer(tokenizer, skip_special_tokens=False).take(
        0, Output(1, token_ids=[72, END_TOKEN], finish_reason=FinishReason.STOP, stop_token_id=END_TOKEN)
    )

    assert (chunk.text, chunk.finish_reason, chunk.stop_reason) == ("H", FinishReason.STOP, None)
    assert chunk.usage.completion_tokens == 2


@pytest.mark.parametrize(("shown", "text"), [(False, "H"), (True, "H!")])
def test_a_stop_token_of_the_request_is_named_and_shown_only_on_demand(
    tokenizer: ModelTokenizer, shown: bool, text: str
) -> None:
    chunk = answer(tokenizer, stop_token_ids=(33,), include_stop_str_in_output=shown).take(
        0, Output(1, token_ids=[72, 33], finish_reason=FinishReason.STOP, stop_token_id=33)
    )

    assert (chunk.text, chunk.stop_reason, chunk.usage.completion_tokens) == (text, 33, 2)


def test_a_character_cut_off_by_the_length_shows_as_one_mark(tokenizer: ModelTokenizer) -> None:
    chunk = answer(tokenizer).take(0, Output(1, token_ids=EMOJI[:3], finish_reason=FinishReason.LENGTH))

    assert chunk.text == tokenizer.decode(EMOJI[:3])


@pytest.mark.parametrize(
    ("word", "kind"),
    [(ERROR_DEADLINE, DeadlineExceeded), (ERROR_TOO_LONG, PromptTooLong), (ERROR_FAILED, BackendFailed)],
)
def test_the_engines_errors_get_their_types(tokenizer: ModelTokenizer, word: str, kind: type[BackendError]) -> None:
    with pytest.raises(kind):
        answer(tokenizer).take(0, Output(1, error=word))


def test_the_process_is_this_python_with_options_and_a_pulse(tmp_path: Path) -> None:
    context = BackendContext(name="local", run_dir=Path("/run/laneway"))
    spec = HFBackend.process(HFOptions(model="org/m", hang_after_s=7), context)

    assert spec.argv[:4] == (sys.executable, "-P", "-m", "backends.hf.server")
    assert '"model":"org/m"' in spec.argv[spec.argv.index("--options") + 1]
    assert spec.heartbeat == Path("/run/laneway/local.heartbeat")
    assert spec.hang_after_s == 7


def test_a_folder_too_deep_for_a_socket_is_a_config_error() -> None:
    context = BackendContext(name="local", run_dir=Path("/" + "deep/" * 30))
    with pytest.raises(ConfigError, match="socket"):
        HFBackend.create(HFOptions(model="m"), context)


@pytest.mark.parametrize(
    ("model", "served", "expected"),
    [
        ("org/model", None, "org/model"),
        ("/models/tiny/", None, "tiny"),
        ("./models/tiny.gguf", None, "tiny.gguf"),
        ("smollm2-135m-instruct", None, "smollm2-135m-instruct"),
        ("/models/tiny", "mine", "mine"),
    ],
)
def test_a_model_is_served_under_a_name_without_its_path(model: str, served: str | None, expected: str) -> None:
    assert served_name(HFOptions(model=model, served_name=served)) == expected


async def test_deadlines_and_the_lane_go_with_the_sequence(tokenizer: ModelTokenizer) -> None:
    by = time.monotonic() + 5
    request = GenerateRequest(
        request_id="r",
        route="completions",
        model="org/tiny",
        prompts=("a",),
        lane="batch",
        tenant="t",
        weight=2.0,
        first_token_at=by,
        deadline_at=by + 1,
    )
    (submit,) = submits(request, tokenizer)

    assert (submit.lane, submit.tenant, submit.weight) == ("batch", "t", 2.0)
    assert (submit.first_token_at, submit.deadline_at) == (by, by + 1)
