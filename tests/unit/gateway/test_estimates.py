"""The length of answers without a cap, learnt from those before."""

from __future__ import annotations

import random

from gateway.estimates import FIRST_GUESS, MOST_PAIRS, AnswerLengths


def test_nothing_is_known_at_first() -> None:
    assert AnswerLengths().estimate("key", "m") == FIRST_GUESS


def test_it_finds_the_length_that_one_answer_in_twenty_exceeds() -> None:
    lengths, dice = AnswerLengths(), random.Random(7)

    for _ in range(3000):
        lengths.observe("key", "m", dice.randrange(1000))
    found = []
    for _ in range(300):
        lengths.observe("key", "m", dice.randrange(1000))
        found.append(lengths.estimate("key", "m"))

    assert 850 < sum(found) / len(found) < 1100


def test_keys_and_models_do_not_mix() -> None:
    lengths = AnswerLengths()

    for _ in range(1000):
        lengths.observe("key", "short", 1)

    assert lengths.estimate("key", "short") < 10
    assert lengths.estimate("key", "other") == lengths.estimate("other", "short") == FIRST_GUESS


def test_it_never_falls_below_one_token() -> None:
    lengths = AnswerLengths()

    for _ in range(5000):
        lengths.observe("key", "m", 0)

    assert lengths.estimate("key", "m") == 1


def test_those_used_least_recently_are_forgotten() -> None:
    lengths = AnswerLengths()

    for number in range(MOST_PAIRS + 1):
        lengths.observe(f"key{number}", "m", 10_000)

    assert lengths.estimate("key0", "m") == FIRST_GUESS
    assert lengths.estimate("key1", "m") > FIRST_GUESS
