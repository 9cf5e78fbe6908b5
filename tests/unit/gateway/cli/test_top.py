"""The live view where there is little room."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from backends.types import Usage
from gateway.cli.top import Screen
from gateway.counters import RuleState
from gateway.ledger import OpenEntry
from gateway.rules import Rule, Scope
from gateway.state import BackendNow, LaneState, ServerState, Totals
from gateway.writer import WriterState

AMOUNT = 1_234_567_123_456_789
STATE = ServerState(
    version="1",
    uptime_s=5.0,
    loop_lag_s=0.0,
    totals=Totals(requests=1, prompt_tokens=7_654_321, completion_tokens=0),
    lanes={"interactive": LaneState(running=1111, waiting=2222, oldest_wait_s=3333.0)},
    backends={"a-backend-with-a-name": BackendNow(ready=False, running=4444, waiting=5555, detail="it " * 50)},
    requests=[
        OpenEntry(
            request_id="r",
            shown_id=None,
            tenant="a-tenant-with-a-long-name",
            project="default",
            key_id="key_0123456789abcdefghij",
            model="a-model-with-a-long-name",
            lane="interactive",
            backend="a-backend-with-a-name",
            state="running",
            age_s=6666.6,
            usage=Usage(prompt_tokens=7_654_321, completion_tokens=123_456),
        )
    ],
    limits=[
        RuleState(
            rule=Rule(
                id="lim_1",
                scope=Scope("key", "key_0123456789abcdefghij"),
                meter="usd",
                amount=AMOUNT,
                period="rolling:24h",
            ),
            used=AMOUNT - 1,
            reserved=1,
            remaining=0,
            resets_in_s=None,
            starts_at=0,
            refused=0,
            would_refuse=0,
        )
    ],
    writer=WriterState(queued=0, spooled=0, groups=1, records=1, rejected=0, last_error=None, store_is_away=False),
)


def show(columns: int) -> str:
    """One look on a terminal of so many columns."""
    console = Console(file=io.StringIO(), width=columns, highlight=False, soft_wrap=True)
    console.print(Screen().show(STATE))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("columns", [80, 100, 200])
def test_numbers_are_never_cut(columns: int) -> None:
    shown = show(columns)

    numbers = ("1,111", "2,222", "3333.0 s", "4,444", "5,555", "6666.6 s", "7,654,321", "123,456")
    for number in (*numbers, "$1,234,567.123456789", "$1,234,567.123456788", "$0.000000001"):
        assert number in shown
    assert max(map(len, shown.splitlines()[1:])) <= columns


def test_where_there_is_no_room_at_all_a_number_takes_two_lines() -> None:
    shown = show(50)

    assert "7,654,321" in shown
    limits = shown[shown.index("Limits") : shown.index("1 in flight")]
    assert sorted(filter(str.isdigit, limits)) == sorted("1234567123456789" + "1234567123456788" + "0000000001")


def test_the_bar_is_titled_by_what_it_draws() -> None:
    assert "Taken" in show(120)
