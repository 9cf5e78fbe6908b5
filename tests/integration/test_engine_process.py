"""The engine as a process behind `laneway serve`: it answers, dies, hangs, is replaced, and ends with its parent."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from openai import BadRequestError, OpenAI

from tests.integration.served import IN_TIME_S, Serve, Served, alive, eventually
from tests.integration.tiny_served import (
    ENDLESS,
    ENGINE,
    FRONT,
    MODEL,
    code_of,
    complete,
    events,
    figures,
    is_empty,
    is_ready,
    ready,
    settings,
    streaming,
)

ROWS = 4


@pytest.fixture(scope="module")
def shared(serve_long: Serve, tiny_llama_dir: Path) -> Served:
    """The server that all tests of this file have in common, whatever they did to it."""
    return serve_long(settings(tiny_llama_dir, max_num_seqs=ROWS, hang_after_s=2))


@pytest.fixture
def served(shared: Served) -> Served:
    """The same, ready."""
    eventually(lambda: is_ready(shared.address), "ready again")
    return shared


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    """An unchanged OpenAI SDK."""
    with OpenAI(base_url=f"{served.address}/v1", api_key="any", max_retries=0, timeout=IN_TIME_S) as client:
        yield client


def test_a_response_says_what_a_chat_does_and_names_its_own_fields(client: OpenAI) -> None:
    ask: dict[str, Any] = {"model": MODEL, "input": "hello", "max_output_tokens": 12, "temperature": 0}
    chat = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "hello"}], max_tokens=12, temperature=0
    )

    whole = client.responses.create(**ask)
    last = list(client.responses.create(**ask, stream=True))[-1]
    counted = client.responses.input_tokens.count(model=MODEL, input="hello")
    with pytest.raises(BadRequestError) as too_long:
        client.responses.create(**ask | {"input": "hello " * 20_000})

    assert last.response.output_text == whole.output_text == chat.choices[0].message.content
    assert chat.usage is not None and whole.usage is not None
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (chat.usage.prompt_tokens, 12)
    assert counted.input_tokens == whole.usage.input_tokens
    assert (too_long.value.param, too_long.value.code) == ("input", "context_length_exceeded")


def test_a_chat_streams_what_it_answers_in_one_piece(client: OpenAI) -> None:
    ask = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "temperature": 0}

    whole = client.chat.completions.create(**ask)  # type: ignore[call-overload]
    chunks = list(client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}))  # type: ignore[call-overload]

    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage == whole.usage
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == whole.choices[0].finish_reason


def test_a_completion_streams_what_it_answers_in_one_piece(client: OpenAI) -> None:
    ask = {"model": MODEL, "prompt": ["one", "two three"], "max_tokens": 9, "temperature": 0}

    whole = client.completions.create(**ask)  # type: ignore[call-overload]
    chunks = list(client.completions.create(**ask, stream=True))  # type: ignore[call-overload]

    for choice in whole.choices:
        mine = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert "".join(piece.text for piece in mine) == choice.text
        assert mine[-1].finish_reason == choice.finish_reason


def test_a_seed_gives_every_choice_its_own_text_and_the_same_again(client: OpenAI) -> None:
    ask = {"model": MODEL, "prompt": "one", "max_tokens": 12, "temperature": 1.0, "seed": 7, "n": 3}

    answers = [client.completions.create(**ask) for _ in range(2)]  # type: ignore[call-overload]

    texts = [[choice.text for choice in answer.choices] for answer in answers]
    assert len(set(texts[0])) == 3
    assert texts[0] == texts[1]


def test_a_killed_engine_fails_what_is_in_it_and_a_new_one_answers(served: Served) -> None:
    engine, front = served.child(ENGINE), served.child(FRONT)

    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        streams = [stack.enter_context(streaming(served.address)) for _ in range(ROWS)]
        queued = threads.submit(lambda: complete(served.address, stream=True, **ENDLESS))
        eventually(lambda: ready(served.address).json()["queue_depth"] == 1, "one waits in the engine's queue")
        engine.kill()
        failures = [events(lines)[-1]["error"] for lines in streams]
        state, refused = ready(served.address), complete(served.address)

    assert {(failure["code"], failure["type"]) for failure in failures} == {("engine_died", "service_unavailable")}
    assert (queued.result().status_code, code_of(queued.result())) == (503, "engine_died")
    assert (refused.status_code, code_of(refused)) == (503, "backend_unavailable")
    assert int(refused.headers["retry-after"]) >= 1
    assert (state.status_code, state.json()["status"]) == (503, "not_ready")
    eventually(lambda: is_ready(served.address), "a new engine")
    assert complete(served.address).status_code == 200
    assert served.child(ENGINE).pid != engine.pid
    assert served.child(FRONT).pid == front.pid
    assert f"engine local (pid {engine.pid}) ended by signal SIGKILL" in served.log
    eventually(lambda: is_empty(figures(served.address)), "nothing of the old engine is counted")


def test_a_hung_engine_fails_its_streams_and_is_replaced(served: Served) -> None:
    engine = served.child(ENGINE)

    with streaming(served.address) as lines:
        engine.suspend()
        failure = events(lines)[-1]["error"]
        state = ready(served.address)

    assert failure["code"] == "engine_died"
    assert state.status_code == 503
    eventually(lambda: is_ready(served.address), "a new engine")
    assert complete(served.address).status_code == 200
    assert f"engine local (pid {engine.pid}) did not move any more and was killed" in served.log


def test_a_killed_front_aborts_its_sequences_and_the_engine_stays(served: Served) -> None:
    engine, front = served.child(ENGINE), served.child(FRONT)

    with ExitStack() as stack, ThreadPoolExecutor() as threads:
        streams = [stack.enter_context(streaming(served.address)) for _ in range(ROWS)]
        queued = threads.submit(lambda: complete(served.address, **ENDLESS))
        eventually(lambda: ready(served.address).json()["queue_depth"] == 1, "one waits in the engine's queue")
        front.kill()
        for lines in streams:
            with pytest.raises(httpx.TransportError):
                list(lines)
        assert isinstance(queued.exception(), httpx.TransportError)

    eventually(lambda: is_ready(served.address), "a new front on the same port")
    eventually(lambda: is_empty(figures(served.address)), "the engine has dropped what the old front had in it")
    assert complete(served.address).status_code == 200
    assert served.child(ENGINE).pid == engine.pid
    assert served.child(FRONT).pid != front.pid


def test_kill_of_the_parent_leaves_neither_front_nor_engine_after_a_second(serve: Serve, tiny_llama_dir: Path) -> None:
    served = serve(settings(tiny_llama_dir))
    family: list[psutil.Process] = [served.child(ENGINE), served.child(FRONT)]

    with streaming(served.address):
        served.end(signal.SIGKILL)

        eventually(lambda: alive(family) == [], "front and engine are gone", within_s=1)


def test_sigterm_lets_a_running_answer_end_and_leaves_nothing(serve: Serve, tiny_llama_dir: Path) -> None:
    served = serve(settings(tiny_llama_dir))
    family = served.descendants()

    with streaming(served.address, max_tokens=150) as lines:
        served.process.send_signal(signal.SIGTERM)
        last = events(lines)[-1]

    assert last["choices"][0]["finish_reason"] == "length"
    assert served.process.wait(IN_TIME_S) == 0
    assert alive(family) == []
