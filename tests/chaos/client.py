"""Callers for the crash tests: each remembers the answers that it saw whole, with their id and their usage."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from typing import Any

import httpx
from msgspec import Struct

MOST_TOKENS = 40


class Seen(Struct, frozen=True):
    """An answer that came whole: what the caller may hold against the ledger."""

    request_id: str
    prompt_tokens: int
    completion_tokens: int


class Callers:
    """Call again and again until they are stopped, streamed and whole, short and long; some leave early."""

    def __init__(self, url: Callable[[], str], model: str, seed: int, num_callers: int, key: str | None) -> None:
        self.seen: list[Seen] = []
        self.num_broken = 0
        self.num_left = 0
        self.is_paused = False
        self._url, self._model, self._key = url, model, key
        self._dice = random.Random(seed)
        self._num_callers = num_callers
        self._stopping = False

    async def run(self) -> None:
        """Until `stop`; broken connections are what this is about, so they are counted and nothing else."""
        headers = {} if self._key is None else {"authorization": f"Bearer {self._key}"}
        async with httpx.AsyncClient(timeout=20, headers=headers) as client:
            await asyncio.gather(*(self._call_on(client) for _ in range(self._num_callers)))

    def stop(self) -> None:
        """Let each finish the call it is in."""
        self._stopping = True

    async def _call_on(self, client: httpx.AsyncClient) -> None:
        while not self._stopping:
            if self.is_paused:
                await asyncio.sleep(0.02)
                continue
            try:
                seen = await self._call(client)
            except httpx.HTTPError:
                self.num_broken += 1
                await asyncio.sleep(0.05)
                continue
            if seen is not None:
                self.seen.append(seen)

    async def _call(self, client: httpx.AsyncClient) -> Seen | None:
        dice = self._dice
        stream, leaves = dice.random() < 0.6, dice.random() < 0.15
        num_tokens = dice.randrange(1, MOST_TOKENS)
        body: dict[str, Any] = {
            "model": self._model,
            "messages": [{"role": "user", "content": " ".join(["word"] * dice.randrange(1, 30))}],
            "max_tokens": num_tokens,
            "stream": stream,
            "script": {"tokens": ["w"] * num_tokens, "delay_s": dice.choice([0.0, 0.002, 0.01])},
        }
        if not stream:
            reply = await client.post(f"{self._url()}/v1/chat/completions", json=body)
            return _seen(reply.headers["x-request-id"], reply.json()["usage"]) if reply.status_code == 200 else None
        body["stream_options"] = {"include_usage": True}
        async with client.stream("POST", f"{self._url()}/v1/chat/completions", json=body) as reply:
            if reply.status_code != 200:
                return None
            return await self._read(reply, leaves)

    async def _read(self, reply: httpx.Response, leaves: bool) -> Seen | None:
        """A stream counts as seen with its end mark, not before."""
        usage: dict[str, int] | None = None
        num_lines = 0
        async for line in reply.aiter_lines():
            if line == "data: [DONE]":
                assert usage is not None, "an end without usage"
                return _seen(reply.headers["x-request-id"], usage)
            if line.startswith("data: "):
                event = json.loads(line[6:])
                if "error" in event:  # such as that the engine was killed: not whole, whatever follows
                    self.num_broken += 1
                    return None
                usage = event.get("usage") or usage
                num_lines += 1
            if leaves and num_lines > 3:
                self.num_left += 1
                return None
        return None


def _seen(shown_id: str, usage: dict[str, int]) -> Seen:
    return Seen(shown_id.removeprefix("req_"), usage["prompt_tokens"], usage["completion_tokens"])
