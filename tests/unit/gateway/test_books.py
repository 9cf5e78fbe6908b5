"""The books of one server: what they know at the start, and that memory and store agree while it serves."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest

from backends.scripted import ScriptedBackend, ScriptedOptions
from backends.types import Chunk, FinishReason, GenerateRequest, SamplingParams, Usage
from gateway import journal
from gateway.accounts import Accounts
from gateway.billing import Order
from gateway.books import Books
from gateway.counting import Counter
from gateway.errors import BudgetSpent
from gateway.limits import LimitOptions
from gateway.request_id import new_id
from gateway.routing import Target
from gateway.rules import Scope
from gateway.store import Store, StoreOptions
from gateway.tenants import VirtualKey
from tests.ledger_records import admitted

TARGET = Target("b", ScriptedBackend(ScriptedOptions(models=("m",))))
ACME = Scope("tenant", "acme")
KEY = VirtualKey(id="key_1", tenant="acme")


def operator(store: Store) -> Accounts:
    """With the tenant there."""
    accounts = Accounts(store, "test")
    if not accounts.tenants():
        accounts.create_tenant("acme")
    return accounts


@asynccontextmanager
async def opened(options: StoreOptions, folder: Path) -> AsyncIterator[Books]:
    books = Books(Store.open(options), LimitOptions(), Counter(), folder)
    async with books.open():
        yield books


def order(max_tokens: int = 5) -> Order:
    sampling = SamplingParams(max_tokens=max_tokens)
    request = GenerateRequest(
        request_id=new_id(), route="completions", model="m", prompts=("one two",), sampling=sampling, tenant="acme"
    )
    return Order(key=KEY, request=request)


async def answer(books: Books, tokens: int, *, settles: bool = True) -> None:
    """A request that makes so many tokens, and ends well or is cancelled."""
    books.directory.freshen()
    bill = await books.billing.open(order(), TARGET)
    bill.begin()
    usage = Usage(prompt_tokens=2, completion_tokens=tokens)
    bill.observe(Chunk(usage=usage, text="x", finish_reason=FinishReason.STOP if settles else None))
    await asyncio.sleep(0)
    if settles:
        await bill.settle()
    else:
        bill.close(asyncio.CancelledError())


async def test_a_budget_remembers_after_a_restart_what_was_used_of_it(
    store_options: StoreOptions, tmp_path: Path
) -> None:
    with closing(Store.open(store_options)) as store:
        operator(store).set_limit(ACME, "tokens", 19, period="month")
    async with opened(store_options, tmp_path) as books:
        await answer(books, 5)
        await answer(books, 4)

    async with opened(store_options, tmp_path) as books:
        with pytest.raises(BudgetSpent) as caught:
            await answer(books, 5)

    assert caught.value.report.used == 13


async def test_a_budget_made_while_serving_knows_what_was_used_before(
    store_options: StoreOptions, tmp_path: Path
) -> None:
    async with opened(store_options, tmp_path) as books:
        await answer(books, 5)
        await asyncio.to_thread(books.writer.flush, 20)
        accounts = await asyncio.to_thread(operator, books.store)
        made = await asyncio.to_thread(accounts.set_limit, ACME, "tokens", 100, period="month")
        await _seen(books, made.id)
        await answer(books, 3)

        (state,) = books.limits.states()
        assert state.used == 12


async def test_memory_and_store_agree_on_every_window_at_any_moment(
    store_options: StoreOptions, tmp_path: Path
) -> None:
    dice = random.Random(3)
    with closing(Store.open(store_options)) as store:
        for period in ("hour", "month", "rolling:24h", "prepaid"):
            operator(store).set_limit(ACME, "tokens", 10**9, period=period)
    async with opened(store_options, tmp_path) as books:
        for _ in range(20):
            work = [
                asyncio.create_task(answer(books, dice.randrange(9), settles=dice.random() < 0.8)) for _ in range(10)
            ]
            await asyncio.sleep(0)
            windows = await books.windows()
            assert [used == durable for _, _, used, durable in windows] == [True] * len(windows)
            await asyncio.gather(*work)
        assert len(windows) == 4


async def test_what_a_dead_run_left_open_is_settled_before_the_first_request(
    store_options: StoreOptions, tmp_path: Path
) -> None:
    with closing(Store.open(store_options)) as store, closing(store.raw_connection()) as connection:
        connection.cursor().execute("BEGIN")
        journal.apply(connection, [admitted(1)], store.dialect)
        connection.cursor().execute("COMMIT")

    async with opened(store_options, tmp_path) as books:
        with books.store.reading() as reading:
            assert reading.exec_driver_sql("SELECT count(*) FROM open_requests").scalar_one() == 0
            outcomes = reading.exec_driver_sql("SELECT outcome FROM ledger_events WHERE kind = 3").scalars().all()
            assert outcomes == ["crash"]


async def test_the_store_is_free_again_afterwards(store_options: StoreOptions, tmp_path: Path) -> None:
    async with opened(store_options, tmp_path):
        pass

    with closing(Store.open(store_options)) as store:
        assert not store.is_held()


async def _seen(books: Books, rule_id: str) -> None:
    """SQLite shows a change at the next look, Postgres a moment later."""
    async with asyncio.timeout(10):
        while rule_id not in {rule.id for rule in books.directory.all_rules()}:
            books.directory.freshen()
            await asyncio.sleep(0.01)
