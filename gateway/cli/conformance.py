"""`laneway conformance`: does a server keep to OpenAI's API, and is it free of the faults that others had?"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from gateway.cli.screen import CommandFailed, stderr, stdout
from gateway.version import own_version


def conformance(
    base_url: Annotated[str, typer.Argument(help="The server, with or without /v1.")] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="Model to ask for. \\[default: the first that is listed]")] = "",
    embedding_model: Annotated[
        str | None, typer.Option(help="Model to ask for vectors. \\[default: the same]", show_default=False)
    ] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key to send.", show_default=False)
    ] = None,
    only: Annotated[str, typer.Option(help="Comma list of cases (B17, V16) and groups. \\[default: all]")] = "",
    strict: Annotated[bool, typer.Option(help="Expect that all is refused which OpenAI refuses.")] = False,
    scripted: Annotated[
        bool | None,
        typer.Option("--scripted/--model-answers", help="Whether the field `script` is obeyed. \\[default: ask]"),
    ] = None,
    window: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the model's context. \\[default: as its card says]")
    ] = None,
    pause: Annotated[float, typer.Option(min=0, help="Seconds of the silences in scripted streams.")] = 1.0,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Cases at a time.")] = 1,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one request.")] = 60.0,
    json: Annotated[Path | None, typer.Option(help="Write the whole report here, as JSON.")] = None,
) -> None:
    """Ask an OpenAI-compatible server what a client would, and say what it does otherwise.

    It sends some hundred small requests. Exit code 1 when a case fails.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn  # a run alone pays for them

    from gateway.conformance.cases import all_cases, chosen
    from gateway.conformance.report import Report, show
    from gateway.conformance.run import run
    from gateway.conformance.survey import Unreachable, survey
    from gateway.conformance.target import Target

    if json is not None and not json.parent.is_dir():
        raise CommandFailed(f"--json: there is no folder {json.parent}")
    target = Target(
        address=base_url.rstrip("/").removesuffix("/v1"),
        model=model,
        embedding_model=embedding_model,
        api_key=api_key or None,
        strict=strict,
        window=window,
        timeout_s=timeout,
        pause_s=pause,
    )
    started_at, began = datetime.now(UTC).isoformat(timespec="seconds"), time.monotonic()
    try:
        target = asyncio.run(survey(target, scripted))
        cases = chosen(all_cases(target.window), [name.strip() for name in only.split(",") if name.strip()])
    except Unreachable as error:
        raise CommandFailed(str(error)) from None
    except LookupError as error:
        raise CommandFailed(f"--only: there is no case and no group {error.args[0]!r}") from None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=stderr(), transient=True) as progress:
        bar = progress.add_task("conformance", total=len(cases))
        results = asyncio.run(run(cases, target, concurrency=concurrency, done=lambda _: progress.advance(bar)))
    seconds = time.monotonic() - began
    report = Report.of(results, target, laneway=own_version(), started_at=started_at, seconds=seconds)
    show(report, stdout())
    if json is not None:
        json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    if report.counts["failed"]:
        raise typer.Exit(1)
