"""The state of this server: its lanes and its backends."""

from __future__ import annotations

import time

from msgspec import Struct

from gateway.api.admin.deps import AdminDeps
from gateway.api.admin.endpoint import Call, Endpoint
from gateway.state import BackendNow, LaneState
from gateway.version import own_version


class Overview(Struct, frozen=True, kw_only=True):
    """What it does now, of all tenants together. `directory_age_s` is how old what it knows of keys and limits is."""

    version: str
    uptime_s: float
    dialect: str
    directory_age_s: float
    lanes: dict[str, LaneState]
    backends: dict[str, BackendNow]


READ = Endpoint(
    method="GET", path="/state", name="readState", summary="Lanes, backends, version and uptime.", answer=Overview
)


class StateRoutes:
    """The handler."""

    def __init__(self, deps: AdminDeps) -> None:
        self._deps = deps
        self._began_at = time.monotonic()
        self.acts = ((READ, self.read_state),)

    async def read_state(self, _: Call[None, None]) -> Overview:
        """From memory."""
        return Overview(
            version=own_version(),
            uptime_s=time.monotonic() - self._began_at,
            dialect=self._deps.store.dialect,
            directory_age_s=max(0.0, self._deps.directory.age_s),
            lanes=self._lanes(),
            backends=self._backends(),
        )

    def _lanes(self) -> dict[str, LaneState]:
        lanes = self._deps.lanes
        running, waiting, oldest = lanes.running(), lanes.waiting(), lanes.oldest_wait_s()
        return {
            name: LaneState(running=running[name], waiting=waiting[name], oldest_wait_s=oldest[name])
            for name in running
        }

    def _backends(self) -> dict[str, BackendNow]:
        """Those that serve a model."""
        routing = self._deps.routing
        targets = {target.name: target.backend for target in (routing.choose(card.id) for card in routing.cards())}
        health = {name: backend.health() for name, backend in targets.items()}
        return {
            name: BackendNow(ready=one.ready, running=one.running, waiting=one.waiting, detail=one.detail)
            for name, one in health.items()
        }
