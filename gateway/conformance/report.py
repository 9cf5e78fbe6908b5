"""What came of a run: counts by group, each failure with what was asked, expected and got, and what was not run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.conformance.run import Outcome, Result
from gateway.conformance.target import Target

OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "not run")
SHOWN_IDS = 8  # of the cases that were not run for one reason


class Report(Struct, frozen=True, kw_only=True):
    """A whole run, as it is written in JSON. It has no key in it."""

    laneway: str
    address: str
    model: str
    embedding_model: str | None
    scripted: bool
    strict: bool
    window: int | None
    started_at: str
    seconds: float
    counts: dict[str, int]
    results: list[Result]

    @classmethod
    def of(cls, results: Sequence[Result], target: Target, *, laneway: str, started_at: str, seconds: float) -> Report:
        """The report of results; `started_at` is an ISO instant."""
        counts = Counter(result.outcome for result in results)
        return cls(
            laneway=laneway,
            address=target.address,
            model=target.model,
            embedding_model=target.embedding_model,
            scripted=target.scripted,
            strict=target.strict,
            window=target.window,
            started_at=started_at,
            seconds=round(seconds, 1),
            counts={outcome: counts[outcome] for outcome in OUTCOMES},
            results=list(results),
        )


def show(report: Report, console: Console) -> None:
    """The report for people."""
    console.print(_head(report))
    console.print(_counts(report.results))
    for result in report.results:
        if result.outcome == "failed":
            console.print(_failure(result))
    for reason, ids in _not_run(report.results).items():
        more = f" and {len(ids) - SHOWN_IDS} more" if len(ids) > SHOWN_IDS else ""
        console.print(Text.assemble(("not run ", "yellow"), f"{' '.join(ids[:SHOWN_IDS])}{more}: {reason}"))
    told = ", ".join(f"{report.counts[outcome]} {outcome}" for outcome in OUTCOMES)
    console.print(Text(f"{told}, in {report.seconds:g} s", "red" if report.counts["failed"] else "green"))


def _head(report: Report) -> Text:
    mode = "strict" if report.strict else "lenient"
    answers = "a scripted backend" if report.scripted else "a model"
    return Text(f"{report.address}, {report.model}: {answers}, {mode}")


def _counts(results: Sequence[Result]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("group")
    for outcome in OUTCOMES:
        table.add_column(outcome, justify="right")
    for group in dict.fromkeys(result.group for result in results):
        counts = Counter(result.outcome for result in results if result.group == group)
        table.add_row(group, *(str(counts[outcome] or "") for outcome in OUTCOMES))
    return table


def _failure(result: Result) -> Text:
    lines = Text.assemble(("failed ", "bold red"), (f"{result.id} {result.title}", "bold"))
    if result.sources:
        lines.append(f" ({', '.join(result.sources)})", "dim")
    for name, told in (("asked", result.asked), ("right", result.expected), ("got", result.got)):
        if told is not None:
            lines.append(f"\n  {name:<6}", "dim").append(told)
    return lines


def _not_run(results: Sequence[Result]) -> dict[str, list[str]]:
    """The cases that were not run, by the reason."""
    reasons: dict[str, list[str]] = {}
    for result in results:
        if result.outcome == "not run" and result.reason is not None:
            reasons.setdefault(result.reason, []).append(result.id)
    return reasons
