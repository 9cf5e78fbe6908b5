"""One try of one line of a batch: the way of an HTTP request, without HTTP.

The key's limits, models, prices and ledger are those of any request. Its lane is `batch`; of a key that may not use
that one, the least urgent that it may use.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Protocol, TypeAlias

from msgspec import Struct

from backends.errors import BackendError, BackendFailed, EngineDied, InvalidRequest, Overloaded, Unavailable
from backends.types import GenerateRequest
from gateway import log
from gateway.batches import OK, Batch, line_request_id
from gateway.billing import Order
from gateway.dispatch import Ask, Dispatcher
from gateway.errors import (
    GatewayError,
    LaneFull,
    LimitReached,
    NeverFits,
    NotAuthenticated,
    StoreUnavailable,
    WaitedTooLong,
)
from gateway.events import Line
from gateway.openai.caller import Caller
from gateway.openai.errors import Fault, error_body
from gateway.openai.sse import Folder
from gateway.tenants import ANONYMOUS, KeyRing, VirtualKey

LANE = "batch"
LONG_BODY = 64 * 1024  # bytes, from which on a body is read in a thread

logger = logging.getLogger(f"{log.ROOT}.front")

# What a client would be told of an error, by whoever knows how; it gets the field that a prompt comes in, too.
Tell: TypeAlias = Callable[[Exception, str], Fault]


class WireBody(Protocol):
    """A decoded body, as `gateway.openai` makes it."""

    def to_generate(self, caller: Caller) -> GenerateRequest: ...

    def folder(self, request_id: str, created: int) -> Folder: ...


class LineDialect(Protocol):
    """What differs between endpoints; the routes' own dialects are these."""

    @property
    def decode(self) -> Callable[[bytes], WireBody]: ...

    @property
    def prompt_field(self) -> str: ...

    @property
    def retell(self) -> Callable[[InvalidRequest], InvalidRequest]: ...


class Later(Struct, frozen=True):
    """There is no room now. `was_admitted`: the ledger has heard of this try."""

    after_s: float | None
    was_admitted: bool


class Broken(Struct, frozen=True):
    """The backend failed, and may do better. `line` is the answer when it has been tried often enough."""

    line: Line


class LineRunner:
    """Tries lines."""

    def __init__(self, dispatcher: Dispatcher, keys: KeyRing, dialects: Mapping[str, LineDialect], tell: Tell) -> None:
        self._dispatcher = dispatcher
        self._keys = keys
        self._dialects = dialects
        self._tell = tell

    async def attempt(self, batch: Batch, number: int, attempt: int, body: bytes) -> Line | Later | Broken | None:
        """None when it was answered, which is durable then; a `Line` when it was refused and never will be.

        Raises `StoreUnavailable`: whether it was answered is known when the store is back.
        """
        request_id = line_request_id(batch.id, number, attempt)
        try:
            await self._answer(batch, number, request_id, body)
        except StoreUnavailable:
            raise
        except Exception as error:
            result = _judge(error, self._refused(batch, number, request_id, error))
            if isinstance(result, Broken):
                is_known = isinstance(error, BackendError)
                told = log.fields(id=request_id)
                logger.warning("line %d of %s failed: %s", number, batch.id, error, exc_info=not is_known, extra=told)
            return result
        return None

    def given_up(self, batch: Batch, number: int, attempt: int) -> Line:
        """What is said of a line that is not tried again."""
        error = BackendFailed("The server ended while it worked on this request, more often than it is tried again.")
        return self._refused(batch, number, line_request_id(batch.id, number, attempt), error)

    def _refused(self, batch: Batch, number: int, request_id: str, error: Exception) -> Line:
        dialect = self._dialects[batch.endpoint]
        told = dialect.retell(error) if isinstance(error, InvalidRequest) else error
        fault = self._tell(told, dialect.prompt_field)
        body = error_body(fault, request_id)
        return Line(batch_id=batch.id, number=number, request_id=request_id, status=fault.status, body=body)

    async def _answer(self, batch: Batch, number: int, request_id: str, body: bytes) -> None:
        dialect = self._dialects[batch.endpoint]
        key = self._key(batch)
        wire = dialect.decode(body) if len(body) < LONG_BODY else await asyncio.to_thread(dialect.decode, body)
        ask = Ask(request_id=request_id, lane=self.lane_of(key))
        request = wire.to_generate(self._dispatcher.caller(key, ask))
        folder = wire.folder(request_id, int(time.time()))

        def line() -> Line:
            answer = folder.body()
            return Line(batch_id=batch.id, number=number, request_id=request_id, status=OK, body=answer)

        job = self._dispatcher.job(Order(key=key, request=request, line=line, line_name=f"{batch.id}/{number}"))
        async with aclosing(job.chunks()) as chunks:
            async for chunk in chunks:
                folder.add(chunk)

    def lane_of(self, key: VirtualKey) -> str:
        """The lane that a key's lines wait in."""
        options = self._dispatcher.lanes.options
        return LANE if LANE in key.lanes else max(key.lanes, key=lambda lane: options[lane].priority, default=LANE)

    def _key(self, batch: Batch) -> VirtualKey:
        """As it is now: a key that was revoked since makes no more answers."""
        key = ANONYMOUS if batch.key_id == ANONYMOUS.id and self._keys.is_open else self._keys.by_id(batch.key_id)
        if key is None:
            raise NotAuthenticated(
                f"The API key {batch.key_id}, which the batch was made with, may not be used any more.",
                code="invalid_api_key",
            )
        return key


def _judge(error: Exception, refused: Line) -> Line | Later | Broken:
    """What an error means for a line that nobody waits for."""
    if isinstance(error, LimitReached) and not isinstance(error, NeverFits):
        return refused if error.retry_after_s is None else Later(error.retry_after_s, was_admitted=False)
    if isinstance(error, LaneFull | WaitedTooLong):
        return Later(error.retry_after_s, was_admitted=True)
    if isinstance(error, Overloaded | Unavailable) and not isinstance(error, EngineDied):
        return Later(error.retry_after_s, was_admitted=True)
    return refused if isinstance(error, InvalidRequest | GatewayError) else Broken(refused)
