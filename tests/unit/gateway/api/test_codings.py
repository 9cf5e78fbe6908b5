"""Packed bodies: every coding is undone to the byte, what is broken is told, and bombs take no memory."""

from __future__ import annotations

import gzip
import os
import tracemalloc
import zlib
from collections.abc import Callable
from typing import TypeAlias

import brotli
import pytest
import zstandard

from gateway.api.codings import CODINGS, MAX_ZSTD_WINDOW, MOST_MEMBERS, decompress
from gateway.errors import BodyTooLarge, InvalidBody

Pack: TypeAlias = Callable[[bytes], bytes]

TEXT = os.urandom(5000) + b'{"model": "m"}' * 40_000
LIMIT = 1_000_000


def streamed(raw: bytes) -> bytes:
    """A zstd frame that does not say how much it holds."""
    frame = zstandard.ZstdCompressor().compressobj()
    return frame.compress(raw) + frame.flush()


PACKS: dict[str, tuple[bytes, Pack]] = {
    "gzip": (b"gzip", gzip.compress),
    "x-gzip": (b"x-gzip", gzip.compress),
    "zlib": (b"deflate", zlib.compress),
    "bare deflate": (b"deflate", lambda raw: zlib.compress(raw, wbits=-15)),
    "br": (b"br", lambda raw: brotli.compress(raw, quality=4)),
    "zstd": (b"zstd", zstandard.compress),
    "streamed zstd": (b"zstd", streamed),
}


@pytest.fixture(params=PACKS)
def packing(request: pytest.FixtureRequest) -> tuple[bytes, Pack]:
    return PACKS[request.param]


def test_every_coding_that_is_offered_has_a_test() -> None:
    assert {coding for coding, _ in PACKS.values()} == set(CODINGS)


def test_a_packed_body_is_undone_to_the_byte(packing: tuple[bytes, Pack]) -> None:
    coding, pack = packing

    assert decompress(coding, pack(TEXT), LIMIT) == TEXT
    assert decompress(coding, pack(b""), LIMIT) == b""
    assert decompress(coding, b"", LIMIT) == b""


def test_the_bound_is_exact(packing: tuple[bytes, Pack]) -> None:
    coding, pack = packing

    assert len(decompress(coding, pack(b"x" * LIMIT), LIMIT)) == LIMIT
    with pytest.raises(BodyTooLarge, match=f"{LIMIT} bytes"):
        decompress(coding, pack(b"x" * (LIMIT + 1)), LIMIT)


def test_what_is_broken_cut_or_followed_by_something_is_a_bad_request(packing: tuple[bytes, Pack]) -> None:
    coding, pack = packing
    packed = pack(TEXT)

    for broken in (b"not packed at all", packed[:-9], packed[:1], packed + b"tail"):
        with pytest.raises(InvalidBody) as caught:
            decompress(coding, broken, LIMIT)
        assert not isinstance(caught.value, BodyTooLarge)


def test_a_bomb_is_stopped_at_the_bound_and_takes_no_memory(packing: tuple[bytes, Pack]) -> None:
    coding, pack = packing
    bomb = pack(b"\0" * 100_000_000)

    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge):
            decompress(coding, bomb, LIMIT)
        assert tracemalloc.get_traced_memory()[1] < LIMIT + 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("coding", "pack"), [(b"gzip", gzip.compress), (b"zstd", zstandard.compress)])
def test_several_members_are_one_body_and_endless_ones_are_refused(coding: bytes, pack: Pack) -> None:
    assert decompress(coding, pack(TEXT[:50]) + pack(TEXT[50:]), LIMIT) == TEXT
    assert decompress(coding, pack(b"x") * MOST_MEMBERS, LIMIT) == b"x" * MOST_MEMBERS
    with pytest.raises(InvalidBody, match=f"more than {MOST_MEMBERS} members"):
        decompress(coding, pack(b"x") * (MOST_MEMBERS + 1), LIMIT)


def test_a_zstd_frame_that_wants_more_memory_than_the_web_allows_is_refused() -> None:
    wide = zstandard.ZstdCompressionParameters(window_log=27)
    frame = zstandard.ZstdCompressor(compression_params=wide).compressobj()
    packed = frame.compress(b"{}") + frame.flush()

    assert zstandard.get_frame_parameters(packed).window_size > MAX_ZSTD_WINDOW
    with pytest.raises(InvalidBody):
        decompress(b"zstd", packed, LIMIT)
