"""Request bodies: bounds, compression, and content types of careless clients."""

from __future__ import annotations

import gzip
import threading
import zlib
from typing import Any

import brotli
import pytest
import zstandard

from gateway.api.body import WORTH_A_THREAD, ClientLeft, off_loop_if_long, read_body
from gateway.api.exchange import Exchange
from gateway.errors import BodyTooLarge, UnsupportedMedia

TEXT = b'{"model": "m"}' * 40


def exchange(**headers: str) -> Exchange:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope: Any = {"type": "http", "method": "POST", "path": "/x", "headers": pairs, "state": {}}
    return Exchange.of(scope)


async def read(*parts: bytes, limit: int = 10_000, **headers: str) -> bytes:
    messages: list[Any] = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    if messages:
        messages[-1]["more_body"] = False
    messages.append({"type": "http.disconnect"})

    async def receive() -> Any:
        return messages.pop(0)

    return await read_body(exchange(**headers), receive, limit)


async def test_a_body_in_several_parts_is_joined() -> None:
    assert await read(b"ab", b"", b"cd") == b"abcd"


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "nonsense"])
async def test_any_content_type_but_multipart_is_read(content_type: str) -> None:
    assert await read(b"{}", content_type=content_type) == b"{}"


async def test_multipart_is_refused_with_a_hint() -> None:
    with pytest.raises(UnsupportedMedia, match="application/json"):
        await read(b"--x", content_type="Multipart/form-data; boundary=x")


@pytest.mark.parametrize("coding", ["compress", "gzip, gzip", "nonsense"])
async def test_an_unknown_coding_is_refused(coding: str) -> None:
    with pytest.raises(UnsupportedMedia, match="gzip, deflate, br or zstd"):
        await read(b"x", content_encoding=coding)


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        ("gzip", gzip.compress(TEXT)),
        ("GZIP", gzip.compress(TEXT[:50]) + gzip.compress(TEXT[50:])),
        ("x-gzip", gzip.compress(TEXT)),
        ("deflate", zlib.compress(TEXT)),
        ("deflate", zlib.compress(TEXT, wbits=-15)),
        ("br", brotli.compress(TEXT)),
        ("zstd", zstandard.compress(TEXT)),
        ("identity", TEXT),
    ],
)
async def test_compressed_bodies_are_decoded(coding: str, packed: bytes) -> None:
    assert await read(packed, content_encoding=coding) == TEXT


async def test_the_bound_holds_for_announced_sent_and_decoded_bytes() -> None:
    for reading in (
        read(b"x", content_length="10001"),
        read(b"x" * 6000, b"x" * 6000),
        read(gzip.compress(b"x" * 10_001), content_encoding="gzip"),
        read(brotli.compress(b"x" * 10_001), content_encoding="br"),
        read(zstandard.compress(b"x" * 10_001), content_encoding="zstd"),
    ):
        with pytest.raises(BodyTooLarge, match="10000 bytes"):
            await reading

    assert len(await read(b"x" * 10_000)) == 10_000
    assert len(await read(gzip.compress(b"x" * 10_000), content_encoding="gzip")) == 10_000


async def test_a_long_body_is_read_off_the_event_loop_and_a_short_one_on_it() -> None:
    here = threading.get_ident()

    def reader(body: bytes) -> int:
        return threading.get_ident()

    assert await off_loop_if_long(reader, b"x" * (WORTH_A_THREAD - 1)) == here
    assert await off_loop_if_long(reader, b"x" * WORTH_A_THREAD) != here


async def test_a_client_that_leaves_before_its_body_is_complete_is_noticed() -> None:
    with pytest.raises(ClientLeft):
        await read()
