"""Authorization header → VirtualKey. Everything needs a key once one exists, except the routes that say otherwise."""

from __future__ import annotations

from typing import Any

from litestar.connection import ASGIConnection
from litestar.handlers import BaseRouteHandler
from litestar.types import Guard

from gateway.api.exchange import Exchange
from gateway.errors import NotAuthenticated
from gateway.tenants import ANONYMOUS, KeyRing, VirtualKey

KEY_HEADERS = (b"api-key", b"x-api-key")
ONCE = frozenset((b"authorization", *KEY_HEADERS))
NO_KEY = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header using Bearer auth "
    "(i.e. Authorization: Bearer YOUR_KEY)."
)
MANY_KEYS = "Your request has more than one Authorization (or API key) header. Send exactly one."


class Gate:
    """Lets callers in."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def admit(self, exchange: Exchange) -> VirtualKey:
        """Who calls; on an open server anyone, whatever they send. Raises `NotAuthenticated`."""
        key = ANONYMOUS if self._keys.is_open else self._known(exchange)
        exchange.key = key
        return key

    def guard(self) -> Guard:
        """Litestar's guard, for ordinary handlers. A function, since Litestar copies whatever else it is given.

        A coroutine function, since Litestar takes any other to a thread, and keys are asked for in the loop's alone.
        """

        async def admit(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
            self.admit(Exchange.of(connection.scope))

        return admit

    def _known(self, exchange: Exchange) -> VirtualKey:
        # A proxy in front may have looked at another of them than we would.
        if exchange.repeated and not ONCE.isdisjoint(exchange.repeated):
            raise NotAuthenticated(MANY_KEYS, code="invalid_api_key")
        secret = secret_in(exchange.headers)
        if not secret:
            raise NotAuthenticated(NO_KEY)
        key = self._keys.find(secret)
        if key is None:
            raise NotAuthenticated(f"Incorrect API key provided: {mask(secret)}.", code="invalid_api_key")
        return key


def secret_in(headers: dict[bytes, bytes]) -> bytes:
    """The secret a request carries, or nothing."""
    scheme, _, secret = headers.get(b"authorization", b"").strip().partition(b" ")
    if scheme.lower() == b"bearer" and secret.strip():
        return secret.strip()
    return next((headers[name].strip() for name in KEY_HEADERS if name in headers), b"")


def mask(secret: bytes) -> str:
    """Enough of a key for its owner to recognise it, too little for anyone else to use."""
    text = "".join(char if char.isascii() and char.isprintable() else "?" for char in secret.decode("latin-1"))
    return f"{text[:5]}***{text[-2:]}" if len(text) >= 16 else f"{text[:2]}***"
