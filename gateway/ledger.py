"""The live half of the ledger: what each request in flight is, does and used, told to the writer as it happens.

A request has an admit event when it is let in, progress events while it runs, and one settle event, which alone is
money. A failed attempt is an event, written when it failed. The last attempt has none: the settle says all of it
(backend, wait, times, outcome), so that the common request costs two rows, not three. A crash before the first
progress event therefore forgets which backend had the request; after it, progress names the backend.

What is no money waits in a buffer, at most `FLUSH_S`, to share a commit with the next settle; a settle never waits.
Everything here runs in the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from backends.types import Usage
from gateway import log
from gateway.errors import StoreUnavailable
from gateway.events import (
    Admitted,
    Answer,
    Charge,
    Detail,
    Event,
    Kind,
    Line,
    Noted,
    Outcome,
    Record,
    Settled,
    Source,
)
from gateway.history import detail_text
from gateway.writer import Writer

FLUSH_S = 0.005
PATIENCE_S = 10.0  # of those who wait for a commit
STOP_PATIENCE_S = 2.0
TIMER_S = 0.001  # timers of the loop may be early by so much
MAX_ERROR_CHARS = 200
NO_USAGE = Usage()

logger = logging.getLogger(f"{log.ROOT}.ledger")


class Opening(Struct, frozen=True, kw_only=True, gc=False):
    """A request that is let in.

    `prompt_tokens`, `completion_tokens` and `cost_nano` (nano-dollars) are the estimate that was reserved, `charges`
    the budget windows it was reserved in. `price_version` 0 is no price. `shown_id` is what the client knows it by; it
    is kept where it is the client's own choice. `line` names the line of a batch.
    """

    request_id: str
    tenant: str
    project: str
    key_id: str
    model: str
    route: str
    lane: str
    shown_id: str | None = None
    line: str | None = None
    stream: bool = False
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_nano: int = 0
    price_version: int = 0
    charges: tuple[Charge, ...] = ()


class End(Struct, frozen=True, kw_only=True, gc=False):
    """How a request ended and what it used. `charges` go to the budget windows that the admit named. `error` is the
    name of an exception's class. Times are None where the request never came so far."""

    outcome: Outcome
    source: Source
    usage: Usage
    cost_nano: int = 0
    charges: tuple[Charge, ...] = ()
    error: str | None = None
    wait_ms: int | None = None
    ttft_ms: int | None = None
    total_ms: int | None = None


class OpenEntry(Struct, frozen=True, kw_only=True):
    """A request in flight, for live views. It waits until an attempt begins, and again after one failed."""

    request_id: str
    shown_id: str | None
    tenant: str
    project: str
    key_id: str
    model: str
    lane: str
    backend: str
    state: Literal["waiting", "running"]
    age_s: float
    usage: Usage


class Ledger:
    """The requests in flight. Start it in the loop that uses it; `writer` is started before and stopped after it.

    `clock` gives Unix seconds; `progress_s` is how often the use of running requests is noted.
    """

    def __init__(
        self, writer: Writer, run_id: str, *, progress_s: float = 2.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._writer = writer
        self._run_id = run_id
        self._progress_s = progress_s
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._buffer: list[Record] = []
        self._flush_timer: asyncio.TimerHandle | None = None
        self._progress_timer: asyncio.TimerHandle | None = None
        self._durable: deque[asyncio.Future[None]] = deque()  # filled by the writer's thread, emptied by the loop
        self._is_waking = False
        self._patience_timer: asyncio.TimerHandle | None = None
        self._unsure: deque[tuple[float, asyncio.Future[None]]] = deque()  # settles that are waited for, until when

    def start(self) -> None:
        """Use the running loop from here on."""
        self._loop = asyncio.get_running_loop()

    async def stop(self) -> None:
        """Return when everything told so far is durable. Requests still in flight stay open, for recovery."""
        for timer in (self._progress_timer, self._patience_timer):
            if timer is not None:
                timer.cancel()
        self._progress_timer = self._patience_timer = None
        with contextlib.suppress(TimeoutError):  # the writer's own patience is next
            async with asyncio.timeout(STOP_PATIENCE_S):
                await self.durable()

    def admit(self, opening: Opening) -> Entry:
        """A request is let in; its event is durable some milliseconds later.

        Raises `StoreUnavailable` when the writer can keep no more, so that nothing runs that could not be settled.
        """
        if not self._writer.is_accepting:
            raise StoreUnavailable("The usage ledger can keep no more now: its store is away. Try again later.")
        entry = Entry(self, opening, self._run_id, self._now_ms())
        self._entries[opening.request_id] = entry
        self.tell(Admitted(entry.admit_event()))
        if self._progress_timer is None:
            self._progress_timer = self._loop.call_later(self._progress_s, self._note_progress)
        return entry

    def entries(self) -> list[OpenEntry]:
        """The requests in flight, oldest first."""
        now_ms = self._now_ms()
        return [entry.view(now_ms) for entry in self._entries.values()]

    async def durable(self, *, with_patience: bool = False) -> None:
        """Return when everything told before is durable; with patience not later than `PATIENCE_S`, and with
        `StoreUnavailable` then.
        """
        done = self._loop.create_future()
        self._flush(done)
        if with_patience and not done.done():
            self._wait_with_patience(done)
        await done

    def tell(self, record: Record) -> None:
        """Keep `record` for the next flush, which is due `FLUSH_S` after the first that waits."""
        self._buffer.append(record)
        if self._flush_timer is None:
            self._flush_timer = self._loop.call_later(FLUSH_S, self._flush)

    def close(self, entry: Entry, settled: Settled, done: asyncio.Future[None] | None) -> None:
        """Hand the end of `entry` to the writer, with everything told before it; `done` resolves when it is durable."""
        del self._entries[entry.opening.request_id]
        self._buffer.append(settled)
        self._flush(done)
        if done is not None and not done.done():
            self._wait_with_patience(done)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _flush(self, done: asyncio.Future[None] | None = None) -> None:
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        records, self._buffer = self._buffer, []
        if self._writer.write_ahead(records):
            if done is not None:
                done.set_result(None)
            return
        try:
            self._writer.submit(records, None if done is None else partial(self._tell_durable, done))
        except RuntimeError as error:  # it was stopped: a settle that is this late is recovery's
            logger.error("%d records came too late and are left to recovery: %s", len(records), error)
            if done is not None:
                done.set_exception(StoreUnavailable("The server has stopped: nothing can be recorded any more."))

    def _tell_durable(self, done: asyncio.Future[None]) -> None:
        """In the writer's thread, once for each of a group: the first wakes the loop for all of them."""
        self._durable.append(done)
        if not self._is_waking:
            self._is_waking = True
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        # Lowered first: what is appended from here on either is seen below or wakes the loop again.
        self._is_waking = False
        while self._durable:
            done = self._durable.popleft()
            if not done.done():  # cancelled: its task stopped waiting
                done.set_result(None)

    def _note_progress(self) -> None:
        is_busy = bool(self._entries)
        self._progress_timer = self._loop.call_later(self._progress_s, self._note_progress) if is_busy else None
        at = self._now_ms()
        notes = [Noted(event) for entry in self._entries.values() if (event := entry.progress_event(at)) is not None]
        if notes:
            self._buffer += notes
            self._flush()

    def _wait_with_patience(self, done: asyncio.Future[None]) -> None:
        while self._unsure and self._unsure[0][1].done():
            self._unsure.popleft()
        self._unsure.append((self._loop.time() + PATIENCE_S, done))
        if self._patience_timer is None:
            self._patience_timer = self._loop.call_later(PATIENCE_S, self._lose_patience)

    def _lose_patience(self) -> None:
        """Who has waited too long for a commit is told; its settle stays with the writer, who goes on trying."""
        now = self._loop.time() + TIMER_S
        while self._unsure and (self._unsure[0][1].done() or self._unsure[0][0] <= now):
            _, done = self._unsure.popleft()
            if not done.done():
                done.set_exception(
                    StoreUnavailable("The use of this request could not be recorded. Try again later.", retry_after_s=5)
                )
        self._patience_timer = None
        if self._unsure:
            self._patience_timer = self._loop.call_later(self._unsure[0][0] - self._loop.time(), self._lose_patience)


class Entry:
    """One request in flight. Settled once: whoever comes second changes nothing.

    `usage` is what it has used so far, over all its choices, set by who knows; progress is noted from it.
    """

    __slots__ = (
        "_attempt_ms",
        "_backend",
        "_blank",
        "_is_running",
        "_is_settled",
        "_ledger",
        "_noted",
        "_num_attempts",
        "_num_notes",
        "_shown_id",
        "_wait_ms",
        "opening",
        "usage",
    )

    def __init__(self, ledger: Ledger, opening: Opening, run_id: str, admitted_ms: int) -> None:
        self.opening = opening
        self._ledger = ledger
        self._shown_id = _own_choice(opening)
        self._blank = Event(  # what every event of it repeats, so that rollups can be made again from settles alone
            request_id=opening.request_id,
            kind=Kind.ADMIT,
            seq=0,
            at=admitted_ms,
            run_id=run_id,
            tenant=opening.tenant,
            project=opening.project,
            key_id=opening.key_id,
            model=opening.model,
            route=opening.route,
            lane=opening.lane,
        )
        self._attempt_ms = admitted_ms
        self._is_running = self._is_settled = False
        self._backend = ""
        self._wait_ms: int | None = None
        self._num_attempts = self._num_notes = 0
        self.usage = self._noted = NO_USAGE

    def attempt(self, backend: str, wait_s: float) -> None:
        """A backend begins to work on it, after `wait_s` seconds in the lane."""
        self._num_attempts += 1
        self._backend = backend
        self._wait_ms = round(wait_s * 1000)
        self._attempt_ms = self._ledger._now_ms()
        self._is_running = True

    def attempt_failed(self, error: str) -> None:
        """The attempt came to nothing; `error` is the name of an exception's class. Another may follow."""
        at = self._ledger._now_ms()
        self._is_running = False
        event = replace(
            self._blank,
            kind=Kind.ATTEMPT,
            seq=self._num_attempts,
            at=at,
            backend=self._backend,
            outcome="backend_error",
            wait_ms=self._wait_ms,
            total_ms=at - self._attempt_ms,
            detail=detail_text(Detail(error=error[:MAX_ERROR_CHARS])),
        )
        self._ledger.tell(Noted(event))

    async def admitted(self) -> None:
        """Return when the admit is durable, for those who dispatch nothing before that. Raises `StoreUnavailable`."""
        await self._ledger.durable(with_patience=True)

    async def settle(self, end: End, answer: Answer | None = None, line: Line | None = None) -> None:
        """It is over. Returns when that is durable, with `answer` and `line` kept; cancelling takes nothing back.

        Raises `StoreUnavailable` when the writer has been stopped, or the store takes nothing for `PATIENCE_S`.
        """
        if self._is_settled:
            await self._ledger.durable()
        else:
            done = self._ledger._loop.create_future()
            self._close(end, done, answer, line)
            await done

    def settle_later(self, end: End, answer: Answer | None = None) -> None:
        """It is over; durable soon. For a `finally`, which must not await."""
        if not self._is_settled:
            self._close(end, None, answer, None)

    def admit_event(self) -> Event:
        """That it was let in, with what was reserved for it."""
        opening = self.opening
        return replace(
            self._blank,
            prompt_tokens=opening.prompt_tokens,
            completion_tokens=opening.completion_tokens,
            cost_nano=opening.cost_nano,
            price_version=opening.price_version,
            detail=detail_text(
                Detail(shown_id=self._shown_id, stream=opening.stream, charges=opening.charges, line=opening.line)
            ),
        )

    def progress_event(self, at: int) -> Event | None:
        """What it has used so far; None when that was noted already. `at` is in Unix milliseconds."""
        usage = self.usage
        if usage == self._noted:
            return None
        self._noted = usage
        self._num_notes += 1
        return replace(
            self._blank,
            kind=Kind.PROGRESS,
            seq=self._num_notes,
            at=at,
            backend=self._backend,
            source="none" if usage.source == "missing" else usage.source,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            price_version=self.opening.price_version,
            wait_ms=self._wait_ms,
        )

    def view(self, now_ms: int) -> OpenEntry:
        """It, as it is now."""
        opening = self.opening
        return OpenEntry(
            request_id=opening.request_id,
            shown_id=opening.shown_id,
            tenant=opening.tenant,
            project=opening.project,
            key_id=opening.key_id,
            model=opening.model,
            lane=opening.lane,
            backend=self._backend,
            state="running" if self._is_running else "waiting",
            age_s=max(0, now_ms - self._blank.at) / 1000,
            usage=self.usage,
        )

    def _close(self, end: End, done: asyncio.Future[None] | None, answer: Answer | None, line: Line | None) -> None:
        self._is_settled = True
        self._ledger.close(self, Settled(self._settle_event(end), end.charges, answer, line), done)

    def _settle_event(self, end: End) -> Event:
        usage = end.usage
        detail = Detail(
            shown_id=self._shown_id,
            charges=end.charges,
            error=end.error and end.error[:MAX_ERROR_CHARS],
            attempts=self._num_attempts if self._num_attempts > 1 else None,
        )
        return replace(
            self._blank,
            kind=Kind.SETTLE,
            at=self._ledger._now_ms(),
            backend=self._backend,
            outcome=end.outcome,
            source=end.source,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            reasoning_tokens=usage.reasoning_tokens,
            cost_nano=end.cost_nano,
            price_version=self.opening.price_version,
            wait_ms=end.wait_ms,
            ttft_ms=end.ttft_ms,
            total_ms=end.total_ms,
            detail=detail_text(detail),
        )


def _own_choice(opening: Opening) -> str | None:
    """The id that the client chose, None when it is shown ours."""
    shown_id = opening.shown_id
    return None if shown_id is None or shown_id.endswith(opening.request_id) else shown_id
