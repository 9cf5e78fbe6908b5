"""Kill a real server while it runs batches, again and again, and hold output files and ledger against each other.

`tests/integration/test_batch_crash.py` runs it. Only processes that this started are killed.
"""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path
from typing import Any, Literal

import psutil
from msgspec import Struct
from openai import OpenAI
from sqlalchemy import select

from gateway.accounts import Accounts
from gateway.events import Kind
from gateway.store import Store, StoreOptions
from gateway.tables import batch_lines, ledger_events, open_requests
from gateway.verify import verify
from tests.chaos.crash import FRONT, FRONTS_A_SERVER, SEEN_WITHIN_S, child_is_gone, is_ready
from tests.integration.served import Served, eventually

OVER = ("completed", "failed", "expired", "cancelled")
PER_MILLION = 1_000_000_000  # nano-dollars a million tokens
URL: Literal["/v1/chat/completions"] = "/v1/chat/completions"


class Plan(Struct, frozen=True, kw_only=True):
    """What is done. A server lives for at most `longest_life_s` before each kill."""

    kills: int
    seed: int
    store_url: str
    batches: int = 3
    lines: int = 60
    longest_life_s: float = 0.6


class Billed(Struct, frozen=True):
    """What the ledger has of one request."""

    request_id: str
    outcome: str
    tokens: int
    cost_nano: int


class Outcome(Struct, kw_only=True):
    """What came of it: per batch the lines of both files, and all that was billed."""

    kills: dict[str, int] = {}
    statuses: list[str] = []
    expected: list[str] = []  # custom ids, in order
    answered: list[str] = []
    refused: list[str] = []
    answers: dict[str, int] = {}  # request id → tokens, as the output files say
    usage: int = 0  # tokens, as the batches say
    billed: list[Billed] = []
    left: int = 0  # rows of lines and of open requests
    findings: list[Any] = []


class BatchCrash:
    """One run of a plan."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        self._dice = random.Random(plan.seed)
        self._served: Served | None = None
        self._num_servers = self._fronts_left = 0
        self.outcome = Outcome()

    def run(self) -> Outcome:
        """Begin, kill, go on to the end, compare."""
        store = Store.open(self._options)
        try:
            Accounts(store, "cli:test").set_price("scripted", PER_MILLION, 2 * PER_MILLION, PER_MILLION)
            ids = self._begin()
            for _ in range(self._plan.kills):
                self._ensure_server()
                time.sleep(self._dice.uniform(0.0, self._plan.longest_life_s))  # the moment of the kill
                self._kill()
            self._ensure_server()
            self._read(ids)
            assert self._served is not None
            self._served.end()
            self._read_ledger(store)
        finally:
            if self._served is not None and self._served.process.poll() is None:
                self._served.end(signal.SIGKILL)
            store.close()
        return self.outcome

    def _begin(self) -> list[str]:
        self._ensure_server()
        client = self._client()
        ids = []
        for batch in range(self._plan.batches):
            lines = [self._line(f"{batch}/{number}") for number in range(self._plan.lines)]
            self.outcome.expected += [line["custom_id"] for line in lines]
            file = client.files.create(file="\n".join(map(json.dumps, lines)).encode(), purpose="batch")
            made = client.batches.create(input_file_id=file.id, endpoint=URL, completion_window="24h")
            ids.append(made.id)
        return ids

    def _line(self, custom_id: str) -> dict[str, Any]:
        """Mostly answers that take a while, and some that are refused."""
        tokens = [f"{n} " for n in range(self._dice.randint(1, 6))]
        script: dict[str, Any] = {"tokens": tokens, "delay_s": self._dice.uniform(0, 0.15)}
        body: dict[str, Any] = {
            "model": "scripted",
            "messages": [{"role": "user", "content": custom_id}],
            "script": script,
        }
        if self._dice.random() < 0.1:
            body["temperature"] = 9
        return {"custom_id": custom_id, "method": "POST", "url": URL, "body": body}

    def _read(self, ids: list[str]) -> None:
        client = self._client()
        eventually(lambda: all(client.batches.retrieve(one).status in OVER for one in ids), "all are over")
        for batch in map(client.batches.retrieve, ids):
            self.outcome.statuses.append(batch.status)
            assert batch.usage is not None
            self.outcome.usage += batch.usage.total_tokens
            for file_id, names in (
                (batch.output_file_id, self.outcome.answered),
                (batch.error_file_id, self.outcome.refused),
            ):
                for line in self._lines(client, file_id):
                    names.append(line["custom_id"])
                    if names is self.outcome.answered:
                        response = line["response"]
                        request_id = response["request_id"].removeprefix("req_")
                        self.outcome.answers[request_id] = response["body"]["usage"]["total_tokens"]

    def _lines(self, client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
        return [] if file_id is None else [json.loads(text) for text in client.files.content(file_id).text.splitlines()]

    def _read_ledger(self, store: Store) -> None:
        columns = ledger_events.c
        with store.reading() as connection:
            for row in connection.execute(select(ledger_events).where(columns.kind == int(Kind.SETTLE))):
                tokens = row.prompt_tokens + row.completion_tokens
                self.outcome.billed.append(Billed(row.request_id, row.outcome, tokens, row.cost_nano))
            for table in (batch_lines, open_requests):
                self.outcome.left += len(connection.execute(select(table)).all())
        self.outcome.findings = list(verify(store).findings)

    def _client(self) -> OpenAI:
        assert self._served is not None
        return OpenAI(base_url=f"{self._served.address}/v1", api_key="any", timeout=30)

    def _ensure_server(self) -> None:
        if self._served is None or self._served.process.poll() is not None:
            self._num_servers += 1
            folder = self._folder / f"server-{self._num_servers}"
            folder.mkdir()
            self._served = Served(self._config(), folder, {})
            self._served.wait_until_ready()
            self._fronts_left = FRONTS_A_SERVER
            return
        time.sleep(SEEN_WITHIN_S)  # the parent starts another front by itself
        address = self._served.address
        eventually(lambda: is_ready(address), "the front is back")

    def _kill(self) -> None:
        """The front alone, or the parent with all that is below it."""
        assert self._served is not None
        victim = "front" if self._fronts_left and self._dice.random() < 0.5 else "parent"
        self.outcome.kills[victim] = self.outcome.kills.get(victim, 0) + 1
        parent = psutil.Process(self._served.process.pid)
        fronts = [child for child in parent.children() if FRONT in " ".join(child.cmdline())]
        if victim == "parent":
            parent.send_signal(signal.SIGKILL)
            self._served.process.wait(20)
        for front in fronts:
            if victim == "front":
                self._fronts_left -= 1
                front.send_signal(signal.SIGKILL)
            child_is_gone(front)

    @property
    def _options(self) -> StoreOptions:
        return StoreOptions(url=self._plan.store_url, spool=str(self._folder / "spool.db"))

    def _config(self) -> str:
        return (
            f'[server]\nport = 0\nlog_level = "warning"\n[store]\nurl = "{self._plan.store_url}"\nprogress_s = 0.01\n'
            f'spool = "{self._folder / "spool.db"}"\n[files]\nfolder = "{self._folder / "files"}"\n'
            "[batches]\nlines_at_once = 4\nretries = 100\n"
            '[backends.test]\ntype = "scripted"\nmodels = ["scripted"]\n'
        )
