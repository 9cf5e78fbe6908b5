"""A front whose limits, lanes and ledger do nothing, started like `gateway.front`: what those three cost is the rest.

Only the scenario `overhead` starts it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from backends.registry import Registry
from backends.types import Chunk, GenerateRequest, Usage
from gateway.app import Front, served
from gateway.billing import Bill, Billing, Order
from gateway.dispatch import Dispatcher
from gateway.front import main
from gateway.gcra import Rates
from gateway.lanes import Lanes, Place, next_chunk
from gateway.routing import Target


class BareBill(Bill):
    """Counts the choices that ended, which the dispatcher asks for, and nothing else."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._num_finished = 0

    @property
    def rates(self) -> Rates:
        """None are known."""
        return Rates()

    def begin(self) -> None:
        """Nothing to note."""

    def observe(self, chunk: Chunk) -> Chunk:
        """The chunk as it is."""
        self._num_finished += chunk.finish_reason is not None
        return chunk

    async def count(self) -> Usage | None:
        """The backend reports its usage."""
        return None

    async def settle(self) -> None:
        """Nothing to settle."""

    def close(self, error: BaseException) -> None:
        """Nothing to settle."""


class BareBilling(Billing):
    """Opens bare bills."""

    def __init__(self) -> None:
        pass

    async def open(self, order: Order, target: Target) -> Bill:
        """Reserves nothing."""
        return BareBill(order)


class BarePlace(Place):
    """A place that nobody waits for."""

    def __init__(self) -> None:
        self.position, self.wait_s = 0, 0.0

    async def first(self, chunks: AsyncIterator[Chunk]) -> Chunk | None:
        """The first chunk, whenever it comes."""
        return await next_chunk(chunks)

    def charge(self, tokens: int) -> None:
        """Charged to nobody."""

    def leave(self) -> None:
        """There is nothing to give back."""


class BareLanes(Lanes):
    """Lets everybody in."""

    def enter(self, backend: str, request: GenerateRequest) -> Place:
        """A bare place."""
        return BarePlace()


def _bare(front: Front) -> Front:
    lanes = BareLanes(front.settings.lanes)
    front.dispatcher = Dispatcher(front.routing, lanes, BareBilling(), front.metrics)
    return front


if __name__ == "__main__":
    main(
        lambda settings, run_dir, reloads: served(
            _bare(Front(settings, Registry.build(settings.backends, run_dir), run_dir, reloads))
        )
    )
