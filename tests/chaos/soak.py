"""A million mixed requests against a real server, some left half way: its memory must not grow with them.

`python -m tests.chaos.soak --requests 1000000`. Prints the resident memory of the front as it goes, and as JSON the
growth from the end of the first fifth to the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import uvloop

from tests.chaos.crash import FRONT
from tests.integration.served import Served

CONNECTIONS = 32
SAMPLES = 50
MIB = 1 << 20
CONFIG = """
[server]
port = 0
log_level = "warning"
[backends.test]
type = "scripted"
models = ["scripted"]
"""


class Soak:
    """One server and its callers."""

    def __init__(self, served: Served, seed: int) -> None:
        self.num_done = 0
        self._port = int(served.address.rpartition(":")[2])
        parent = psutil.Process(served.process.pid)
        (self._front,) = [child for child in parent.children() if FRONT in " ".join(child.cmdline())]
        self._dice = random.Random(seed)

    def rss_mib(self) -> float:
        """Of the front, now."""
        return float(self._front.memory_info().rss / MIB)

    async def call_until(self, number: int) -> None:
        """All callers together, until so many requests were made."""
        await asyncio.gather(*(self._call_until(number) for _ in range(CONNECTIONS)))

    async def _call_until(self, number: int) -> None:
        reader: asyncio.StreamReader | None = None
        writer: asyncio.StreamWriter | None = None
        while self.num_done < number:
            self.num_done += 1
            if reader is None or writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            stream, leaves = self._dice.random() < 0.3, self._dice.random() < 0.05
            writer.write(self._request(stream))
            if leaves:
                await asyncio.sleep(self._dice.random() * 0.005)
                writer.transport.abort()
                reader = writer = None
                continue
            await (_read_stream(reader) if stream else _read_whole(reader))
        if writer is not None:
            writer.close()

    def _request(self, stream: bool) -> bytes:
        dice = self._dice
        body: dict[str, Any] = {
            "model": "scripted",
            "messages": [{"role": "user", "content": f"question {dice.randrange(10**9)} " * dice.randrange(1, 20)}],
            "stream": stream,
            "max_tokens": dice.randrange(1, 12),
            "user": f"user-{dice.randrange(10**9)}",
        }
        data = json.dumps(body).encode()
        named = f"Idempotency-Key: {dice.randrange(10**12)}\r\n" if dice.random() < 0.01 else ""
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{named}Content-Length: {len(data)}\r\n\r\n"
        return head.encode() + data


async def _read_whole(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.decode("latin-1").lower().split("\r\n")
    (length,) = [int(line.split(":")[1]) for line in lines if line.startswith("content-length:")]
    await reader.readexactly(length)


async def _read_stream(reader: asyncio.StreamReader) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    if b"chunked" not in head:
        raise AssertionError(head)
    await reader.readuntil(b"\r\n0\r\n\r\n")


async def run(soak: Soak, requests: int) -> dict[str, float]:
    """All of it; the growth in MiB and per million requests."""
    began_at = time.monotonic()
    memory: list[float] = []
    for sample in range(1, SAMPLES + 1):
        await soak.call_until(requests * sample // SAMPLES)
        memory.append(soak.rss_mib())
        told = f"{soak.num_done:,} of {requests:,} requests, {memory[-1]:.1f} MiB"
        print(told, file=sys.stderr)  # noqa: T201
    settled = memory[SAMPLES // 5 :]
    slope = statistics.linear_regression(range(len(settled)), settled).slope * SAMPLES
    return {
        "requests": requests,
        "seconds": round(time.monotonic() - began_at, 1),
        "first_fifth_mib": round(memory[SAMPLES // 5], 1),
        "end_mib": round(memory[-1], 1),
        "slope_mib_a_million": round(slope * 1_000_000 / requests, 2),
    }


def main() -> None:
    """By hand."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="laneway-soak-", dir="/tmp") as name:
        served = Served(CONFIG, Path(name), {})
        try:
            served.wait_until_ready()
            found = uvloop.run(run(Soak(served, asked.seed), asked.requests))
        finally:
            served.end()
    print(json.dumps(found))  # noqa: T201


if __name__ == "__main__":
    main()
