"""Words as tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.words import END_TOKEN_ID, VOCABULARY_SIZE, Vocabulary, count_words, split_words, word_id


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("ab cd", ["ab", " cd"]),
        ("  ab\n\ncd \n", ["  ab", "\n\ncd \n"]),
        (" \n", [" \n"]),
        ("a", ["a"]),
    ],
)
def test_a_word_has_the_white_space_before_it(text: str, words: list[str]) -> None:
    assert split_words(text) == [word.encode() for word in words]
    assert count_words(text) == len(words)


@given(st.text())
def test_words_joined_are_the_text(text: str) -> None:
    assert b"".join(split_words(text)) == text.encode("utf-8", "replace")
    assert count_words(text) == len(split_words(text))


def test_ids_are_stable_and_inside_the_vocabulary() -> None:
    assert word_id(b" cd") == word_id(b" cd")
    assert word_id(b"hello") == 3276952
    assert all(0 <= word_id(str(n).encode()) < VOCABULARY_SIZE for n in range(1000))


def test_remembered_ids_are_words_again_and_others_are_replacement_characters() -> None:
    vocabulary = Vocabulary()
    ids = vocabulary.ids_of([b"ab", b" cd"])

    assert vocabulary.words_of([*ids, 5, END_TOKEN_ID]) == [b"ab", b" cd", "\N{REPLACEMENT CHARACTER}".encode(), b""]


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    vocabulary = Vocabulary(size=2)
    first, second = vocabulary.ids_of([b"a", b"b"])
    vocabulary.ids_of([b"a"])
    third, *_ = vocabulary.ids_of([b"c"])

    assert vocabulary.words_of([first, third]) == [b"a", b"c"]
    assert vocabulary.words_of([second]) == ["\N{REPLACEMENT CHARACTER}".encode()]
    assert len(vocabulary.ids_of([b"1", b"2", b"3"])) == 3
