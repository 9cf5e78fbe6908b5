"""`laneway bench` against a real server, small enough for seconds."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.integration.served import IN_TIME_S, LANEWAY, SCRIPTED, Serve, eventually

SLOW = SCRIPTED + "default_delay_s = 0.002\n"
SMALL = (
    *("--warmup", "1", "--concurrency", "1,3", "--requests", "4", "--output-tokens", "6"),
    *("--short-requests", "5", "--short-interval", "0.02", "--long-tokens", "300", "--long-output-tokens", "2"),
    *("--stream-tokens", "60", "--stream-lead", "5", "--stall-others", "2", "--stall-repeats", "1"),
    *("--prefix-tokens", "50", "--prefix-requests", "3"),
)


def bench(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run it to its end."""
    argv = (*LANEWAY, "bench", *arguments)
    return subprocess.run(argv, env=os.environ | environ, capture_output=True, text=True, timeout=IN_TIME_S)


def dataset(folder: Path) -> Path:
    """Six conversations."""
    turn = "tell me something about the sea and the ships on it if you can please do it now and be brief"
    file = folder / "sharegpt.json"
    file.write_text(json.dumps([{"conversations": [{"from": "human", "value": f"{n} {turn}"}]} for n in range(6)]))
    return file


def report_of(served_address: str, folder: Path, *arguments: str, **environ: str) -> dict[str, Any]:
    """The JSON of a run that went well."""
    file = folder / "report.json"
    run = bench(served_address, "--json", str(file), *SMALL, *arguments, **environ)
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    return found | {"printed": run.stdout}


def test_all_scenarios_report_what_was_asked_and_nothing_failed(serve: Serve, tmp_path: Path) -> None:
    served = serve(SLOW)

    report = report_of(served.address, tmp_path, "--dataset", str(dataset(tmp_path)))

    levels, hol, prefix = report["throughput"], report["hol"], report["prefix"]
    assert [(level["concurrency"], level["tally"]["requests"]) for level in levels] == [(1, 4), (3, 4)]
    assert {level["output_tokens"] for level in levels} == {4 * 6}
    assert (hol["idle"]["ttft_s"]["n"], hol["beside"]["ttft_s"]["n"], len(hol["stalls"])) == (5, 5, 3)
    assert 290 <= hol["longs"]["prompt_tokens"] <= 302
    assert prefix["tally"] == {"requests": 3, "failed": 0, "first_error": None, "short_outputs": 0}
    failures = [part["tally"]["failed"] for part in (*levels, hol["idle"], hol["beside"], hol["longs"])]
    assert set(failures) == {0}
    assert report["tokens_counted_by"] == "tokens counted by the server"
    assert "| beside 2 long |" in report["printed"]
    assert "failed" not in report["printed"]


def test_a_scenario_alone_leaves_the_others_out(serve: Serve, tmp_path: Path) -> None:
    served = serve()

    report = report_of(f"{served.address}/v1/", tmp_path, "--scenario", "prefix")

    assert (report["throughput"], report["hol"]) == (None, None)
    assert report["prefix"]["tally"]["requests"] == 3


def test_the_key_is_sent_and_in_no_report(serve: Serve, tmp_path: Path) -> None:
    served = serve(LANEWAY_AUTH__KEYS="sk-for-the-bench")

    report = report_of(served.address, tmp_path, "--scenario", "prefix", OPENAI_API_KEY="sk-for-the-bench")
    without = bench(served.address, "--scenario", "prefix", OPENAI_API_KEY="")

    assert report["prefix"]["tally"]["failed"] == 0
    assert "sk-for-the-bench" not in json.dumps(report)
    assert without.returncode == 1
    assert without.stderr.endswith("give one with --model, or --api-key\n")


def test_requests_that_fail_are_counted_and_shown(serve: Serve, tmp_path: Path) -> None:
    served = serve(SCRIPTED + "max_model_len = 100\n")

    report = report_of(served.address, tmp_path, "--scenario", "hol")

    assert report["hol"]["longs"]["tally"]["failed"] > 0
    assert "maximum context length" in report["hol"]["longs"]["tally"]["first_error"]
    assert report["hol"]["idle"]["tally"]["failed"] == 0
    assert "! long prompts:" in report["printed"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_reports_what_it_has(number: signal.Signals, serve: Serve, tmp_path: Path) -> None:
    served = serve(SLOW)
    arguments = (
        *("--scenario", "prefix,throughput", "--prefix-requests", "9999"),
        *("--requests", "2", "--concurrency", "1"),
    )
    argv = (*LANEWAY, "bench", served.address, "--dataset", str(dataset(tmp_path)), *arguments)
    errors = tmp_path / "errors"
    with errors.open("wb") as log:
        run = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=log, text=True)
        eventually(lambda: "shared prefix" in errors.read_text(), "the last scenario has begun")
        run.send_signal(number)
        printed, _ = run.communicate(timeout=IN_TIME_S)

    assert run.returncode == 130
    assert "throughput, ShareGPT first turns" in printed
