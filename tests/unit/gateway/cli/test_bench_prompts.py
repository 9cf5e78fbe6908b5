"""Prompts of the bench: drawn from ShareGPT, or made up, of the lengths that were asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli.bench import prompts
from gateway.cli.bench.client import Client
from gateway.cli.bench.prompts import TokenCounter, first_turns, read_conversations, synthetic_text
from gateway.cli.screen import CommandFailed


class WordClient(Client):
    """A server on which a word is a token."""

    def __init__(self, can_count: bool = True) -> None:
        super().__init__("http://127.0.0.1", "", 1, send_extras=False)
        self.can_count = can_count

    async def count_tokens(self, text: str) -> int | None:
        """Words, or no answer."""
        return len(text.split()) if self.can_count else None


def dataset(folder: Path, lengths: list[int]) -> Path:
    """A ShareGPT file whose first turns have these many words."""
    records = [
        {
            "id": str(at),
            "conversations": [{"from": "human", "value": f"n{at} " * length}, {"from": "gpt", "value": "{x}"}],
        }
        for at, length in enumerate(lengths)
    ]
    file = folder / "sharegpt.json"
    file.write_text(json.dumps([{"id": "empty", "conversations": []}, *records], indent=1))
    return file


async def test_first_turns_have_the_lengths_asked_for_and_the_seed_draws_them(tmp_path: Path) -> None:
    file = dataset(tmp_path, [1, 5, 20, 6, 7, 300, 8, 9])
    counter = TokenCounter(WordClient())

    one = await first_turns(file, 3, 5, 9, counter, seed=1)
    same = await first_turns(file, 3, 5, 9, counter, seed=1)
    other = await first_turns(file, 3, 5, 9, counter, seed=2)

    assert all(5 <= len(text.split()) <= 9 for text in one.texts)
    assert one.texts == same.texts != other.texts
    assert "sharegpt.json" in one.source


async def test_too_few_fitting_turns_are_a_clear_failure(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="has 2 first turns of 5 to 9 tokens; 3 are needed"):
        await first_turns(dataset(tmp_path, [5, 9, 50]), 3, 5, 9, TokenCounter(WordClient()), seed=1)


async def test_without_a_data_set_prompts_are_synthetic_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "find_spec", lambda name: None)

    made = await first_turns(None, 5, 16, 64, TokenCounter(WordClient()), seed=1)

    assert all(1 <= len(text.split()) <= 64 for text in made.texts)
    assert made.source.startswith("synthetic")


def test_a_truncated_file_ends_early(tmp_path: Path) -> None:
    file = dataset(tmp_path, [5, 6, 7])
    file.write_bytes(file.read_bytes()[:-40])

    assert len(list(read_conversations(file))) == 3


def test_records_are_found_across_the_blocks_of_a_big_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "READ_CHARS", 17)

    assert len(list(read_conversations(dataset(tmp_path, [1, 5, 20])))) == 4


def test_a_file_that_is_not_there_is_a_clear_failure(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="nowhere"):
        list(read_conversations(tmp_path / "nowhere.json"))


@pytest.mark.parametrize("tokens", [1, 16, 1500, 4000])
@pytest.mark.parametrize("can_count", [True, False])
async def test_synthetic_text_has_about_the_tokens_asked_for(tokens: int, can_count: bool) -> None:
    counter = TokenCounter(WordClient(can_count))

    have = await counter.count(await synthetic_text(tokens, counter, seed=3))

    assert tokens * 0.9 <= have <= tokens or have == 1
    assert counter.is_exact == can_count
