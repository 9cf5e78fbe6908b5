"""The ledger: proved on demand, and how its writer is."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec import Struct

from gateway.api.admin.deps import AdminDeps
from gateway.api.admin.endpoint import Call, Endpoint, Workers
from gateway.books import read_windows
from gateway.errors import Conflict
from gateway.verify import Finding, Report, compare_windows, verify
from gateway.writer import WriterState


class LedgerState(Struct, frozen=True, kw_only=True):
    """`open` requests are in flight here. Of the writer: `queued` and `spooled` records are not in the store yet."""

    open: int
    is_accepting: bool
    writer: WriterState


VERIFY = Endpoint(
    method="POST",
    path="/ledger/verify",
    name="verifyLedger",
    summary="Compare rollups and budgets with the events they come from. An empty list of findings is a proof.",
    answer=Report,
)
STATE = Endpoint(
    method="GET",
    path="/ledger/state",
    name="readLedgerState",
    summary="How the ledger's writer is.",
    answer=LedgerState,
)


class LedgerRoutes:
    """The handlers."""

    def __init__(self, deps: AdminDeps, workers: Workers) -> None:
        self._deps = deps
        self._workers = workers
        self._is_verifying = False
        self.acts = ((VERIFY, self.verify), (STATE, self.read_state))

    async def verify(self, _: Call[None, None]) -> Report:
        """One at a time, since it reads every event. Raises `Conflict` while another runs."""
        if self._is_verifying:
            raise Conflict("The ledger is being verified already; wait for that.", code="already_running")
        self._is_verifying = True
        try:
            report, is_alone = await self._workers.run(self._verify)
            memory = await self._compare_memory() if is_alone else []
            return msgspec.structs.replace(report, findings=(*report.findings, *memory))
        finally:
            self._is_verifying = False

    async def read_state(self, _: Call[None, None]) -> LedgerState:
        """From memory."""
        writer = self._deps.writer
        return LedgerState(open=len(self._deps.ledger.entries()), is_accepting=writer.is_accepting, writer=writer.state)

    def _verify(self) -> tuple[Report, bool]:
        """What the store says, and whether this server alone writes to it; of several each knows only its part."""
        store = self._deps.store
        return verify(store), len(store.living_runs()) <= 1

    async def _compare_memory(self) -> list[Finding]:
        """Where the limits count a budget's window otherwise than the store.

        What is settled is told to limits and writer in one step of the loop, so what the writer has applied when it
        comes to this question is what the limits had counted when it was asked.
        """
        deps = self._deps
        await deps.ledger.durable()
        live = [(window.rule_id, window.starts_at, window.used) for window in deps.limits.windows()]
        stored = await asyncio.wrap_future(deps.writer.between(read_windows))
        durable = [(rule_id, starts_at, stored.get((rule_id, starts_at), 0)) for rule_id, starts_at, _ in live]
        return compare_windows(durable=durable, live=live)
