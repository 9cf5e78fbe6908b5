"""Kill a real server under load, again and again, and hold the ledger against what the callers saw.

`python -m tests.chaos.crash --kills 200 --store sqlite` runs it by hand; `tests/integration/test_crash.py` a short one.
Only processes that this started are killed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psutil
from msgspec import Struct
from sqlalchemy import select

from gateway.events import Kind
from gateway.store import Store, StoreOptions
from gateway.tables import ledger_events
from tests.chaos.client import Callers, Seen
from tests.integration.served import LANEWAY, Served
from tests.stores import Postgres

FRONT, ENGINE = "gateway.front", "backends.hf.server"
FRONTS_A_SERVER = 3  # after so many kills the parent waits long before it starts the next
READY_WITHIN_S = 60.0
SEEN_WITHIN_S = 0.3  # until a front says of an engine that was just killed that it is not there
LONGEST_LIFE_S = {"scripted": 1.2, "hf": 8.0}  # long enough for answers, short enough to hit them
MODEL_OF = {"scripted": "scripted", "hf": "smollm2-135m-instruct"}

Victim: TypeAlias = Literal["front", "engine", "parent"]


class Plan(Struct, frozen=True, kw_only=True):
    """What is done. `pause_store_s`: with Postgres it is taken away for so long, once, in the middle."""

    kills: int
    seed: int
    store_url: str
    backend: Literal["scripted", "hf"] = "scripted"
    callers: int = 12
    longest_life_s: float = 1.2
    pause_store_s: float = 0.0


class Outcome(Struct, kw_only=True):
    """What came of it. All of the lists must be empty."""

    kills: dict[str, int] = {}
    seen: int = 0
    left: int = 0
    broken: int = 0
    settled: int = 0
    crashed: int = 0
    seconds: float = 0.0
    missing: list[str] = []
    different: list[str] = []
    findings: list[Any] = []

    @property
    def is_clean(self) -> bool:
        """Whether the ledger says what the callers saw."""
        return not (self.missing or self.different or self.findings)


class Crash:
    """One run of a plan."""

    def __init__(self, plan: Plan, folder: Path, postgres: Postgres | None = None) -> None:
        self._plan = plan
        self._folder = folder
        self._postgres = postgres
        self._dice = random.Random(plan.seed)
        self._served: Served | None = None
        self._fronts_left = 0
        self.outcome = Outcome()
        self.callers = Callers(self._address, MODEL_OF[plan.backend], plan.seed + 1, plan.callers, None)

    async def run(self, tell: Callable[[str], None] = lambda _: None) -> Outcome:
        """All kills, then a last start, which recovers, and the comparison."""
        began_at = time.monotonic()
        calling = asyncio.create_task(self.callers.run())
        try:
            for number in range(self._plan.kills):
                await self._ensure_server()
                if self._postgres is not None and self._plan.pause_store_s and number == self._plan.kills // 2:
                    await self._pause_store(tell)
                await asyncio.sleep(self._dice.uniform(0.05, self._plan.longest_life_s))
                victim = self._kill()
                self.outcome.kills[victim] = self.outcome.kills.get(victim, 0) + 1
                tell(f"kill {number + 1} of {self._plan.kills}: {victim}; {len(self.callers.seen)} answers seen")
            await self._ensure_server()
            await asyncio.sleep(0.5)
        finally:
            self.callers.stop()
            await calling
            if self._served is not None:
                await asyncio.to_thread(self._served.end)
        self._compare()
        self.outcome.seconds = round(time.monotonic() - began_at, 1)
        return self.outcome

    def _address(self) -> str:
        return "http://127.0.0.1:9" if self._served is None else self._served.address

    async def _ensure_server(self) -> None:
        if self._served is None or self._served.process.poll() is not None:
            folder = self._folder / f"server-{self.outcome.kills.get('parent', 0)}-{time.monotonic_ns()}"
            folder.mkdir()
            starting = await asyncio.to_thread(Served, self._config(), folder, {})
            await asyncio.to_thread(starting.wait_until_ready)
            self._served, self._fronts_left = starting, FRONTS_A_SERVER
        else:
            await asyncio.to_thread(self._await_front)

    def _await_front(self) -> None:
        """The parent starts another front by itself; its socket waits for it."""
        assert self._served is not None
        time.sleep(SEEN_WITHIN_S)
        ends_at = time.monotonic() + READY_WITHIN_S
        while not is_ready(self._served.address):
            assert time.monotonic() < ends_at, self._served.log[-2000:]
            time.sleep(0.05)

    def _kill(self) -> Victim:
        assert self._served is not None
        parent = psutil.Process(self._served.process.pid)
        victims: list[Victim] = ["front", "engine"] if self._plan.backend == "hf" else ["front"]
        victim = self._dice.choice(victims) if self._fronts_left else "parent"
        self._fronts_left -= 1
        if victim == "parent":
            parent.send_signal(signal.SIGKILL)
            self._served.process.wait(20)
            return victim
        word = FRONT if victim == "front" else ENGINE
        for child in parent.children():
            if word in " ".join(child.cmdline()):
                child.send_signal(signal.SIGKILL)
                child_is_gone(child)
        return victim

    async def _pause_store(self, tell: Callable[[str], None]) -> None:
        assert self._postgres is not None
        tell(f"Postgres is stopped for {self._plan.pause_store_s:g} s")
        await asyncio.to_thread(self._postgres.stop)
        await asyncio.sleep(self._plan.pause_store_s)
        await asyncio.to_thread(self._postgres.start)

    def _config(self) -> str:
        backend = (
            'type = "scripted"\nmodels = ["scripted"]'
            if self._plan.backend == "scripted"
            else f'type = "hf"\nmodel = "{MODEL_OF["hf"]}"\nmax_num_seqs = 16'
        )
        return (
            f'[server]\nport = 0\nlog_level = "warning"\n[store]\nurl = "{self._plan.store_url}"\nprogress_s = 0.2\n'
            f'spool = "{self._folder / "spool.db"}"\n[backends.test]\n{backend}\n'
        )

    def _compare(self) -> None:
        """Recover what the last server left, verify, and look for every answer that was seen."""
        config = self._folder / "verify.toml"
        config.write_text(self._config(), encoding="utf-8")
        for command in ("recover", "verify"):
            argv = (*LANEWAY, "ledger", command, "--config", str(config), "--json")
            done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
            assert done.returncode in (0, 1), done.stderr
            if command == "verify":
                self.outcome.findings = json.loads(done.stdout)["findings"]
        settled = self._settled()
        for seen in self.callers.seen:
            found = settled.get(seen.request_id)
            if found is None:
                self.outcome.missing.append(seen.request_id)
            elif found != seen:
                self.outcome.different.append(f"{seen} is {found}")
        self.outcome.seen, self.outcome.settled = len(self.callers.seen), len(settled)
        self.outcome.left, self.outcome.broken = self.callers.num_left, self.callers.num_broken

    def _settled(self) -> dict[str, Seen]:
        columns = ledger_events.c
        query = select(columns.request_id, columns.prompt_tokens, columns.completion_tokens, columns.outcome).where(
            columns.kind == int(Kind.SETTLE)
        )
        store = Store.open(StoreOptions(url=self._plan.store_url))
        try:
            with store.reading() as connection:
                rows = connection.execute(query).all()
        finally:
            store.close()
        self.outcome.crashed = sum(row.outcome == "crash" for row in rows)
        assert len({row.request_id for row in rows}) == len(rows), "a request was settled twice"
        return {row.request_id: Seen(row.request_id, row.prompt_tokens, row.completion_tokens) for row in rows}


def is_ready(address: str) -> bool:
    """Whether a server there answers and its backends too."""
    import httpx

    try:
        return httpx.get(f"{address}/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def child_is_gone(child: psutil.Process) -> None:
    """Wait until the kernel has ended it: what it held, such as the lock of the store, is free then."""
    ends_at = time.monotonic() + 10
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < ends_at
        time.sleep(0.005)


def main() -> None:
    """By hand: prints what came of it as JSON, exit code 1 when it was not clean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--backend", choices=("scripted", "hf"), default="scripted")
    parser.add_argument("--pause-store-s", type=float, default=0.0)
    asked = parser.parse_args()
    postgres = Postgres() if asked.store == "postgres" else None
    with tempfile.TemporaryDirectory(prefix="laneway-chaos-", dir="/tmp") as name:
        folder = Path(name)
        url = f"sqlite:///{folder / 'laneway.db'}" if postgres is None else postgres.create_database()
        plan = Plan(
            kills=asked.kills,
            seed=asked.seed,
            store_url=url,
            backend=asked.backend,
            pause_store_s=asked.pause_store_s,
            longest_life_s=LONGEST_LIFE_S[asked.backend],
        )
        try:
            outcome = asyncio.run(Crash(plan, folder, postgres).run(lambda line: print(line, file=sys.stderr)))  # noqa: T201
        finally:
            if postgres is not None:
                postgres.remove()
    print(json.dumps({"seed": asked.seed, "store": asked.store, "backend": asked.backend} | _facts(outcome)))  # noqa: T201
    sys.exit(0 if outcome.is_clean else 1)


def _facts(outcome: Outcome) -> dict[str, Any]:
    from msgspec import to_builtins

    facts: dict[str, Any] = to_builtins(outcome)
    return facts


if __name__ == "__main__":
    main()
