"""The server that the clients talk to, and what it says of its work."""

from __future__ import annotations

import os
import re
import time
from functools import cache

import httpx


class Server:
    """A running server whose models play scripts; `gpt-4o` and `text-embedding-3-small` are two of their names."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.base_url = f"{url}/v1"

    def count(self, word: str) -> float:
        """A counter of the scripted backend: started, cancelled."""
        metrics = httpx.get(f"{self.url}/metrics").text
        return sum(map(float, re.findall(rf"^laneway_scripted_{word}\S* ([\d.]+)$", metrics, re.MULTILINE)))

    def wait_for(self, word: str, count: float) -> None:
        """Until a counter has come so far; how long it takes does not matter."""
        give_up_at = time.monotonic() + 20
        while self.count(word) < count:
            assert time.monotonic() < give_up_at, f"{word} is {self.count(word)}, not {count}"
            time.sleep(0.02)


@cache
def served() -> Server:
    """The one that was started for this run."""
    return Server(os.environ["LANEWAY_URL"])
