"""Scenario overhead: what limits, lanes and ledger cost a request, as CPU of the whole front.

Two fronts over the scripted backend, one whole and one bare, are loaded in turn with the same requests; the difference
of their medians is the cost. Both authenticate; the whole one has limits on requests, tokens, concurrency and money.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httptools
import msgspec
from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from gateway import processes
from gateway.accounts import Accounts
from gateway.cli.bench.pool import Pool
from gateway.cli.bench.progress import Phases
from gateway.cli.screen import CommandFailed
from gateway.config import load_settings
from gateway.rules import NANO, Scope
from gateway.store import Store

KEY = "overhead-key"
PLENTY = 10**12
PACE = 500.0
CONNECTIONS = 32
CALM_LAG_S = 0.005
TICKS_S = 1 / os.sysconf("SC_CLK_TCK")
MODULES = {"bare": "gateway.cli.bench.bare_front", "whole": "gateway.front"}
CONFIG = """
[server]
port = 0
log_level = "warning"
[auth]
keys = ["{key}"]
[store]
url = "sqlite:///{name}.db"
[backends.test]
type = "scripted"
models = ["scripted"]
"""


class OverheadOptions(Struct, frozen=True, kw_only=True):
    """Windows of `overhead_window` seconds, `overhead_rounds` of each kind."""

    window_s: float = msgspec.field(name="overhead_window")
    rounds: int = msgspec.field(name="overhead_rounds")


class Load(Struct, frozen=True, kw_only=True):
    """One kind of load: microseconds of CPU a request of either front, medians over the rounds, and the difference.

    The calm shares are of the looks at a front's loop: those that were less than 5 ms late.
    """

    load: str
    requests_s: float
    bare_us: float
    whole_us: float
    added_us: float
    bare_p99_s: float
    whole_p99_s: float
    bare_calm_share: float
    whole_calm_share: float


class Overhead(Struct, frozen=True, kw_only=True):
    """What each kind of load found."""

    loads: list[Load]


class Looks(Struct, frozen=True):
    """How often a front looked at its loop since it began, and how often that was less than 5 ms late."""

    num: float
    num_calm: float


class Window(Struct, frozen=True):
    """One front under one load for a while."""

    cpu_us: float
    requests_s: float
    p99_s: float
    looks: Looks


async def run_overhead(options: OverheadOptions, phases: Phases) -> Overhead:
    """Both loads on both fronts, in turn. Raises `CommandFailed` when a front does not answer."""
    step = phases.begin("overhead of limits, lanes and ledger", 4 * options.rounds)
    with tempfile.TemporaryDirectory(prefix="laneway-bench-") as name:
        async with _front("bare", Path(name)) as bare, _front("whole", Path(name)) as whole:
            loads = []
            for load in ("paced", "saturated"):
                windows: dict[str, list[Window]] = {"bare": [], "whole": []}
                for _ in range(options.rounds):
                    for kind, front in (("bare", bare), ("whole", whole)):
                        windows[kind].append(await front.window(load, options.window_s))
                        step()
                loads.append(_compare(load, windows))
            return Overhead(loads=loads)


def _compare(load: str, windows: dict[str, list[Window]]) -> Load:
    def median(kind: str, name: str) -> float:
        return float(statistics.median(getattr(window, name) for window in windows[kind]))

    bare_us, whole_us = median("bare", "cpu_us"), median("whole", "cpu_us")
    return Load(
        load=f"{PACE:g} a second" if load == "paced" else f"{CONNECTIONS} connections, saturated",
        requests_s=median("whole", "requests_s"),
        bare_us=bare_us,
        whole_us=whole_us,
        added_us=whole_us - bare_us,
        bare_p99_s=median("bare", "p99_s"),
        whole_p99_s=median("whole", "p99_s"),
        bare_calm_share=_calm_share(windows["bare"]),
        whole_calm_share=_calm_share(windows["whole"]),
    )


def _calm_share(windows: Sequence[Window]) -> float:
    num = sum(window.looks.num for window in windows)
    return sum(window.looks.num_calm for window in windows) / num if num else 0.0


class _Front:
    """A front process that answers."""

    def __init__(self, pid: int, port: int) -> None:
        self._pid, self._port = pid, port

    async def window(self, load: str, seconds: float) -> Window:
        """Load it for a while."""
        pool = Pool(self._port, _request("/v1/chat/completions", _BODY), CONNECTIONS)
        await pool.open()
        try:
            await pool.pace(PACE, 0.5)
            looked = await self._looks()
            before = self._cpu_s()
            took = await (pool.pace(PACE, seconds) if load == "paced" else pool.saturate(seconds))
            cpu_s = self._cpu_s() - before
            looks = await self._looks()
        finally:
            pool.close()
        return Window(
            cpu_us=cpu_s / len(took) * 1e6,
            requests_s=len(took) / seconds,
            p99_s=statistics.quantiles(took, n=100)[98],
            looks=Looks(looks.num - looked.num, looks.num_calm - looked.num_calm),
        )

    async def _looks(self) -> Looks:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(_request("/metrics", b"", method="GET", close=True))
        text = (await reader.read()).decode(errors="replace").partition("\r\n\r\n")[2]
        writer.close()
        calm = total = 0.0
        for family in text_string_to_metric_families(text):
            for sample in family.samples if family.name == "laneway_loop_lag_seconds" else ():
                if sample.name.endswith("_bucket") and float(sample.labels["le"]) == CALM_LAG_S:
                    calm = sample.value
                elif sample.name.endswith("_count"):
                    total = sample.value
        return Looks(total, calm)

    def _cpu_s(self) -> float:
        """User and system time of the process, all threads; ended threads included."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) * TICKS_S


@asynccontextmanager
async def _front(kind: str, folder: Path) -> AsyncIterator[_Front]:
    run_dir = folder / kind
    run_dir.mkdir()
    config = folder / f"{kind}.toml"
    config.write_text(CONFIG.format(key=KEY, name=kind), encoding="utf-8")
    settings = load_settings(config, environ={})
    with _limits(Store.open(settings.store)), processes.listen(settings.server) as listener:
        spec = processes.front(settings, run_dir, listener)
        argv = [MODULES[kind] if word == MODULES["whole"] else word for word in spec.argv]
        process = await asyncio.create_subprocess_exec(*argv, stdin=subprocess.PIPE, pass_fds=spec.pass_fds)
        assert process.stdin is not None
        try:
            process.stdin.write(spec.first_input)
            port = listener.getsockname()[1]
            await _answers(process, port)
            yield _Front(process.pid, port)
        finally:
            process.terminate()
            await process.wait()


@contextmanager
def _limits(store: Store) -> Iterator[None]:
    accounts = Accounts(store, f"bench on {sys.platform}")
    accounts.create_tenant("default")
    scope = Scope("tenant", "default")
    accounts.set_limit(scope, "rpm", PLENTY)
    accounts.set_limit(scope, "tpm", PLENTY)
    accounts.set_limit(scope, "concurrency", PLENTY)
    accounts.set_limit(scope, "usd", PLENTY, period="month")
    accounts.set_price("scripted", NANO, NANO, NANO)
    store.close()
    yield


async def _answers(process: asyncio.subprocess.Process, port: int) -> None:
    """Wait until it does."""
    pool = Pool(port, _request("/v1/chat/completions", _BODY), 1)
    for _ in range(200):
        if process.returncode is not None:
            raise CommandFailed(f"the front ended with {process.returncode}; its error is above")
        try:
            await pool.open()
            await pool.saturate(0.1)
            return
        except (OSError, httptools.HttpParserError):
            await asyncio.sleep(0.1)
        finally:
            pool.close()
    raise CommandFailed("the front did not answer within 20 s")


_BODY = msgspec.json.encode(
    {
        "model": "scripted",
        "messages": [{"role": "user", "content": "What is the capital of France, and what is it known for?"}],
        "max_tokens": 16,
        "script": {"tokens": ["Paris", ".", " It", " is", " known", " for", " light", "."]},
    }
)


def _request(path: str, body: bytes, *, method: str = "POST", close: bool = False) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return (head + ("Connection: close\r\n\r\n" if close else "\r\n")).encode() + body
