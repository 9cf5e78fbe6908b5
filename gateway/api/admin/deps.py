"""What the admin routes work on; `app.py` joins it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from gateway.accounts import Accounts
from gateway.config import Settings
from gateway.directory import Directory
from gateway.lanes import Lanes
from gateway.ledger import Ledger
from gateway.limits import Limits
from gateway.routing import Routing
from gateway.store import Store
from gateway.tenants import VirtualKey
from gateway.writer import Writer


class AdminDeps(Struct, frozen=True, kw_only=True):
    """The parts of the front that operators see and change.

    `settings` gives those that hold now; `reload` reads the config again and tells what changed, or raises
    `ConfigError`. `clock` gives Unix seconds.
    """

    store: Store
    directory: Directory
    limits: Limits
    ledger: Ledger
    writer: Writer
    lanes: Lanes
    routing: Routing
    settings: Callable[[], Settings]
    reload: Callable[[], Awaitable[dict[str, Any]]]
    clock: Callable[[], float] = time.time

    def accounts(self, caller: VirtualKey) -> Accounts:
        """The accounts, in the hands of who calls."""
        count_cached = self.settings().limits.count_cached
        return Accounts(self.store, caller.id, self.clock, count_cached=count_cached)
