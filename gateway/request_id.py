"""Ids of requests: 32 hex digits that grow with time, so that rows of one time lie together and a time is a range."""

from __future__ import annotations

import os
import time

MS_DIGITS = 12
RANDOM_BYTES = 10
MAX_MS = 16**MS_DIGITS - 1

SHOWN_PREFIXES = ("req_", "chatcmpl-", "cmpl-")  # what clients see before an id


def new_id(now: float | None = None) -> str:
    """A fresh id of the moment `now` (Unix seconds; None: the present one): 12 digits of milliseconds, 20 random."""
    at_ms = int((time.time() if now is None else now) * 1000)
    return f"{at_ms:012x}{os.urandom(RANDOM_BYTES).hex()}"


def id_at(at: float) -> str:
    """The smallest id of the moment `at` (Unix seconds): ids made before it are smaller, the others are not."""
    at_ms = min(max(0, int(at * 1000)), MAX_MS)
    return f"{at_ms:012x}{'0' * 2 * RANDOM_BYTES}"


def ledger_id(text: str) -> str:
    """The id that the ledger knows, from one that a client was shown; any other text as it is."""
    for prefix in SHOWN_PREFIXES:
        if text.startswith(prefix):
            return text.removeprefix(prefix)
    return text
