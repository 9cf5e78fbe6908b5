"""`kill -9` while batches run: every line is in one of the files once, and every answer is billed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.chaos.batch_crash import BatchCrash, Plan

if TYPE_CHECKING:
    from tests.stores import Postgres


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'laneway.db'}"
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.mark.timeout(240)
def test_batches_that_are_killed_midway_go_on_and_bill_each_line_once(store_url: str, tmp_path: Path) -> None:
    outcome = BatchCrash(Plan(kills=10, seed=2026, store_url=store_url), tmp_path).run()

    assert sum(outcome.kills.values()) == 10
    assert outcome.statuses == ["completed"] * 3
    assert Counter(outcome.answered + outcome.refused) == Counter(outcome.expected)
    assert outcome.answered == [name for name in outcome.expected if name in set(outcome.answered)]  # in their order
    answered = {row.request_id: row.tokens for row in outcome.billed if row.outcome == "ok"}
    assert answered == outcome.answers
    assert outcome.usage == sum(answered.values())
    assert {(row.tokens, row.cost_nano) for row in outcome.billed if row.outcome != "ok"} <= {(0, 0)}
    assert all(row.cost_nano > 0 for row in outcome.billed if row.outcome == "ok")
    assert any(row.outcome == "crash" for row in outcome.billed)  # some lines were in flight when it hit
    assert (outcome.left, outcome.findings) == (0, [])
