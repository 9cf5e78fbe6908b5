"""Instructor: objects out of answers, by each of its modes."""

from __future__ import annotations

import asyncio
from typing import Any

import instructor
import openai
import pytest
from instructor.core import InstructorRetryException
from pydantic import BaseModel, Field

from tests.clients.scripts import ENDLESS, calls, fails, says
from tests.clients.server import Server

CITY = '{"name": "Bern", "people": 134000}'
ASKED: Any = [{"role": "user", "content": "Which city is the capital of Switzerland?"}]
TEXT_MODES = (instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA, instructor.Mode.MD_JSON)


class City(BaseModel):
    """A city."""

    name: str
    people: int = Field(gt=0)


def sdk(server: Server, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=0, **options)


def create(server: Server, mode: instructor.Mode, extra_body: dict[str, Any], **options: Any) -> Any:
    client = instructor.from_openai(sdk(server), mode=mode)
    return client.chat.completions.create(
        **{"model": "scripted", "messages": ASKED, "response_model": City, "max_retries": 0, **options},
        extra_body=extra_body,
    )


def answer(mode: instructor.Mode, text: str = CITY) -> dict[str, Any]:
    """The same answer, as each mode expects it."""
    if mode in TEXT_MODES:
        half = len(text) // 2
        return says(text[:half], text[half:])
    return calls("City", text)


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, *TEXT_MODES], ids=lambda mode: mode.value)
def test_an_answer_becomes_an_object(server: Server, mode: instructor.Mode) -> None:
    assert create(server, mode, answer(mode)).model_dump() == {"name": "Bern", "people": 134000}


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON], ids=lambda mode: mode.value)
def test_an_object_grows_while_it_is_streamed(server: Server, mode: instructor.Mode) -> None:
    client = instructor.from_openai(sdk(server), mode=mode)
    stages = list(
        client.chat.completions.create_partial(
            model="scripted", messages=ASKED, response_model=City, extra_body=answer(mode)
        )
    )

    assert len(stages) > 1
    assert (stages[-1].name, stages[-1].people) == ("Bern", 134000)


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON], ids=lambda mode: mode.value)
def test_a_wrong_answer_is_sent_back_and_asked_for_again(server: Server, mode: instructor.Mode) -> None:
    """The history with the failed call and what was wrong with it is accepted."""
    before = server.count("started")

    with pytest.raises(InstructorRetryException) as caught:
        create(server, mode, answer(mode, '{"name": "Bern", "people": 0}'), max_retries=1)

    assert caught.value.n_attempts == 2
    assert server.count("started") == before + 2


def test_an_answer_that_was_cut_is_told(server: Server) -> None:
    with pytest.raises(Exception, match=r"max_tokens|incomplete"):
        create(server, instructor.Mode.TOOLS, answer(instructor.Mode.TOOLS), max_tokens=1)


def test_failures_keep_the_sdks_own_class(server: Server) -> None:
    for kind, error in (("bad_request", openai.BadRequestError), ("rate_limited", openai.RateLimitError)):
        with pytest.raises(InstructorRetryException) as caught:
            create(server, instructor.Mode.TOOLS, fails(kind))
        assert isinstance(caught.value.__cause__, error) or error.__name__ in repr(caught.value.__cause__)


@pytest.mark.usefixtures("is_cancelled")
async def test_cancelling_a_call_ends_the_work(server: Server) -> None:
    before = server.count("started")
    client = instructor.from_openai(openai.AsyncOpenAI(base_url=server.base_url, api_key="any", max_retries=0))
    call = asyncio.create_task(
        client.chat.completions.create(
            model="scripted", messages=ASKED, response_model=City, max_retries=0, extra_body=ENDLESS
        )
    )
    await asyncio.to_thread(server.wait_for, "started", before + 1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
