"""Scenario throughput: real first turns in a closed loop, at one concurrency after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

from msgspec import Struct, field

from gateway.cli.bench.client import Client, Message, Reply
from gateway.cli.bench.progress import Phases
from gateway.cli.bench.prompts import Prompts, user
from gateway.cli.bench.roofline import Roofline
from gateway.cli.bench.stats import Spread, Tally, spread, tally


class ThroughputOptions(Struct, frozen=True, kw_only=True):
    """No request of a level starts later than `level_budget_s`, so that a slow server ends too."""

    concurrency: tuple[int, ...]
    output_tokens: int
    level_budget_s: float = field(name="level_budget")


class Level(Struct, frozen=True, kw_only=True):
    """What one concurrency gave. `roofline_share` is None unless it was asked for."""

    concurrency: int
    tally: Tally
    wall_s: float
    prompt_tokens: int
    output_tokens: int
    output_tok_s: float
    total_tok_s: float
    requests_s: float
    ttft_s: Spread
    itl_s: Spread
    tpot_s: Spread
    e2e_s: Spread
    roofline_share: float | None


async def run_throughput(
    client: Client, options: ThroughputOptions, prompts: Prompts, roofline: Roofline | None, phases: Phases
) -> AsyncIterator[Level]:
    """Every level in turn, each with all prompts."""
    for concurrency in options.concurrency:
        step = phases.begin(f"throughput at {concurrency}", len(prompts.texts))
        began_at = time.perf_counter()
        replies = await _closed_loop(client, [user(text) for text in prompts.texts], concurrency, options, step)
        yield _level(concurrency, replies, time.perf_counter() - began_at, roofline)


async def _closed_loop(
    client: Client, jobs: list[list[Message]], concurrency: int, options: ThroughputOptions, step: Callable[[], None]
) -> list[Reply]:
    """Keep `concurrency` requests in flight until the jobs or the time are used up."""
    waiting = iter(jobs)
    replies: list[Reply] = []
    ends_at = time.perf_counter() + options.level_budget_s

    async def worker() -> None:
        for messages in waiting:
            replies.append(await client.chat(messages, options.output_tokens))
            step()
            if time.perf_counter() > ends_at:
                return

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return replies


def _level(concurrency: int, replies: list[Reply], wall_s: float, roofline: Roofline | None) -> Level:
    good = [reply for reply in replies if reply.is_good]
    prompt_tokens = sum(reply.prompt_tokens or 0 for reply in good)
    output_tokens = sum(reply.output_tokens for reply in good)
    return Level(
        concurrency=concurrency,
        tally=tally(replies),
        wall_s=wall_s,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        output_tok_s=output_tokens / wall_s,
        total_tok_s=(prompt_tokens + output_tokens) / wall_s,
        requests_s=len(good) / wall_s,
        ttft_s=spread(reply.ttft for reply in good),
        itl_s=spread(gap for reply in good for gap in reply.gaps),
        tpot_s=spread(reply.tpot for reply in good if reply.tpot is not None),
        e2e_s=spread(reply.e2e for reply in good),
        roofline_share=roofline.share(prompt_tokens + output_tokens, output_tokens, wall_s) if roofline else None,
    )
