"""Undoes the content codings of request bodies: gzip, deflate, br and zstd, never further than to a bound."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import TypeAlias

import brotli
import zstandard

from gateway.errors import BodyTooLarge, InvalidBody

# Decodes the first member of a body: (body, room) → (what it holds, what comes behind it). Of a member that holds more
# than `room` bytes it may return any part that is longer than `room`. Raises what its library raises for broken input.
Member: TypeAlias = Callable[[bytes, int], tuple[bytes, bytes]]

GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
RAW_DEFLATE = -zlib.MAX_WBITS
MAX_ZSTD_WINDOW = 8 * 1024 * 1024  # bytes; RFC 9659 allows no more on the web, and a decoder reserves what is asked for
ZSTD_STEP = 256  # bytes fed at a time: no four of them can become more than 128 KiB, so a step makes at most 8 MiB
BROTLI_STEP = 1024 * 1024  # bytes taken at a time
MOST_MEMBERS = 64  # of one body: each costs a copy of all that follows it
BROKEN = "We could not decompress the body of your request: it is corrupt, or not what Content-Encoding says."


class Cut(Exception):
    """The body ends inside a member."""


def decompress(coding: bytes, body: bytes, limit: int) -> bytes:
    """Undo `coding`, one of `CODINGS`, to at most `limit` bytes. Several members in a row are one body.

    Raises `InvalidBody` for what is broken or cut, `BodyTooLarge` for more than `limit`.
    """
    member = CODINGS[coding]
    parts: list[bytes] = []
    room = limit
    while body:
        if len(parts) == MOST_MEMBERS:
            raise InvalidBody(f"The compressed body has more than {MOST_MEMBERS} members. Compress it as one.")
        try:
            part, body = member(body, room)
        except (zlib.error, brotli.error, zstandard.ZstdError, Cut):
            raise InvalidBody(BROKEN) from None
        parts.append(part)
        room -= len(part)
        if room < 0:
            raise too_large(limit)
    return b"".join(parts)


def too_large(limit: int) -> BodyTooLarge:
    """What is said of a body of more than `limit` bytes, packed or not."""
    return BodyTooLarge(f"The request body is larger than {limit} bytes, the most that this server reads.")


def _gzip(body: bytes, room: int) -> tuple[bytes, bytes]:
    """Also zlib's own format and bare deflate, which clients call `deflate` alike."""
    decoder = zlib.decompressobj(GZIP_OR_ZLIB if _has_header(body) else RAW_DEFLATE)
    part = decoder.decompress(body, room + 1)
    if len(part) <= room and not decoder.eof:
        raise Cut
    return part, decoder.unused_data


def _has_header(body: bytes) -> bool:
    is_zlib = len(body) > 1 and body[0] & 0x0F == 8 and (body[0] << 8 | body[1]) % 31 == 0
    return is_zlib or body[:2] == b"\x1f\x8b"


def _brotli(body: bytes, room: int) -> tuple[bytes, bytes]:
    """A whole body: brotli has no members, and what follows its end is an error."""
    decoder = brotli.Decompressor()
    parts: list[bytes] = [decoder.process(body, output_buffer_limit=BROTLI_STEP)]
    size = len(parts[0])
    while not decoder.is_finished() and size <= room:
        if decoder.can_accept_more_data():
            raise Cut
        parts.append(decoder.process(b"", output_buffer_limit=BROTLI_STEP))
        size += len(parts[-1])
    return b"".join(parts), b""


def _zstd(body: bytes, room: int) -> tuple[bytes, bytes]:
    decoder = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW).decompressobj()
    parts: list[bytes] = []
    size = at = 0
    while not decoder.eof and size <= room:
        if at >= len(body):
            raise Cut
        parts.append(decoder.decompress(body[at : at + ZSTD_STEP]))
        size += len(parts[-1])
        at += ZSTD_STEP
    return b"".join(parts), decoder.unused_data + body[at:]


CODINGS: Mapping[bytes, Member] = {
    b"gzip": _gzip,
    b"x-gzip": _gzip,
    b"deflate": _gzip,
    b"br": _brotli,
    b"zstd": _zstd,
}
