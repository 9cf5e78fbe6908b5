"""A tiny random model behind a real `laneway serve`: its settings, its streams, and what it says of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.served import IN_TIME_S

MODEL = "tiny-llama"
ENGINE, FRONT = "backends.hf.server", "gateway.front"  # what their command lines have in them
ENDLESS: dict[str, Any] = {"max_tokens": 16_000, "ignore_eos": True}  # more than any test waits for


def settings(folder: Path, *, max_num_seqs: int = 4, hang_after_s: float = 30.0) -> str:
    """The config of a server of the model in `folder`. Its cache holds five sequences of full length."""
    return f"""
[server]
port = 0
[backends.local]
type = "hf"
model = "{folder}"
dtype = "float32"
threads = 1
kv_cache_memory = 67108864
max_num_seqs = {max_num_seqs}
hang_after_s = {hang_after_s}
"""


def complete(address: str, prompt: str = "one two three", **fields: Any) -> httpx.Response:
    """A completion in one piece."""
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 8, "temperature": 0} | fields
    return httpx.post(f"{address}/v1/completions", json=body, timeout=IN_TIME_S)


@contextmanager
def streaming(address: str, **fields: Any) -> Iterator[Iterator[str]]:
    """The lines of a completion that has begun to stream."""
    body = {"model": MODEL, "prompt": "one two three", "stream": True, "temperature": 0} | ENDLESS | fields
    with httpx.stream("POST", f"{address}/v1/completions", json=body, timeout=IN_TIME_S) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        yield lines


def events(lines: Iterator[str]) -> list[dict[str, Any]]:
    """What is left of a stream that ends as it should."""
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    assert data.pop() == "[DONE]"
    return [json.loads(event) for event in data]


def code_of(response: httpx.Response) -> str:
    """The machine-readable word of an error."""
    return str(response.json()["error"]["code"])


def ready(address: str) -> httpx.Response:
    """`/ready`."""
    return httpx.get(f"{address}/ready", timeout=IN_TIME_S)


def is_ready(address: str) -> bool:
    """Whether answers flow now."""
    try:
        return ready(address).status_code == 200
    except httpx.HTTPError:
        return False


def figures(address: str) -> Mapping[str, float]:
    """`/metrics` by sample name, summed over labels."""
    text = httpx.get(f"{address}/metrics", timeout=IN_TIME_S).text
    sums: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
    return sums


def is_empty(found: Mapping[str, float]) -> bool:
    """Whether nobody runs, waits or holds memory, as told by an engine that is there."""
    words = ("running", "waiting", "backend_running", "backend_waiting", "engine_kv_blocks_used")
    return found["laneway_engine_kv_blocks"] > 0 and not any(found[f"laneway_{word}"] for word in words)
