"""`laneway usage`: who used what, from the rollups."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import typer

from gateway.cli import amounts
from gateway.cli.files import open_output
from gateway.cli.tables import Field, print_table
from gateway.cli.target import Config, Json, open_store

Form: TypeAlias = Literal["table", "csv", "json", "parquet"]
UsageRow: TypeAlias = dict[str, str | int]

BY = "tenant, project, key, model, lane, outcome, source, day, hour"
COST = "cost_nano_usd"
RARE = ("cached_tokens", "reasoning_tokens")


def usage(
    by: Annotated[
        amounts.Names | None,
        typer.Option(parser=amounts.Names, metavar="A,B", help=f"What to add up by: {BY}. \\[default: tenant]"),
    ] = None,
    since: Annotated[
        float | None,
        typer.Option(parser=amounts.past_at, metavar="7d|DATE", help="From when on, UTC. \\[default: 30d]"),
    ] = None,
    until: Annotated[
        float | None, typer.Option(parser=amounts.past_at, metavar="1d|DATE", help="Until when. \\[default: now]")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only of this tenant.")] = None,
    project: Annotated[str | None, typer.Option(help="Only of projects of this name.")] = None,
    key: Annotated[str | None, typer.Option(help="Only of the key with this id.")] = None,
    model: Annotated[str | None, typer.Option(help="Only of this model.")] = None,
    lane: Annotated[str | None, typer.Option(help="Only of this lane.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only what ended so: ok, client_abort, deadline, …")] = None,
    source: Annotated[str | None, typer.Option(help="Only counts that come from: reported, counted, …")] = None,
    form: Annotated[Form, typer.Option("--format", help="How to write it.")] = "table",
    output: Annotated[Path | None, typer.Option(help="Write it here. \\[default: standard output]")] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show requests, tokens and cost, by tenant, model and more."""
    names = by or ("tenant",)
    form = _form(form, output, as_json)
    wanted = {
        **{"tenant": tenant, "project": project, "key": key, "model": model},
        **{"lane": lane, "outcome": outcome, "source": source},
    }
    rows = _read(config, names, since, until, {name: value for name, value in wanted.items() if value is not None})
    if form == "table":
        print_usage(rows, names)
    else:
        _write(rows, names, form, output)


def _form(form: Form, output: Path | None, as_json: bool) -> Form:
    if as_json and form not in ("table", "json"):
        raise typer.BadParameter(f"--json and --format {form} contradict each other; give one of them")
    if output is not None and form == "table" and not as_json:
        raise typer.BadParameter("--output: a table is for terminals; choose --format csv, json or parquet")
    return "json" if as_json else form


def _read(
    config: Path | None, names: Sequence[str], since: float | None, until: float | None, where: Mapping[str, str]
) -> list[UsageRow]:
    from gateway import usage as rollups

    begins_at = time.time() - amounts.RECENT_S if since is None else since
    with open_store(config) as (_, store):
        return rollups.usage(store, by=names, since=begins_at, until=until, where=where)


def _write(rows: list[UsageRow], names: Sequence[str], form: Form, output: Path | None) -> None:
    from gateway.export import write_table
    from gateway.usage import SUMS

    with open_output(output, form) as out:
        write_table(rows, (*names, *SUMS.values()), form, out)


def print_usage(rows: list[UsageRow], names: Sequence[str]) -> None:
    """The rows and their sum, with money in USD, exact and aligned. Kinds of tokens that nobody used are left out."""
    from gateway.usage import SUMS

    sums = {name: sum(int(row[name]) for row in rows) for name in SUMS.values()}
    decimals = amounts.decimals_of(int(row[COST]) for row in rows)
    groups = [Field[UsageRow](name.capitalize(), itemgetter(name)) for name in names]
    counted = [name for name in sums if name != COST and (sums[name] or name not in RARE)]
    counts = [
        Field[UsageRow](name.removesuffix("_tokens").capitalize(), itemgetter(name), is_number=True) for name in counted
    ]
    cost = Field[UsageRow]("USD", lambda row: amounts.dollars(int(row[COST]), decimals), is_number=True)
    totals: UsageRow = dict.fromkeys(names, "") | {names[0]: "total"} | sums
    print_table(rows, [*groups, *counts, cost], totals)
