"""The bench's client against servers that misbehave, each a few bytes on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.cli.bench.client import Client, Reply
from gateway.cli.screen import CommandFailed

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TOKEN = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":2}}\n\n'
DONE = b"data: [DONE]\n\n"
END = b"0\r\n\r\n"


def piece(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def serving(*writes: bytes, hang: bool = False) -> AsyncIterator[str]:
    """A server that reads a request, writes these bytes one by one, and closes or hangs."""
    ended = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for data in writes:
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0)
        if hang:
            await ended.wait()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        ended.set()


async def reply_of(*writes: bytes, hang: bool = False, timeout_s: float = 10) -> Reply:
    """What the client makes of it."""
    async with serving(*writes, hang=hang) as url:
        client = Client(url, "key", timeout_s, send_extras=True)
        client.model = "m"
        return await client.chat([{"role": "user", "content": "x"}], 2)


async def test_a_whole_stream_is_booked() -> None:
    reply = await reply_of(HEAD, piece(TOKEN), piece(TOKEN), piece(USAGE + DONE), END)

    assert reply.error is None
    assert (len(reply.stamps), reply.prompt_tokens, reply.output_tokens) == (2, 5, 2)


async def test_events_may_be_cut_anywhere() -> None:
    whole = HEAD + piece(TOKEN[:9]) + piece(TOKEN[9:] + TOKEN[:30]) + piece(TOKEN[30:] + DONE) + END

    reply = await reply_of(*(whole[at : at + 1] for at in range(len(whole))))

    assert (reply.error, len(reply.stamps)) == (None, 2)


@pytest.mark.parametrize(
    ("writes", "words"),
    [
        ((b"HTTP/1.1 429 Too Many\r\ncontent-length: 4\r\n\r\nbusy",), "HTTP 429: busy"),
        ((HEAD, piece(TOKEN)), "closed before the answer was complete"),
        ((), "closed before the answer was complete"),
        ((HEAD, piece(TOKEN), END), "the stream ended early"),
        ((HEAD, piece(DONE), END), "no text was streamed"),
        ((HEAD, piece(TOKEN + b'data: {"error":{"message":"oh"}}\n\n' + DONE), END), "oh"),
        ((HEAD, piece(b"data: {no json}\n\n"), END), "Decode"),
        ((b"no http at all\r\n\r\n",), "Http"),
    ],
)
async def test_what_goes_wrong_is_in_the_reply(writes: tuple[bytes, ...], words: str) -> None:
    reply = await reply_of(*writes)

    assert reply.error is not None
    assert words in reply.error


async def test_a_server_that_hangs_is_left_in_time() -> None:
    reply = await reply_of(HEAD, piece(TOKEN), hang=True, timeout_s=0.1)

    assert reply.error == "no end within 0.1 s"


async def test_no_server_is_a_clear_failure() -> None:
    with pytest.raises(CommandFailed, match=r"no OpenAI-compatible server answers at 127\.0\.0\.1:1"):
        await Client("127.0.0.1:1", "", 5, send_extras=True).pick_model("")


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http:///v1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(CommandFailed, match="no http address"):
        Client(url, "", 5, send_extras=True)
