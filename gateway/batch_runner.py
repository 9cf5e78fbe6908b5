"""Runs batches from where they are to their end: a task for each, and a bound on the lines that are tried at once.

A batch that was interrupted, by a crash, a stop or a store that was away, goes on by being begun again: first the store
hears all that was settled, then the lines without a row are run. What a task remembers is never needed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeAlias

from gateway import log
from gateway.batch_input import BatchInput
from gateway.batch_line import Broken, Later, LineRunner
from gateway.batch_output import BatchOutput
from gateway.batches import Batch, Batches, BatchOptions, Fault, Tries
from gateway.errors import StoreUnavailable
from gateway.events import Line
from gateway.files import Files
from gateway.metrics import Metrics

TICK_S = 0.5  # how often a running batch looks whether it was cancelled or its window is over
AGAIN_S = (1.0, 30.0)  # after trouble that is not a line's: at first, and at most
PAUSE_S = (0.05, 30.0)  # before a line is tried again
RETRY_S = 0.5  # after its first failure, and twice as long after each further one

LOST = Fault(code="input_file_lost", message="The input file is not on this server any more.", param="input_file_id")

logger = logging.getLogger(f"{log.ROOT}.front")

CatchUp: TypeAlias = Callable[[], Awaitable[None]]


class BatchRunner:
    """Start it in the loop that uses it, when the books are open; stop it before they close.

    `catch_up` returns when the store has heard all that was settled, of this run and of those before it.
    """

    def __init__(
        self,
        options: BatchOptions,
        batches: Batches,
        files: Files,
        lines: LineRunner,
        output: BatchOutput,
        catch_up: CatchUp,
        metrics: Metrics,
        max_line_bytes: int,
    ) -> None:
        self._options = options
        self._batches, self._files, self._lines, self._output = batches, files, lines, output
        self._catch_up = catch_up
        self._metrics = metrics
        self._max_line_bytes = max_line_bytes
        self._room = asyncio.Semaphore(options.all_lines_at_once)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._left: dict[str, deque[int]] = {}  # of each batch that runs, the lines that wait
        metrics.batch_lines_waiting.set_function(lambda: sum(map(len, self._left.values())))

    async def start(self) -> None:
        """Go on with what earlier runs left open. Raises `StoreUnavailable`."""
        for batch_id in await asyncio.to_thread(self._batches.open_ids):
            self.take(batch_id)

    def take(self, batch_id: str) -> None:
        """Run a batch to its end."""
        task = self._tasks[batch_id] = asyncio.create_task(self._run_to_end(batch_id))
        task.add_done_callback(lambda _: self._tasks.pop(batch_id, None))

    async def stop(self) -> None:
        """Let go of all batches; the next run goes on with them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_to_end(self, batch_id: str) -> None:
        pause_s, longest_s = AGAIN_S
        while True:
            try:
                await self._go_on(await asyncio.to_thread(self._batches.get, batch_id))
                return
            except StoreUnavailable as error:
                logger.warning("the batch %s goes on in %g s: %s", batch_id, pause_s, error)
            except Exception:
                logger.exception("the batch %s failed unexpectedly and goes on in %g s", batch_id, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)

    async def _go_on(self, batch: Batch) -> None:
        """Step by step, until it is over."""
        while not batch.is_over:
            try:
                source = await asyncio.to_thread(self._open, batch)
            except FileNotFoundError:
                batch = await asyncio.to_thread(self._batches.fail, batch.id, (LOST,))
                continue
            if batch.status == "validating":
                batch = await asyncio.to_thread(self._validate, batch, source)
            elif batch.status == "in_progress":
                if batch.expires_at > self._batches.now:
                    await self._run_lines(batch, source)
                batch = await asyncio.to_thread(self._batches.move, batch.id, "finalizing")
            else:
                await self._catch_up()
                await _to_its_end(asyncio.to_thread(self._output.end, batch, source))
                batch = await asyncio.to_thread(self._batches.get, batch.id)

    def _open(self, batch: Batch) -> BatchInput:
        return BatchInput(self._files.path(batch.input_file_id), self._max_line_bytes)

    def _validate(self, batch: Batch, source: BatchInput) -> Batch:
        faults = source.check(batch.endpoint, self._options.max_lines)
        if faults:
            return self._batches.fail(batch.id, faults)
        return self._batches.move(batch.id, "in_progress", total=len(source))

    async def _run_lines(self, batch: Batch, source: BatchInput) -> None:
        """Until all lines are done, the batch is cancelled, or its window is over."""
        await self._catch_up()
        done = await asyncio.to_thread(self._batches.done_numbers, batch.id)
        tries = await asyncio.to_thread(self._batches.tries, batch.id)
        left = deque(number for number in range(1, batch.total + 1) if number not in done)
        self._left[batch.id] = left
        work = asyncio.create_task(self._work(batch, source, left, tries))
        try:
            while not work.done() and await asyncio.to_thread(self._is_wanted, batch.id):
                await asyncio.wait([work], timeout=TICK_S)
        finally:
            work.cancel()
            await asyncio.wait([work])
            del self._left[batch.id]
        if not work.cancelled():
            work.result()

    def _is_wanted(self, batch_id: str) -> bool:
        batch = self._batches.get(batch_id)
        return batch.status == "in_progress" and batch.expires_at > self._batches.now

    async def _work(self, batch: Batch, source: BatchInput, left: deque[int], tries: dict[int, Tries]) -> None:
        """All the lines that are left, so many at once. Raises what the first of them raises that cannot go on."""

        async def worker() -> None:
            while left:
                number = left.popleft()
                await self._finish_line(batch, number, source, tries.get(number, Tries()))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(min(self._options.lines_at_once, len(left))):
                    group.create_task(worker())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from errors

    async def _finish_line(self, batch: Batch, number: int, source: BatchInput, tries: Tries) -> None:
        """Try a line until it is done."""
        attempt, num_failed = tries.next, tries.failed
        body = bytes((await asyncio.to_thread(source.read, number)).body)
        if num_failed > self._options.retries:  # by crashes: it may be what makes the server end
            await self._note(self._lines.given_up(batch, number, attempt))
            return
        while True:
            async with self._room:
                result = await self._lines.attempt(batch, number, attempt, body)
            if isinstance(result, Later):
                attempt += result.was_admitted
                low, high = PAUSE_S
                await asyncio.sleep(min(max(1.0 if result.after_s is None else result.after_s, low), high))
                continue
            if isinstance(result, Broken):
                attempt, num_failed = attempt + 1, num_failed + 1
                if num_failed <= self._options.retries:
                    await asyncio.sleep(min(RETRY_S * 2 ** (num_failed - 1), PAUSE_S[1]))
                    continue
                result = result.line
            await self._note(result)
            return

    async def _note(self, refused: Line | None) -> None:
        """A line is done: answered, which its settle has noted, or refused."""
        if refused is not None:
            await _to_its_end(asyncio.to_thread(self._batches.keep_line, refused))
        self._metrics.batch_lines.labels("failed" if refused is not None else "completed").inc()


async def _to_its_end(work: Coroutine[None, None, None]) -> None:
    """Whoever is cancelled meanwhile waits for it first: a thread cannot be stopped, and what it writes must not come
    behind a look at what is written, or behind the end of the server."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
