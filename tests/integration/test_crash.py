"""`kill -9` at random moments: what a caller saw whole is settled once, with the same counts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.chaos.crash import Crash, Plan


@pytest.mark.timeout(240)
def test_twenty_kills_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    plan = Plan(kills=20, seed=2026, store_url=f"sqlite:///{tmp_path / 'laneway.db'}", longest_life_s=0.8)

    outcome = asyncio.run(Crash(plan, tmp_path).run())

    assert sum(outcome.kills.values()) == 20
    assert outcome.seen > 200
    assert (outcome.missing, outcome.different, outcome.findings) == ([], [], [])
    assert outcome.crashed > 0  # some requests were in flight when it hit
