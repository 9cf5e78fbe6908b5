"""Batches in the store: what they are, the statuses they pass through, and which of their lines are done.

Invariants, which a crash at any moment leaves whole:

- A status changes in one transaction, and only along `MOVES`.
- A line that was answered has its row in `batch_lines` in the transaction of its settle. So a line without a row was
  not billed, and one with a row is never run again.
- Every try of a line is a request of its own to the ledger, with an id made from batch, line and number of the try. A
  try that did not end well is settled with nothing; so of all tries of a line at most one is money.
- The rows of the lines go in the transaction that makes the output files and ends the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct
from sqlalchemy import Connection, case, delete, func, select, true, update

from gateway.errors import Conflict, NoSuchObject
from gateway.events import Kind, Line
from gateway.files import OPEN_BATCHES, Files, Page
from gateway.request_id import new_id
from gateway.store import Store
from gateway.tables import batch_lines, batches, ledger_events
from gateway.tenants import VirtualKey

Status: TypeAlias = Literal[
    "validating", "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
]
Endpoint: TypeAlias = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"]

PREFIX = "batch_"
WINDOW_S = 24 * 3600
OK = 200
FAILED_TRIES = ("backend_error", "crash")  # outcomes that count against a line
ROWS_AT_ONCE = 200

# From each status, where it may go. What is not a key here is over.
MOVES: Mapping[Status, tuple[Status, ...]] = {
    "validating": ("in_progress", "failed", "cancelling"),
    "in_progress": ("finalizing", "cancelling", "failed"),
    "finalizing": ("completed", "expired", "failed"),
    "cancelling": ("cancelled", "failed"),
}
assert set(MOVES) == set(OPEN_BATCHES)


class BatchOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[batches]`: how lines of batches are run.

    `lines_at_once` of one batch, and `all_lines_at_once` of all of them, are tried at the same time. A line whose
    backend fails is tried `retries` times more. A batch has at most `max_lines`.
    """

    lines_at_once: Annotated[int, Meta(ge=1, le=10_000)] = 16
    all_lines_at_once: Annotated[int, Meta(ge=1, le=100_000)] = 64
    retries: Annotated[int, Meta(ge=0, le=100)] = 3
    max_lines: Annotated[int, Meta(ge=1, le=1_000_000)] = 50_000


class Fault(Struct, frozen=True, kw_only=True):
    """Why a batch failed. `line` counts the lines of the file from 1."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class TokenSums(Struct, frozen=True, kw_only=True):
    """What the lines used, as the ledger has it."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0


class Batch(Struct, frozen=True, kw_only=True):
    """A row of `batches`. Instants are in Unix seconds; None: it was not so yet. `completed` and `failed` lines are of
    this moment."""

    id: str
    tenant: str
    project: str
    key_id: str
    endpoint: str
    input_file_id: str
    status: Status
    metadata: dict[str, str] | None
    output_expires_after_s: int | None
    total: int
    completed: int
    failed: int
    usage: TokenSums | None
    errors: tuple[Fault, ...]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None

    @property
    def is_over(self) -> bool:
        """Whether nothing about it changes any more."""
        return self.status not in MOVES


class Wish(Struct, frozen=True, kw_only=True):
    """What a client asks for."""

    endpoint: Endpoint
    input_file_id: str
    metadata: dict[str, str] | None = None
    output_expires_after_s: int | None = None


class Tries(Struct, frozen=True):
    """Of one line: the number of the next try, and how many failed for the line's or the backend's sake."""

    next: int = 0
    failed: int = 0


class Ending(Struct, frozen=True, kw_only=True):
    """What the end of a batch leaves: its files, and how many lines are in each."""

    completed: int
    failed: int
    output_file_id: str | None
    error_file_id: str | None


class Batches:
    """The batches of all tenants. Everything here may block; any thread may call. `clock` gives Unix seconds.

    Where a tenant is asked for, None is an operator, who sees all.
    """

    def __init__(self, store: Store, files: Files, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._files = files
        self._clock = clock

    @property
    def now(self) -> int:
        """Unix seconds."""
        return int(self._clock())

    def create(self, key: VirtualKey, wish: Wish) -> Batch:
        """A batch that is to be validated. Raises `NoSuchObject` for a file that the key's tenant does not have."""
        now = self.now
        batch_id = f"{PREFIX}{new_id(self._clock())}"
        with self._store.changing() as connection:
            file = self._files.find_within(connection, key.tenant, wish.input_file_id)
            if file.purpose != "batch":
                raise NoSuchObject(f"The file {file.id} has the purpose '{file.purpose}'", param="input_file_id")
            connection.execute(
                batches.insert().values(
                    id=batch_id,
                    tenant=key.tenant,
                    project=key.project,
                    key_id=key.id,
                    endpoint=wish.endpoint,
                    input_file_id=wish.input_file_id,
                    status="validating",
                    metadata=None if wish.metadata is None else msgspec.json.encode(wish.metadata).decode(),
                    output_expires_after_s=wish.output_expires_after_s,
                    total=0,
                    completed=0,
                    failed=0,
                    created_at=now,
                    expires_at=now + WINDOW_S,
                )
            )
            return self._read(connection, batch_id)

    def find(self, tenant: str | None, batch_id: str) -> Batch:
        """A tenant's batch. Raises `NoSuchObject`, also for another tenant's."""
        with self._store.reading() as connection:
            return self._find(connection, tenant, batch_id)

    def get(self, batch_id: str) -> Batch:
        """Any tenant's. Raises `NoSuchObject`."""
        with self._store.reading() as connection:
            return self._read(connection, batch_id)

    def page(self, tenant: str | None, page: Page) -> tuple[list[Batch], bool]:
        """A tenant's batches, and whether there are more."""
        mine = true() if tenant is None else batches.c.tenant == tenant
        query = page.of(select(batches.c.id).where(mine), batches)
        with self._store.reading() as connection:
            ids = list(connection.execute(query).scalars())
            return [self._read(connection, batch_id) for batch_id in ids[: page.limit]], len(ids) > page.limit

    def open_ids(self) -> list[str]:
        """Those that are not over, the oldest first."""
        with self._store.reading() as connection:
            query = select(batches.c.id).where(batches.c.status.in_(MOVES)).order_by(batches.c.id)
            return list(connection.execute(query).scalars())

    def cancel(self, tenant: str | None, batch_id: str) -> Batch:
        """No further line of it begins. Raises `NoSuchObject`, and `Conflict` when it is over or nearly so."""
        with self._store.changing() as connection:
            batch = self._find(connection, tenant, batch_id)
            if batch.status == "cancelling":
                return batch
            if "cancelling" not in MOVES.get(batch.status, ()):
                raise Conflict(f"Cannot cancel a batch with status '{batch.status}'.", code="batch_not_cancellable")
            self._move(connection, batch_id, "cancelling")
            return self._read(connection, batch_id)

    def move(self, batch_id: str, status: Status, **values: object) -> Batch:
        """To the next status, with what goes with it; nothing happens when it cannot go there from where it is now."""
        with self._store.changing() as connection:
            self._move(connection, batch_id, status, **values)
            return self._read(connection, batch_id)

    def fail(self, batch_id: str, faults: tuple[Fault, ...]) -> Batch:
        """It cannot be run, for these reasons."""
        return self.move(batch_id, "failed", errors=msgspec.json.encode(faults).decode())

    def end(self, connection: Connection, batch_id: str, status: Status, ending: Ending) -> bool:
        """Its last move, in the transaction that makes its files. False when it is over already."""
        usage = msgspec.json.encode(_token_sums(connection, batch_id)).decode()
        if not self._move(connection, batch_id, status, usage=usage, **msgspec.structs.asdict(ending)):
            return False
        connection.execute(delete(batch_lines).where(batch_lines.c.batch_id == batch_id))
        return True

    def keep_line(self, line: Line) -> None:
        """A line that was refused, and so not billed, is done. The first row of a line stands."""
        with self._store.changing() as connection:
            query = select(batch_lines.c.number).where(
                batch_lines.c.batch_id == line.batch_id, batch_lines.c.number == line.number
            )
            if connection.execute(query).first() is None:
                connection.execute(batch_lines.insert().values(msgspec.structs.asdict(line)))

    def done_numbers(self, batch_id: str) -> set[int]:
        """The lines that are done, as far as the store has heard."""
        with self._store.reading() as connection:
            query = select(batch_lines.c.number).where(batch_lines.c.batch_id == batch_id)
            return set(connection.execute(query).scalars())

    def done_lines(self, batch_id: str) -> Iterator[Line]:
        """The same with their bodies, by number, a few at a time."""
        after = 0
        while True:
            query = select(batch_lines).where(batch_lines.c.batch_id == batch_id, batch_lines.c.number > after)
            with self._store.reading() as connection:
                ordered = query.order_by(batch_lines.c.number).limit(ROWS_AT_ONCE)
                lines = [Line(**row) for row in connection.execute(ordered).mappings()]
            yield from lines
            if len(lines) < ROWS_AT_ONCE:
                return
            after = lines[-1].number

    def tries(self, batch_id: str) -> dict[int, Tries]:
        """What was tried of each line that the ledger has heard of."""
        columns = ledger_events.c
        query = select(columns.request_id, columns.outcome).where(
            columns.request_id.between(*_ids_of(batch_id)), columns.kind.in_((Kind.ADMIT, Kind.SETTLE))
        )
        found: dict[int, Tries] = {}
        with self._store.reading() as connection:
            for request_id, outcome in connection.execute(query):
                number, attempt = int(request_id[-10:-5], 16), int(request_id[-5:], 16)
                before = found.get(number, Tries())
                found[number] = Tries(max(before.next, attempt + 1), before.failed + (outcome in FAILED_TRIES))
        return found

    def _find(self, connection: Connection, tenant: str | None, batch_id: str) -> Batch:
        batch = self._read(connection, batch_id)
        if tenant not in (None, batch.tenant):
            raise no_such_batch(batch_id)
        return batch

    def _read(self, connection: Connection, batch_id: str) -> Batch:
        row = connection.execute(select(batches).where(batches.c.id == batch_id)).mappings().first()
        if row is None:
            raise no_such_batch(batch_id)
        values = dict(row)
        for name, kind in (("metadata", dict[str, str]), ("usage", TokenSums), ("errors", tuple[Fault, ...])):
            values[name] = None if row[name] is None else msgspec.json.decode(row[name], type=kind)
        values["errors"] = values["errors"] or ()
        if row["status"] in MOVES:
            values |= _progress(connection, batch_id)
        return Batch(**values)

    def _move(self, connection: Connection, batch_id: str, status: Status, **values: object) -> bool:
        before = [one for one, following in MOVES.items() if status in following]
        change = update(batches).where(batches.c.id == batch_id, batches.c.status.in_(before))
        return connection.execute(change.values({"status": status, f"{status}_at": self.now, **values})).rowcount == 1


def line_request_id(batch_id: str, number: int, attempt: int) -> str:
    """The ledger's id of one try of a line: of the moment of the batch, and never the same for another."""
    return f"{batch_id.removeprefix(PREFIX)[:22]}{number:05x}{attempt:05x}"


def no_such_batch(batch_id: str) -> NoSuchObject:
    """Nothing tells a batch that never was from another tenant's."""
    return NoSuchObject(f"No such Batch object: {batch_id[:200]}", param="batch_id")


def _ids_of(batch_id: str) -> tuple[str, str]:
    stem = batch_id.removeprefix(PREFIX)[:22]
    return f"{stem}{'0' * 10}", f"{stem}{'f' * 10}"


def _progress(connection: Connection, batch_id: str) -> dict[str, int]:
    is_ok = case((batch_lines.c.status == OK, 1), else_=0)
    query = select(func.count(), func.coalesce(func.sum(is_ok), 0)).where(batch_lines.c.batch_id == batch_id)
    num, num_ok = connection.execute(query).one()
    return {"completed": int(num_ok), "failed": int(num) - int(num_ok)}


def _token_sums(connection: Connection, batch_id: str) -> TokenSums:
    kinds = TokenSums.__struct_fields__
    sums = (func.coalesce(func.sum(ledger_events.c[f"{kind}_tokens"]), 0) for kind in kinds)
    query = select(*sums).where(
        ledger_events.c.request_id.between(*_ids_of(batch_id)), ledger_events.c.kind == Kind.SETTLE
    )
    return TokenSums(**{kind: int(num) for kind, num in zip(kinds, connection.execute(query).one(), strict=True)})
