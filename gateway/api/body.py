"""Reads a request body: bounded before and after decompression, whatever content type a careless client sends."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import TypeVar

from litestar.types import Receive

from gateway.api.exchange import Exchange
from gateway.errors import BodyTooLarge, InvalidBody, UnsupportedMedia

GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
RAW_DEFLATE = -zlib.MAX_WBITS
WORTH_A_THREAD = 64 * 1024  # bytes of a body; to read more takes milliseconds, in which nobody else would be served
MOST_MEMBERS = 64  # of one gzip body: each costs a copy of all that follows it
BROKEN = "We could not decompress the body of your request: it is corrupt, or not what Content-Encoding says."


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
    if coding not in (b"identity", b"", b"gzip", b"x-gzip", b"deflate"):
        raise UnsupportedMedia(f"Unsupported content encoding '{coding[:40].decode('latin-1')}'. Use gzip or deflate.")
    body = await _join(exchange, receive, limit)
    if coding in (b"identity", b""):
        return body
    return await off_loop_if_long(lambda packed: decompress(packed, limit), body)


async def off_loop_if_long(read: Callable[[bytes], ResultT], body: bytes) -> ResultT:
    """`read(body)`; of a long body in a thread, so that others are served meanwhile. Raises what `read` raises."""
    return read(body) if len(body) < WORTH_A_THREAD else await asyncio.to_thread(read, body)


async def _join(exchange: Exchange, receive: Receive, limit: int) -> bytes:
    announced = exchange.headers.get(b"content-length", b"")
    if announced.isdigit() and int(announced[:20]) > limit:
        raise _too_large(limit)
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
            raise _too_large(limit)
    return b"".join(parts)


def decompress(body: bytes, limit: int) -> bytes:
    """Undo gzip (several members too), zlib or raw deflate, to at most `limit` bytes."""
    if not body:
        return body
    parts: list[bytes] = []
    room = limit
    while body:
        if len(parts) == MOST_MEMBERS:
            raise InvalidBody(f"The compressed body has more than {MOST_MEMBERS} members. Compress it as one.")
        decoder = zlib.decompressobj(GZIP_OR_ZLIB if _has_header(body) else RAW_DEFLATE)
        try:
            parts.append(decoder.decompress(body, room + 1))
        except zlib.error:
            raise InvalidBody(BROKEN) from None
        room -= len(parts[-1])
        if room < 0:
            raise _too_large(limit)
        if not decoder.eof:
            raise InvalidBody(BROKEN)
        body = decoder.unused_data
    return b"".join(parts)


def _has_header(body: bytes) -> bool:
    is_zlib = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return is_zlib or body[:2] == b"\x1f\x8b"


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body is larger than {limit} bytes, the most that this server reads.")
