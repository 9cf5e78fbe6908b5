"""How results are shown: one JSON document for machines, tables and lines of facts for people."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct
from rich.box import SIMPLE
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from gateway.cli.screen import stderr, stdout

Row = TypeVar("Row")

WIDEST = 10_000
FOLDED = 24  # what a column that folds needs at least


class Field(Struct, Generic[Row], frozen=True):
    """Something that is shown of a row. In a table numbers stand right, so that their digits are under each other.

    Only what `folds` may take several lines: half of an ID could not be copied, half a number would be another one.
    """

    title: str
    of: Callable[[Row], object]
    is_number: bool = False
    folds: bool = False


def print_json(value: object) -> None:
    """The whole answer of a command, as one JSON document. Structs are objects."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n")


def print_rows(rows: Sequence[Row], fields: Sequence[Field[Row]], as_json: bool) -> None:
    """A list: all of each row in JSON, its fields in a table."""
    if as_json:
        print_json(rows)
    else:
        print_table(rows, fields)


def print_row(row: Row, fields: Sequence[Field[Row]], as_json: bool) -> None:
    """One row: all of it in JSON, its fields as lines."""
    if as_json:
        print_json(row)
    else:
        print_facts((field.title, field.of(row)) for field in fields)


def print_table(rows: Sequence[Row], fields: Sequence[Field[Row]], totals: Row | None = None) -> None:
    """Rows under their titles; where a terminal is too narrow for that, the facts of each row, a blank line between.

    A file or a pipe gets each row in one line.
    """
    table, console = _table(rows, fields, totals), stdout()
    width = Measurement.get(console, console.options.update(max_width=WIDEST), table).maximum
    if not console.is_terminal:
        console.width = width
    elif rows and width - _spare(rows, fields) > console.width:
        _print_one_by_one(console, rows if totals is None else [*rows, totals], fields)
        return
    console.print(table)


def _table(rows: Sequence[Row], fields: Sequence[Field[Row]], totals: Row | None) -> Table:
    table = Table(box=SIMPLE, show_edge=False, pad_edge=False, collapse_padding=True, show_footer=totals is not None)
    table.header_style = table.footer_style = "bold"
    for field in fields:
        table.add_column(
            field.title,
            footer="" if totals is None else _cell(field.of(totals)),
            justify="right" if field.is_number else "left",
            no_wrap=not field.folds,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(_cell(field.of(row)) for field in fields))
    return table


def _spare(rows: Sequence[Row], fields: Sequence[Field[Row]]) -> int:
    """How much narrower a table can be by folding."""
    widest = (max(_cell(field.of(row)).cell_len for row in rows) for field in fields if field.folds)
    return sum(max(0, cells - FOLDED) for cells in widest)


def _print_one_by_one(console: Console, rows: Iterable[Row], fields: Sequence[Field[Row]]) -> None:
    for at, row in enumerate(rows):
        if at:
            console.print()
        print_facts((field.title, field.of(row)) for field in fields)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """One `name  value` a line, for what there is."""
    shown = [(name, text) for name, value in facts if (text := _text(value))]
    width = max((len(name) for name, _ in shown), default=0)
    console = stdout()
    for name, text in shown:
        console.print(Text.assemble((f"{name:{width}}  ", "dim"), text))


def print_note(text: str) -> None:
    """A sentence for people beside the result, on stderr."""
    stderr().print(Text(visible(text)))


def visible(text: str) -> str:
    """The text without power over a terminal: what cannot be printed is shown as its escape."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _cell(value: object) -> Text:
    return Text(_text(value))


def _text(value: object) -> str:
    """Nothing for None, names joined, whole numbers with separators."""
    if value is None:
        return ""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, list | tuple):
        return visible(", ".join(map(str, value)))
    return visible(str(value))
