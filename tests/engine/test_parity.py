"""The batched engine gives the tokens of a plain transformers loop, whatever the schedule."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from backends.hf.per_sequence import PerSequenceRunner
from tests import tiny_models
from tests.engine.harness import (
    Answers,
    Reference,
    assert_complete,
    batched,
    greedy,
    make_engine,
    plain_greedy,
    prompts,
    run_staggered,
)

FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma3", "mixtral", "gpt2")
FALLBACK_FAMILIES = ("bloom", "falcon", "gemma3", "llama")
NUM_PROMPTS, LONGEST, NUM_TOKENS = 8, 90, 20
SCHEDULES = 25


def references(model: Any) -> list[Reference]:
    texts = prompts(NUM_PROMPTS, LONGEST, tiny_models.VOCAB_SIZE, seed=5)
    return [plain_greedy(model, text, NUM_TOKENS) for text in texts]


@pytest.mark.parametrize("family", FAMILIES)
def test_batched_tokens_equal_a_plain_loop_under_random_schedules(family: str) -> None:
    model = tiny_models.build(family)
    expected = references(model)
    ties = preemptions = 0

    for seed in range(SCHEDULES):
        dice = random.Random(seed)
        block_size = dice.choice((1, 4, 16, 32))
        # From room for little more than the longest sequence, so that preemption is forced, to room for all.
        room = dice.choice((1.2, 2.0, 8.0)) * (LONGEST + NUM_TOKENS)
        answers = Answers()
        engine = make_engine(
            batched(model, int(room) // block_size + 2, block_size),
            answers,
            max_num_seqs=dice.choice((3, 8)),
            max_batched_tokens=dice.choice((3, 9, 17, 64, 300)),
        )
        run_staggered(engine, [greedy(i, e.prompt, NUM_TOKENS) for i, e in enumerate(expected)], dice)
        ties += assert_complete(answers, expected)
        preemptions += answers.stats.preemptions

    assert ties <= 0.005 * SCHEDULES * NUM_PROMPTS
    assert preemptions > 0


@pytest.mark.parametrize("family", FALLBACK_FAMILIES)
def test_per_sequence_tokens_equal_a_plain_loop(family: str) -> None:
    model = tiny_models.build(family)
    expected = references(model)

    for seed in range(2):
        answers = Answers()
        runner = PerSequenceRunner(model, num_blocks=40, block_size=8)
        engine = make_engine(runner, answers, max_num_seqs=5, max_batched_tokens=(7, 40)[seed])
        submits = [greedy(i, e.prompt, NUM_TOKENS) for i, e in enumerate(expected)]
        run_staggered(engine, submits, random.Random(seed))
        assert_complete(answers, expected)
        assert runner.num_caches == 0


def test_neighbours_do_not_change_a_seeded_answer() -> None:
    model = tiny_models.build("llama")
    texts = prompts(9, 40, tiny_models.VOCAB_SIZE, seed=2)
    found = []

    for count in (1, 9):
        answers = Answers()
        engine = make_engine(batched(model, 200, 8), answers)
        for i in range(count):
            engine.submit("front", greedy(i, texts[i], 24) if i else seeded(texts[0]))
        while engine.step():
            pass
        found.append(answers.tokens[0])

    assert found[0] == found[1]
    assert len(set(found[0])) > 3


def seeded(text: list[int]) -> Any:
    submit = greedy(0, text, 24)
    submit.temperature, submit.top_p, submit.seed = 1.3, 0.9, 11
    return submit


def test_the_real_model_gives_the_tokens_of_a_plain_loop(smollm2_dir: Any) -> None:
    model = AutoModelForCausalLM.from_pretrained(smollm2_dir, dtype=torch.float32).eval()
    expected = [plain_greedy(model, text, 10) for text in prompts(6, 40, 40_000, seed=9)]
    ties = preemptions = 0

    for seed, (num_blocks, block_size, max_batched_tokens) in enumerate(((5, 16, 24), (17, 4, 7), (30, 2, 64))):
        answers = Answers()
        engine = make_engine(
            batched(model, num_blocks, block_size), answers, max_num_seqs=4, max_batched_tokens=max_batched_tokens
        )
        run_staggered(engine, [greedy(i, e.prompt, 10) for i, e in enumerate(expected)], random.Random(seed))
        ties += assert_complete(answers, expected)
        preemptions += answers.stats.preemptions

    assert ties == 0
    assert preemptions > 0
