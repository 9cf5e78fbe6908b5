"""Reads a request body: bounded before and after decompression, whatever content type a careless client sends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from litestar.types import Receive

from gateway.api.codings import CODINGS, decompress, too_large
from gateway.api.exchange import Exchange
from gateway.errors import UnsupportedMedia

IDENTITY = (b"identity", b"")
WORTH_A_THREAD = 64 * 1024  # bytes of a body; to read more takes milliseconds, in which nobody else would be served

ResultT = TypeVar("ResultT")


class ClientLeft(Exception):
    """The client closed before its request was complete, so nobody waits for a reply."""


async def read_body(exchange: Exchange, receive: Receive, limit: int) -> bytes:
    """The whole body, decompressed. `limit` is in bytes.

    Raises `BodyTooLarge`, `UnsupportedMedia` for multipart or an unknown coding, `InvalidBody` for broken compression,
    and `ClientLeft`.
    """
    if exchange.headers.get(b"content-type", b"").lower().lstrip().startswith(b"multipart/"):
        raise UnsupportedMedia(
            "This route reads JSON, not multipart. Send the body with Content-Type: application/json."
        )
    coding = exchange.headers.get(b"content-encoding", b"identity").strip().lower()
    if coding not in CODINGS and coding not in IDENTITY:
        raise UnsupportedMedia(
            f"Unsupported content encoding '{coding[:40].decode('latin-1')}'. Use gzip, deflate, br or zstd."
        )
    body = await _join(exchange, receive, limit)
    if coding in IDENTITY:
        return body
    return await asyncio.to_thread(decompress, coding, body, limit)  # a few bytes may become very many


async def off_loop_if_long(read: Callable[[bytes], ResultT], body: bytes) -> ResultT:
    """`read(body)`; of a long body in a thread, so that others are served meanwhile. Raises what `read` raises."""
    return read(body) if len(body) < WORTH_A_THREAD else await asyncio.to_thread(read, body)


async def _join(exchange: Exchange, receive: Receive, limit: int) -> bytes:
    announced = exchange.headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced[:20]) > limit:
        raise too_large(limit)
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientLeft
        parts.append(message.get("body", b""))
        more = message.get("more_body", False)
        size += len(parts[-1])
        if size > limit:
            raise too_large(limit)
    return b"".join(parts)
