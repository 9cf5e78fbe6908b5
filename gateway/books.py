"""The books of one server, opened and closed together: store, directory, limits, ledger, and their upkeep."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from sqlalchemy import or_, select

from gateway.billing import Billing
from gateway.budgets import SoftAlert
from gateway.control import SOCKET
from gateway.counting import Counter
from gateway.directory import Directory
from gateway.errors import StoreUnavailable
from gateway.events import Answer, Event
from gateway.history import detail_of
from gateway.ledger import Ledger
from gateway.limits import LimitOptions, Limits
from gateway.recovery import recover
from gateway.request_id import new_id
from gateway.retention import ensure_partitions, purge_answers, remove_events
from gateway.rules import LONGEST_ROLLING_H
from gateway.snapshot import Snapshot
from gateway.store import DBAPIConnection, Store
from gateway.tables import answers, budget_windows
from gateway.webhooks import Webhook
from gateway.writer import Writer

log = logging.getLogger("laneway.front")

TOUCH_S = 10.0
PURGE_S = 60.0
RETAIN_S = 3600.0
SPOOL_PATIENCE_S = 300.0
WEBHOOK_PATIENCE_S = 2.0
MOST_NAMED = 1000  # in one query: databases bound the number of parameters
DAY_S = 86_400


class Books:
    """The books of one server. `run_id` is new at each start, so that what a run left open is known by it."""

    def __init__(self, store: Store, limits: LimitOptions, counter: Counter, run_dir: Path) -> None:
        self.store = store
        self.run_id = new_id()
        self.directory = Directory(store, before=self._seed)
        self.webhook: Webhook | None = None
        self.limits = Limits(limits, on_soft=self._tell)
        self.writer = Writer(store)
        self.ledger = Ledger(self.writer, self.run_id, progress_s=store.options.progress_s)
        is_strict = store.options.admit == "strict"
        self.billing = Billing(self.directory, self.limits, self.ledger, counter, is_strict=is_strict)
        self._options = limits
        self._run_dir = run_dir
        self._budgets: set[str] = set()
        self._is_stopping = threading.Event()
        self._chores: list[Callable[[], object]] = [lambda: purge_answers(store, time.time())]

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """From the recovery of what earlier runs left open to the last commit. Raises `ConfigError`."""
        async with AsyncExitStack() as stack:
            stack.callback(self.store.close)
            stack.enter_context(self.store.hold(self.run_id, self._run_dir / SOCKET))
            self.writer.start()
            stack.push_async_callback(asyncio.to_thread, self.writer.stop)
            await asyncio.to_thread(self._empty_spool)
            await asyncio.to_thread(self._prepare)
            stack.callback(self.directory.stop)
            self.ledger.start()
            stack.push_async_callback(self.ledger.stop)
            self.follow(self._options)
            stack.push_async_callback(asyncio.to_thread, self._hang_up)
            upkeep = asyncio.create_task(self._keep_up())
            stack.push_async_callback(_end, upkeep)
            stack.callback(self._is_stopping.set)
            yield

    def do_often(self, work: Callable[[], object]) -> None:
        """From `open` on, once a minute, in a thread: what keeps the store from growing."""
        self._chores.append(work)

    def follow(self, options: LimitOptions) -> None:
        """Take over changed options."""
        before, self._options = self._options, options
        self.limits.options = options
        place = (options.webhook_url, options.webhook_secret)
        if self.webhook is not None and place == (before.webhook_url, before.webhook_secret):
            return
        self._hang_up(within_s=0)
        if options.webhook_url is not None:
            self.webhook = Webhook(options.webhook_url, options.webhook_secret)
            self.webhook.start()

    def find(self, key_id: str, name_digest: bytes, since_ms: int) -> Answer | None:
        """The answer kept for an Idempotency-Key. Raises `StoreUnavailable`."""
        query = select(answers).where(
            answers.c.key_id == key_id, answers.c.name_digest == name_digest, answers.c.at >= since_ms
        )
        with self.store.reading() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else Answer(**row)

    async def windows(self) -> list[tuple[str, int, int, int]]:
        """Every budget window in memory: rule, start, used as memory has it, used as the store has it, at one moment.

        What is settled is told to limits and writer in one step of the loop, so what the writer has applied when it
        comes to this question is what was settled before it.
        """
        await self.ledger.durable()
        live = {(window.rule_id, window.starts_at): window.used for window in self.limits.windows()}
        durable = await asyncio.wrap_future(self.writer.between(read_windows))
        return [(*place, used, durable.get(place, 0)) for place, used in sorted(live.items())]

    async def caught_up(self) -> None:
        """Return when the store has all that was told before, of this run and of those before it.

        Raises `StoreUnavailable` when it cannot be had now.
        """
        await self.ledger.durable(with_patience=True)
        await asyncio.wrap_future(self.writer.between(lambda _: None))

    def _empty_spool(self) -> None:
        """What an earlier run put there was settled truly, and must be in the store before a recovery guesses."""
        until = time.monotonic() + SPOOL_PATIENCE_S
        while self.writer.state.spooled and time.monotonic() < until:
            time.sleep(0.05)

    def _prepare(self) -> None:
        """What blocks, before the first request."""
        ensure_partitions(self.store, time.time())
        self._recover()
        self.directory.start()

    def _recover(self) -> list[Event]:
        """Settle what dead runs left open; not while a spool may still hold how it really ended."""
        if not self.writer.state.spooled:
            return recover(self.store, count_cached=self._options.count_cached)
        return []

    async def _recover_others(self) -> None:
        """While serving: what is charged then is new to the limits."""
        for event in await asyncio.to_thread(self._recover):
            for charge in detail_of(event).charges:
                self.limits.add(charge)

    def _seed(self, state: Snapshot) -> None:
        """Tell the limits what was used of budgets that are new to them, before the rules take effect."""
        budgets = {rule.id for rule in state.all_rules() if rule.is_budget}
        fresh = budgets - self._budgets
        if fresh:
            since = int(time.time()) - (LONGEST_ROLLING_H + 1) * 3600
            used = budget_windows.c.opening + budget_windows.c.used
            query = select(budget_windows.c.rule_id, budget_windows.c.starts_at, used).where(
                or_(budget_windows.c.starts_at >= since, budget_windows.c.starts_at == 0)
            )
            if len(fresh) <= MOST_NAMED:
                query = query.where(budget_windows.c.rule_id.in_(fresh))
            with self.store.reading() as connection:
                for rule_id, starts_at, amount in connection.execute(query):
                    if rule_id in fresh:
                        self.limits.seed(rule_id, starts_at, amount)
        self._budgets = budgets

    def _tell(self, alert: SoftAlert) -> None:
        """A soft budget was passed."""
        rule = alert.rule
        log.warning("the soft budget %s of %s is passed: %d of %d", rule.id, rule.scope, alert.used, rule.amount)
        if self.webhook is not None:
            self.webhook.send(
                {
                    "event": "budget.soft_limit_passed",
                    "limit": rule.id,
                    "scope": str(rule.scope),
                    "meter": rule.meter,
                    "amount": rule.amount,
                    "used": alert.used,
                    "period": rule.period,
                    "window_starts_at": alert.window.starts_at,
                    "window_ends_at": alert.window.ends_at,
                }
            )

    def _hang_up(self, within_s: float = WEBHOOK_PATIENCE_S) -> None:
        webhook, self.webhook = self.webhook, None
        if webhook is not None:
            webhook.stop(within_s)

    async def _keep_up(self) -> None:
        """What is done again and again while serving. A store that is away is tried again at the next turn."""
        async with asyncio.TaskGroup() as group:
            group.create_task(_repeat(TOUCH_S, _in_thread(lambda: self.store.touch(self.run_id))))
            for chore in self._chores:
                group.create_task(_repeat(PURGE_S, _in_thread(chore)))
            group.create_task(_repeat(PURGE_S, self._recover_others))
            group.create_task(_repeat(RETAIN_S, _in_thread(self._retain)))

    def _retain(self) -> None:
        ensure_partitions(self.store, time.time())
        days = self.store.options.retention_days
        if days:
            remove_events(self.store, time.time() - days * DAY_S, is_stopping=self._is_stopping.is_set)


def read_windows(connection: DBAPIConnection) -> dict[tuple[str, int], int]:
    """What was used of every budget window, as the store has it."""
    cursor = connection.cursor()
    cursor.execute("SELECT rule_id, starts_at, opening + used FROM budget_windows")
    return {(rule_id, starts_at): used for rule_id, starts_at, used in cursor.fetchall()}


def _in_thread(work: Callable[[], object]) -> Callable[[], Awaitable[object]]:
    return lambda: asyncio.to_thread(work)


async def _repeat(every_s: float, work: Callable[[], Awaitable[object]]) -> None:
    """Again and again."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await work()
        except StoreUnavailable as error:
            log.warning("upkeep of the store did not work and is tried again in %g s: %s", every_s, error)
        except Exception:  # whatever it is, the rest of the upkeep must go on
            log.exception("upkeep of the store failed and is tried again in %g s", every_s)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
