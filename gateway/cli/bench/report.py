"""The report: a Struct for machines, tables for people. Times are in milliseconds on screen, in seconds in the file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table

from gateway.cli.bench.head_of_line import HeadOfLine
from gateway.cli.bench.prefix import Prefix
from gateway.cli.bench.roofline import Roofline
from gateway.cli.bench.stats import Tally
from gateway.cli.bench.throughput import Level

if TYPE_CHECKING:  # these two load the whole gateway, which `laneway --help` need not wait for
    from gateway.cli.bench.ledger_queries import LedgerQueries
    from gateway.cli.bench.overhead import Overhead


class Report(Struct, kw_only=True):
    """Everything a run found; the scenarios that did not run, or not to their end, are None.

    `options` are all that the command was called with, the key left out.
    """

    laneway: str
    base_url: str
    model: str
    machine: str
    started_at: str
    tokens_counted_by: str
    options: dict[str, object]
    prompts: str | None = None
    roofline: Roofline | None = None
    throughput: list[Level] | None = None
    hol: HeadOfLine | None = None
    prefix: Prefix | None = None
    overhead: Overhead | None = None
    usage: LedgerQueries | None = None


def show(report: Report, console: Console) -> None:
    """Print what there is; the tables are Markdown, to be pasted."""
    if report.model:
        console.print(f"{report.model} at {report.base_url}; times in ms, {report.tokens_counted_by}", markup=False)
    if report.throughput is not None:
        _show_throughput(report.throughput, report.prompts or "", report.roofline, console)
    if report.hol is not None:
        _show_head_of_line(report.hol, console)
    if report.prefix is not None:
        _show_prefix(report.prefix, console)
    if report.overhead is not None:
        _show_overhead(report.overhead, console)
    if report.usage is not None:
        _show_usage(report.usage, console)
    for what, count in _failures(report):
        failed = f"{count.failed} of {count.requests} requests failed; the first: {count.first_error}"
        console.print(f"! {what}: {failed}", style="red", markup=False)


def ms(seconds: float | None) -> str:
    """Milliseconds, with a decimal where it matters."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.0f}" if seconds >= 0.1 else f"{seconds * 1000:.1f}"


def number(value: float | None, digits: int = 1) -> str:
    """A number or a dash."""
    return "-" if value is None else f"{value:.{digits}f}"


def _ok(count: Tally) -> str:
    return f"{count.requests - count.failed}/{count.requests}"


def _table(*columns: str) -> Table:
    table = Table(box=box.MARKDOWN)
    for at, column in enumerate(columns):
        table.add_column(column, justify="left" if at == 0 else "right")
    return table


def _show_throughput(levels: list[Level], prompts: str, roofline: Roofline | None, console: Console) -> None:
    rates = _table("at", "ok", "short", "output tok/s", "all tok/s", "req/s", "roofline")
    times = _table("at", "TTFT p50", "p95", "p99", "ITL p50", "p99", "TPOT p50", "whole p50")
    for level in levels:
        per_second = (number(level.output_tok_s), number(level.total_tok_s), number(level.requests_s, 2))
        short, share = str(level.tally.short_outputs), number(level.roofline_share, 3)
        rates.add_row(str(level.concurrency), _ok(level.tally), short, *per_second, share)
        ttft, itl = level.ttft_s, level.itl_s
        values = (ttft.p50, ttft.p95, ttft.p99, itl.p50, itl.p99, level.tpot_s.p50, level.e2e_s.p50)
        times.add_row(str(level.concurrency), *map(ms, values))
    console.print(f"\nthroughput, {prompts}", markup=False)
    console.print(rates, times)
    if roofline is not None:
        rate = f"{roofline.flops_s / 1e9:.0f} GFLOP/s in a bf16 GEMM on {roofline.threads} threads"
        console.print(f"roofline: {rate}, {roofline.body_params:g} + {roofline.head_params:g} parameters")


def _show_head_of_line(hol: HeadOfLine, console: Console) -> None:
    shorts = _table("short chats", "ok", "TTFT p50", "p95", "p99", "max", "ITL p99", "max")
    for name, row in (("alone", hol.idle), (f"beside {hol.num_long} long", hol.beside)):
        ttft, itl = row.ttft_s, row.itl_s
        shorts.add_row(name, _ok(row.tally), *map(ms, (ttft.p50, ttft.p95, ttft.p99, ttft.max, itl.p99, itl.max)))
    console.print("\nhead of line")
    console.print(shorts)
    console.print(f"beside over alone: TTFT p50 × {number(hol.ttft_p50_ratio)}, p99 × {number(hol.ttft_p99_ratio)}")
    longs = hol.longs
    console.print(
        f"long prompts of {longs.prompt_tokens} tokens: {_ok(longs.tally)}, TTFT p50 {ms(longs.ttft_s.p50)}, "
        f"whole p50 {ms(longs.e2e_s.p50)}"
    )
    if hol.stalls:
        _show_stalls(hol, console)


def _show_stalls(hol: HeadOfLine, console: Console) -> None:
    table = _table("a stream and a long prompt", "gap before", "worst gap", "TTFT", "long TTFT")
    for stall in hol.stalls:
        times = (stall.gap_before_p50_s, stall.worst_gap_s, stall.stream_ttft_s, stall.long_ttft_s)
        table.add_row(stall.case, *(("failed", "", "", "") if stall.error else map(ms, times)))
    console.print(table)
    if any(stall.worst_gap_s is None and stall.error is None for stall in hol.stalls):
        console.print("no worst gap: the stream did not run while the long prompt was read (--stream-tokens)")
    console.print(f"worst gap of a running stream: {ms(hol.worst_gap_s)}")
    for stall in hol.stalls:
        if stall.error is not None:
            console.print(f"! {stall.case}: {stall.error}", style="red", markup=False)


def _show_prefix(prefix: Prefix, console: Console) -> None:
    table = _table("ok", "prompt", "first TTFT", "rest p50", "rest p99", "speedup", "cached")
    cached = "-" if prefix.cached_tokens_last is None else str(prefix.cached_tokens_last)
    times = map(ms, (prefix.first_ttft_s, prefix.rest_ttft_s.p50, prefix.rest_ttft_s.p99))
    table.add_row(_ok(prefix.tally), str(prefix.prompt_tokens or "-"), *times, number(prefix.speedup), cached)
    console.print("\nshared prefix")
    console.print(table)


def _show_overhead(overhead: Overhead, console: Console) -> None:
    loads = _table("CPU of the whole process a request", "req/s", "bare µs", "whole µs", "added µs")
    waits = _table("how long others wait", "bare p99 ms", "whole p99 ms", "bare calm", "whole calm")
    for load in overhead.loads:
        costs = (number(load.bare_us, 0), number(load.whole_us, 0), number(load.added_us, 0))
        loads.add_row(load.load, number(load.requests_s, 0), *costs)
        calm = (f"{load.bare_calm_share:.2%}", f"{load.whole_calm_share:.2%}")
        waits.add_row(load.load, ms(load.bare_p99_s), ms(load.whole_p99_s), *calm)
    console.print("\noverhead of limits, lanes and ledger; calm: looks at the event loop that were less than 5 ms late")
    console.print(loads)
    console.print(waits)


def _show_usage(found: LedgerQueries, console: Console) -> None:
    console.print(
        f"\nusage: {found.requests:,} requests, {found.events:,} ledger rows, {found.hours:,} hours and "
        f"{found.days:,} days in the rollups, {found.file_bytes / 1e9:.2f} GB, filled in {found.filled_in_s:.0f} s"
    )
    table = _table("question", "answers", "p50", "max")
    for query in found.queries:
        table.add_row(
            query.what, str(query.answers), *(number(1000 * (s or 0)) for s in (query.time_s.p50, query.time_s.max))
        )
    console.print(table)


def _failures(report: Report) -> Iterator[tuple[str, Tally]]:
    tallies = [(f"throughput at {level.concurrency}", level.tally) for level in report.throughput or ()]
    if report.hol is not None:
        tallies += [("short chats alone", report.hol.idle.tally), ("short chats beside", report.hol.beside.tally)]
        tallies += [("long prompts", report.hol.longs.tally)]
    if report.prefix is not None:
        tallies += [("shared prefix", report.prefix.tally)]
    return ((what, count) for what, count in tallies if count.failed)
