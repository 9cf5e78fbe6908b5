"""`laneway ledger`: prove that events, rollups and budgets agree, settle what a crash left open, export events."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from gateway.cli import amounts
from gateway.cli.files import open_output
from gateway.cli.tables import Field, print_facts, print_json, print_note, print_table
from gateway.cli.target import Config, Json, open_store

if TYPE_CHECKING:
    from gateway.events import Event
    from gateway.store import Store
    from gateway.verify import Finding, Report

FINDING_FIELDS: tuple[Field[Finding], ...] = (
    Field("Kind", lambda finding: finding.kind),
    Field("What", lambda finding: finding.what),
    Field("Expected", lambda finding: finding.expected, folds=True),
    Field("Found", lambda finding: finding.found, folds=True),
)
SETTLED_FIELDS: tuple[Field[Event], ...] = (
    Field("Request", lambda event: event.request_id),
    Field("Tenant", lambda event: event.tenant),
    Field("Model", lambda event: event.model),
    Field("Source", lambda event: event.source),
    Field("Prompt", lambda event: event.prompt_tokens, is_number=True),
    Field("Completion", lambda event: event.completion_tokens, is_number=True),
    Field("USD", lambda event: amounts.dollars(event.cost_nano), is_number=True),
)

ledger = typer.Typer(name="ledger", help="Prove, repair and export the record of what was used.", no_args_is_help=True)


@ledger.command("verify")
def verify_ledger(config: Config = None, as_json: Json = False) -> None:
    """Compare rollups and budgets with the events they come from. Exit code 1 when anything differs.

    A server that runs on the store is asked too: what it counts in memory must be what the store has.
    """
    from gateway.verify import verify

    with open_store(config) as (_, store):
        report = verify(store)
        report = msgspec.structs.replace(report, findings=(*report.findings, *_compare_memory(store)))
    if as_json:
        print_json(report)
    else:
        _print_report(report)
    if report.findings:
        raise typer.Exit(1)


def _compare_memory(store: Store) -> list[Finding]:
    """Where the running server counts budget windows otherwise than the store, or holds what should be free."""
    from gateway.control import NotRunning, ask
    from gateway.verify import Finding, compare_windows

    try:
        windows = ask(store, "windows", list[tuple[str, int, int, int]])
        leaks = ask(store, "leaks", list[str])
    except NotRunning:
        return []
    return [
        *compare_windows(
            durable=((rule_id, starts_at, durable) for rule_id, starts_at, _, durable in windows),
            live=((rule_id, starts_at, live) for rule_id, starts_at, live, _ in windows),
        ),
        *(
            Finding(kind="reservation", what=f"request {request_id}", expected="in flight", found="over, and holds on")
            for request_id in leaks
        ),
    ]


def _print_report(report: Report) -> None:
    if report.findings:
        print_table(report.findings, FINDING_FIELDS)
        print_note(f"{len(report.findings) + report.left_out:,} findings; the store and its backups say who is right.")
        return
    checked = report.checked
    print_facts(
        (
            *(("Findings", "none"), ("In flight", len(report.in_flight)), ("Settled requests", checked.settles)),
            *(("Hours", checked.hours), ("Days", checked.days), ("Budget windows", checked.windows)),
            ("Since", amounts.shown_at(report.since)),
        )
    )


@ledger.command("recover")
def recover_ledger(config: Config = None, as_json: Json = False) -> None:
    """Settle what servers that ended without an end left open, by what they had noted last. Running ones go on."""
    from gateway.recovery import recover

    with open_store(config) as (settings, store):
        events = recover(store, count_cached=settings.limits.count_cached)
    if as_json:
        print_json([msgspec.structs.asdict(event) for event in events])
    elif events:
        print_table(events, SETTLED_FIELDS)
    else:
        print_note("Nothing was open.")


@ledger.command("export")
def export_ledger(
    since: Annotated[
        float | None, typer.Option(parser=amounts.past_at, metavar="7d|DATE", help="From when on. \\[default: 30d]")
    ] = None,
    until: Annotated[
        float | None, typer.Option(parser=amounts.past_at, metavar="1d|DATE", help="Until when. \\[default: now]")
    ] = None,
    form: Annotated[Literal["csv", "parquet", "jsonl"], typer.Option("--format", help="How to write it.")] = "csv",
    output: Annotated[Path | None, typer.Option(help="Write it here. \\[default: standard output]")] = None,
    all_events: Annotated[
        bool, typer.Option("--all-events", help="Every event; else one row for each settled request.")
    ] = False,
    config: Config = None,
) -> None:
    """Write what was used, request by request."""
    from gateway.export import export_events

    now = time.time()
    begins_at = now - amounts.RECENT_S if since is None else since
    ends_at = now if until is None else until
    with open_store(config) as (_, store), open_output(output, form) as out:
        export_events(store, out, since=begins_at, until=ends_at, format=form, all_events=all_events)
