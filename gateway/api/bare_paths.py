"""Serves what is under /v1 without that prefix too, for clients whose base URL lacks it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from litestar.types import ASGIApp, Receive, Scope, Send

PREFIX = "/v1"


class BarePaths:
    """An app around `app`. A path that begins, below `root_path`, as one of `routes` does under /v1 gets the prefix."""

    def __init__(self, app: ASGIApp, root_path: str, routes: Iterable[str]) -> None:
        families = {path.split("/")[2] for path in routes if path.startswith(f"{PREFIX}/")}
        self._app = app
        self._bare = re.compile(rf"^(({re.escape(root_path)})?)(?=/({'|'.join(sorted(families))})(/|$))")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        scope["path"] = self._bare.sub(rf"\1{PREFIX}", scope["path"])
        await self._app(scope, receive, send)
