"""What the control socket answers: state, budget windows, limits, settings, reload, flush."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from backends.errors import ModelNotFound
from gateway.books import Books
from gateway.config import Settings
from gateway.control import Operation
from gateway.errors import NotFound
from gateway.limits import Demand, Verdict
from gateway.reload import Reloaded, Reloads, flatten
from gateway.state import ServerState, State
from gateway.tenants import KeyRing


def operations(
    books: Books,
    keys: KeyRing,
    state: State,
    reloads: Reloads,
    settings: Callable[[], Settings],
    knows: Callable[[str], bool] = lambda _: True,
) -> dict[str, Operation]:
    """Name → what answers. Arguments come by name; what they raise is told as an error.

    `knows` says whether some backend serves a model.
    """

    async def now() -> ServerState:
        return state.now()

    async def windows() -> list[tuple[str, int, int, int]]:
        return await books.windows()

    async def leaks() -> list[str]:
        """Requests that hold something of a limit though they are over."""
        in_flight = {entry.request_id for entry in books.ledger.entries()}
        held = (reservation.request_id for reservation in books.limits.open_reservations())
        return [request_id for request_id in held if request_id not in in_flight]

    async def check(key: str, model: str, prompt_tokens: int = 0, max_tokens: int = 0) -> Verdict:
        caller = keys.by_id(key)
        if caller is None:
            raise NotFound(f"there is no key '{key[:60]}'")
        if not caller.may_use(model):
            return _not_served(f"the key '{caller.id}' may not use the model '{model[:60]}'")
        if not knows(model):
            return _not_served(f"no backend serves the model '{model[:60]}'")
        price = books.directory.price(model)
        demand = Demand(
            request_id="",
            model=model,
            prompt_tokens=prompt_tokens,
            output_tokens=max_tokens,
            cost_nano=None if price is None else price.cost(prompt_tokens, max_tokens),
        )
        return books.limits.check(books.directory.rules(caller, model), demand)

    async def configuration() -> dict[str, str]:
        return flatten(settings(), books.store.pepper())

    async def reload() -> Reloaded:
        return await reloads.request()

    async def flush() -> None:
        """What was answered is in the store when this is."""
        await asyncio.to_thread(books.writer.flush)

    return {
        "flush": flush,
        "state": now,
        "windows": windows,
        "leaks": leaks,
        "check": check,
        "settings": configuration,
        "reload": reload,
    }


def _not_served(why: str) -> Verdict:
    """To the operator it is told which; a caller learns from `ModelNotFound` only that it is one of the two."""
    return Verdict(allowed=False, code=ModelNotFound.code, message=why)
