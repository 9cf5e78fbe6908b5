"""Every case of `laneway conformance` against a real front, in both modes, and the command itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.config import Settings
from gateway.conformance.case import Case
from gateway.conformance.faults import fault_cases
from gateway.conformance.probe import Probe
from gateway.conformance.run import run_with
from gateway.conformance.survey import survey
from gateway.conformance.target import Target
from gateway.conformance.validation import validation_cases
from gateway.lanes import DEFAULT_LANES
from gateway.openai.wire import WireOptions
from gateway.store import StoreOptions
from gateway.tenants import AuthOptions
from tests.integration.front.front_server import Front, Serve, running

MODEL = "scripted"
KEY = "sk-the-right-key"
WINDOW = 64
VECTORS, FAULTS = list(validation_cases(WINDOW)), fault_cases()
NEED_SCRIPTS = "it needs a scripted backend (docs/scripted.md)"


def name(case: Case) -> str:
    return f"{case.id} {case.title}"[:100]


class Asked:
    """A front and what is known of it as a target."""

    def __init__(self, front: Front, target: Target) -> None:
        self.front = front
        self.target = target


@contextmanager
def serving(folder: Path, *, strict: bool) -> Iterator[Asked]:
    settings = Settings(
        auth=AuthOptions(keys=(KEY,)),
        store=StoreOptions(url=f"sqlite:///{folder}/laneway.db"),
        wire=WireOptions(strict=strict, keep_alive_s=0.05),
        lanes=dict(DEFAULT_LANES),
        backends={"test": {"type": "scripted", "models": [MODEL], "max_model_len": WINDOW, "matryoshka": True}},
    )
    with running(settings, folder) as front:
        target = Target(address=front.url, model=MODEL, api_key=KEY, strict=strict, pause_s=0.3)
        yield Asked(front, asyncio.run(survey(target)))


@pytest.fixture(scope="module")
def lenient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with serving(tmp_path_factory.mktemp("lenient"), strict=False) as asked:
        yield asked


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with serving(tmp_path_factory.mktemp("strict"), strict=True) as asked:
        yield asked


async def check(asked: Asked, case: Case) -> int:
    """The case passes; how many of its requests were answered."""
    async with Probe(asked.target) as probe:
        result = await run_with(probe, case)
        assert result.outcome == "passed", f"asked {result.asked}\nright {result.expected}\ngot   {result.got}"
        return sum(reply.status == 200 for reply in probe.replies)


@pytest.mark.parametrize("mode", ["lenient", "strict"])
@pytest.mark.parametrize("case", VECTORS, ids=name)
def test_a_vector_is_answered_as_the_table_says(request: pytest.FixtureRequest, mode: str, case: Case) -> None:
    """And what is refused never reaches the backend."""
    asked: Asked = request.getfixturevalue(mode)
    started = asked.front.count("started")

    answered = asyncio.run(check(asked, case))

    assert asked.front.count("started") <= started + answered


@pytest.mark.parametrize("case", FAULTS, ids=name)
def test_a_public_fault_is_not_found(lenient: Asked, case: Case) -> None:
    asyncio.run(check(lenient, case))


def test_every_row_of_the_table_and_every_fault_is_a_case() -> None:
    rows = {int(case.id[1:].partition(".")[0]) for case in VECTORS}

    assert rows >= set(range(1, 81))
    assert sorted(case.id for case in FAULTS) == [f"B{number:02}" for number in range(1, 99)]
    assert all(case.sources for case in FAULTS)


def laneway(*arguments: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "gateway.cli.main", "conformance", *arguments]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60)


def test_the_command_tells_what_passed_and_writes_it_down(serve: Serve, tmp_path: Path) -> None:
    front, report = serve(max_model_len=WINDOW), tmp_path / "report.json"

    done = laneway(f"{front.url}/v1", "--only", "B01,V16,messages", "--json", str(report), "--concurrency", "4")
    whole = json.loads(report.read_text())

    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout
    assert (whole["model"], whole["scripted"], whole["window"]) == (MODEL, True, WINDOW)
    assert {result["outcome"] for result in whole["results"]} == {"passed"}
    assert {"B01", "B50", "V16.1", "V16.2"} <= {result["id"] for result in whole["results"]}


def test_the_command_tells_what_a_server_does_otherwise_and_what_it_could_not_ask(serve: Serve) -> None:
    """A server in strict mode, taken for a lenient one."""
    front = serve(wire=WireOptions(strict=True), max_model_len=WINDOW)

    done = laneway(front.url, "--only", "V24,V25,B17")

    assert done.returncode == 1
    assert "failed V24.1" in done.stdout
    assert "right the status is 200" in done.stdout
    assert '"code":"array_above_max_length"' in done.stdout
    assert f"not run B17: {NEED_SCRIPTS}" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("http://127.0.0.1:9",), "does not answer"),
        (("{url}", "--only", "B99"), "no case and no group 'B99'"),
        (("{url}", "--model", "nope"), "a plain chat is not answered"),
        (("{url}", "--json", "/nowhere/report.json"), "there is no folder /nowhere"),
    ],
)
def test_the_command_says_what_to_do_when_it_cannot_ask(front: Front, arguments: tuple[str, ...], words: str) -> None:
    done = laneway(*(argument.replace("{url}", front.url) for argument in arguments))

    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
