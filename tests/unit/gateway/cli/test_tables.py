"""What people and machines see of results."""

from __future__ import annotations

import json
import re

import pytest
from rich.console import Console

from gateway.cli.tables import Field, print_facts, print_json, print_table, visible

Row = tuple[str, int]
FIELDS: tuple[Field[Row], ...] = (
    Field("Name", lambda row: row[0]),
    Field("Tokens", lambda row: row[1], is_number=True),
)


def test_numbers_of_a_table_stand_under_each_other_with_separators(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([("a", 1_234_567), ("b", 8)], FIELDS, ("total", 1_234_575))

    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "─" not in line] == [
        "Name      Tokens",
        "a      1,234,567",
        "b              8",
        "total  1,234,575",
    ]


def test_a_row_that_is_piped_is_one_line_however_long(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([("n" * 300, 1)], FIELDS)

    assert "n" * 300 in capsys.readouterr().out


def test_a_name_has_no_power_over_a_terminal_and_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J[bold]<script>\nx\u202e"

    print_table([(evil, 1)], FIELDS)
    print_facts([("Name", evil)])

    printed = capsys.readouterr().out
    assert printed.count(r"\x1b[2J[bold]<script>\nx\u202e") == 2
    assert "\x1b" not in printed


def test_a_terminal_that_is_too_narrow_gets_the_facts_of_each_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.cli.tables.stdout", lambda: Console(force_terminal=True, soft_wrap=True, width=30))
    whole: Field[Row] = Field("ID", lambda row: row[0])
    text: Field[Row] = Field("Text", lambda _: "some words " * 9, folds=True)

    print_table([("x" * 4, 1)], (whole, text))
    folded = capsys.readouterr().out
    print_table([("x" * 5, 1), ("y" * 5, 2)], (whole, FIELDS[1], text), ("total", 3))
    facts = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)

    assert "xxxx  some words some words" in folded
    assert [line.split()[:2] for line in facts.splitlines()] == [
        *(["ID", "xxxxx"], ["Tokens", "1"], ["Text", "some"], []),
        *(["ID", "yyyyy"], ["Tokens", "2"], ["Text", "some"], []),
        *(["ID", "total"], ["Tokens", "3"], ["Text", "some"]),
    ]


def test_facts_that_are_not_there_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts((("ID", "k"), ("Models", None), ("Lanes", ("a", "b"))))

    assert capsys.readouterr().out == "ID     k\nLanes  a, b\n"


def test_json_is_one_document(capsys: pytest.CaptureFixture[str]) -> None:
    print_json([{"name": "\x1bé", "tokens": 10**15}])

    assert json.loads(capsys.readouterr().out) == [{"name": "\x1bé", "tokens": 10**15}]


def test_plain_text_of_any_language_stays_as_it_is() -> None:
    assert visible("Zürich 東京 ١") == "Zürich 東京 ١"
