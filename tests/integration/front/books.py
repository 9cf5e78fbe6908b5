"""A front's store in the hands of a test: accounts as an operator makes them, and what the ledger says of calls."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import func, select

from gateway.accounts import Accounts, MadeKey, NewKey
from gateway.config import Settings
from gateway.control import flush
from gateway.events import Event, Kind
from gateway.lanes import DEFAULT_LANES
from gateway.store import Store, StoreOptions
from gateway.tables import budget_windows, ledger_events, open_requests
from gateway.verify import verify
from tests.integration.front.front_server import CHAT, Front, eventually, leave

DOLLAR = 1_000_000_000  # nano-dollars
PER_TOKEN = 1_000_000  # as a price: a nano-dollar a token


class Books:
    """A store beside the one that a front opens from `options`, on the same database. To be closed."""

    def __init__(self, folder: Path, **options: Any) -> None:
        where: dict[str, Any] = {"url": f"sqlite:///{folder}/books.db", "spool": f"{folder}/spool.db"}
        self.options = StoreOptions(**(where | options))
        self.store = Store.open(self.options)
        self.accounts = Accounts(self.store, "cli:test")

    def close(self) -> None:
        self.store.close()

    def settings(self, **tables: Any) -> Settings:
        """Of a front on this store, for tests that start it themselves."""
        usual: dict[str, Any] = {"lanes": dict(DEFAULT_LANES), "backends": {"test": {"type": "scripted"}}}
        return Settings(store=self.options, **(usual | tables))

    def made(self, tenant: str = "acme", **more: Any) -> MadeKey:
        """A new key."""
        return self.accounts.create_key(NewKey(tenant=tenant, **more))

    def key(self, tenant: str = "acme", **more: Any) -> dict[str, str]:
        """A new key, as the header that carries it."""
        return bearer(self.made(tenant, **more).secret)

    def price(self, model: str = "scripted", prompt: int = PER_TOKEN, completion: int = 10 * PER_TOKEN) -> None:
        """A nano-dollar for each token that is read and ten for each that is made, unless said otherwise."""
        self.accounts.set_price(model, prompt, completion, prompt)

    def settled(self, num: int = 1) -> list[Event]:
        """The settle rows by request id, so those of one millisecond in any order. There are `num` once nothing is open
        any more."""
        eventually(lambda: self._count(Kind.SETTLE) >= num and not self._num_open(), f"{num} are settled")
        rows = self.events(Kind.SETTLE)
        assert len(rows) == num, [row.outcome for row in rows]
        return rows

    def rows_of(self, *replies: httpx.Response) -> list[Event]:
        """The settle rows of these calls, in the order of the replies."""
        ids = [reply.headers["x-request-id"].removeprefix("req_") for reply in replies]
        eventually(lambda: {row.request_id for row in self.events(Kind.SETTLE)}.issuperset(ids), "all are settled")
        rows = {row.request_id: row for row in self.events(Kind.SETTLE)}
        return [rows[request_id] for request_id in ids]

    def events(self, kind: Kind) -> list[Event]:
        """The rows of one kind, by request id."""
        flush(self.store)
        query = select(ledger_events).where(ledger_events.c.kind == kind).order_by(*ledger_events.primary_key)
        with self.store.reading() as connection:
            return [Event(**row) for row in connection.execute(query).mappings()]

    def used(self, limit_id: str) -> int:
        """What the store has in all windows of a budget."""
        flush(self.store)
        columns = budget_windows.c
        query = select(func.coalesce(func.sum(columns.used), 0)).where(columns.rule_id == limit_id)
        with self.store.reading() as connection:
            return int(connection.execute(query).scalar_one())

    def assert_proven(self) -> None:
        """Events, rollups and budget windows agree."""
        flush(self.store)
        assert verify(self.store).findings == ()

    def _count(self, kind: Kind) -> int:
        query = select(func.count()).select_from(ledger_events).where(ledger_events.c.kind == kind)
        with self.store.reading() as connection:
            return int(connection.execute(query).scalar_one())

    def _num_open(self) -> int:
        with self.store.reading() as connection:
            return int(connection.execute(select(func.count()).select_from(open_requests)).scalar_one())


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def chat(num_words: int = 1, **fields: Any) -> dict[str, Any]:
    """The body of a chat whose prompt has so many tokens. `script` says what the backend does."""
    content = " ".join(["x"] * num_words)
    return {"model": "scripted", "messages": [{"role": "user", "content": content}], **fields}


def says(num_tokens: int, **fields: Any) -> dict[str, Any]:
    """A script of exactly so many tokens, each with a text of four characters, where `max_tokens` is as many."""
    return {"tokens": [f"{number:03d} " for number in range(num_tokens)], "eos": False, **fields}


def send(front: Front, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> socket.socket:
    """Send a chat on a raw socket, in the bytes that httpx would send, and read nothing."""
    data = json.dumps(body, separators=(",", ":")).encode()
    lines = [f"POST {CHAT} HTTP/1.1", "Host: x", f"Content-Length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    connection = socket.create_connection(("127.0.0.1", front.port), timeout=20)
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + data)
    return connection


@contextmanager
def slot_taken(front: Front, headers: Mapping[str, str] | None = None) -> Iterator[None]:
    """One call runs, without a word, until the end of the block."""
    holder = send(front, chat(stream=True, script={"first_delay_s": 600}), headers)
    eventually(lambda: front.count("running") == 1, "it runs")
    yield
    leave(holder)
    eventually(lambda: front.count("running") == 0, "it has ended")
