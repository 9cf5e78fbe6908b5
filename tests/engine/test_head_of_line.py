"""What a long prompt costs others, counted in steps of the real engine on a tiny model; time does not enter."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from backends.hf.engine import Engine
from tests import tiny_models
from tests.engine.harness import Answers, batched, greedy, make_engine, prompts

LONG, SHORT = 8000, 8
MAX_BATCHED_TOKENS = 64


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def engine(answers: Answers) -> Engine:
    """With room for a few long prompts, a hundred steps each."""
    runner = batched(tiny_models.build("llama"), num_blocks=4 * LONG // 32, block_size=32)
    return make_engine(runner, answers, max_batched_tokens=MAX_BATCHED_TOKENS, max_model_len=2 * LONG)


def prompt(num_tokens: int) -> list[int]:
    """Any text of that length."""
    (text,) = prompts(1, 1, tiny_models.VOCAB_SIZE, seed=num_tokens)
    return text * num_tokens


def steps_until(engine: Engine, holds: Callable[[], bool]) -> int:
    """How many steps it takes."""
    for steps in range(200):
        if holds():
            return steps
        assert engine.step(), "there is nothing to do any more"
    raise AssertionError("it takes too many steps")


def test_a_short_prompt_beside_a_long_one_gets_its_first_token_within_three_steps(
    engine: Engine, answers: Answers
) -> None:
    engine.submit("front", greedy(0, prompt(LONG), 4))
    steps_until(engine, lambda: 0 in answers.began)
    engine.submit("front", greedy(1, prompt(SHORT), 4))

    assert steps_until(engine, lambda: bool(answers.tokens.get(1))) <= 3
    assert answers.tokens[0] == []


def test_a_short_prompt_that_comes_after_three_long_ones_is_answered_first(engine: Engine, answers: Answers) -> None:
    for sequence_id in range(3):
        engine.submit("front", greedy(sequence_id, prompt(LONG), 4))
    engine.submit("front", greedy(3, prompt(SHORT), 4))

    steps_until(engine, lambda: 3 in answers.finishes)

    assert not any(answers.tokens.get(sequence_id) for sequence_id in range(3))


def test_a_running_answer_gets_a_token_in_every_step_while_long_prompts_are_read(
    engine: Engine, answers: Answers
) -> None:
    engine.submit("front", greedy(0, prompt(SHORT), 50))
    steps_until(engine, lambda: bool(answers.tokens.get(0)))
    for sequence_id in (1, 2):
        engine.submit("front", greedy(sequence_id, prompt(LONG), 4))

    for _ in range(40):
        before = len(answers.tokens[0])
        engine.step()
        assert len(answers.tokens[0]) == before + 1
    assert 1 in answers.began
