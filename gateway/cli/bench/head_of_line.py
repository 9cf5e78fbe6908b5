"""Scenario hol: do short chats wait behind long prompts, and do running streams stall when one arrives?"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from msgspec import Struct, field

from gateway.cli.bench.client import Client, Reply
from gateway.cli.bench.progress import Phases
from gateway.cli.bench.prompts import TokenCounter, short_chat, synthetic_text, user
from gateway.cli.bench.stats import Spread, Tally, ratio, spread, tally

GIVE_UP_AFTER = 3  # long prompts that fail in a row
LONG_FIRST_S = 0.1  # how far into the reading of a long prompt the late stream starts
STORY = "Tell me a long story about a lighthouse."


class HolOptions(Struct, frozen=True, kw_only=True):
    """Short chats go out every `short_interval_s` whatever happened to those before (open loop).

    A stall is measured on a stream of `stream_tokens`, `stall_repeats` times; the long prompt arrives after
    `stream_lead` of its events, beside `stall_others` other streams in one of the cases.
    """

    short_requests: int
    short_interval_s: float = field(name="short_interval")
    short_tokens: int
    long_requests: int
    long_tokens: int
    long_output_tokens: int
    stream_tokens: int
    stream_lead: int
    stall_others: int
    stall_repeats: int


class Shorts(Struct, frozen=True, kw_only=True):
    """The short chats of one phase."""

    tally: Tally
    ttft_s: Spread
    itl_s: Spread


class Longs(Struct, frozen=True, kw_only=True):
    """The long prompts beside them; those still running at the end are not counted."""

    tally: Tally
    prompt_tokens: int | None
    ttft_s: Spread
    e2e_s: Spread


class Stall(Struct, frozen=True, kw_only=True):
    """Gaps of one stream before a long prompt came, and the worst while it was read; None when it did not run then."""

    case: str
    repeat: int
    error: str | None = None
    gap_before_p50_s: float | None = None
    worst_gap_s: float | None = None
    stream_ttft_s: float | None = None
    long_ttft_s: float | None = None
    long_prompt_tokens: int | None = None


class HeadOfLine(Struct, frozen=True, kw_only=True):
    """The whole scenario. Ratios are beside over idle."""

    idle: Shorts
    beside: Shorts
    num_long: int
    longs: Longs
    ttft_p50_ratio: float | None
    ttft_p99_ratio: float | None
    stalls: list[Stall]
    worst_gap_s: float | None


async def run_head_of_line(
    client: Client, options: HolOptions, counter: TokenCounter, seed: int, phases: Phases
) -> HeadOfLine:
    """Short chats alone, then beside long prompts, then the stalls."""
    long_text = await synthetic_text(options.long_tokens, counter, seed)
    idle = _shorts(await _short_chats(client, options, phases.begin("short chats alone", options.short_requests)))
    name = f"short chats beside {options.long_requests} long prompts"
    shorts, longs = await _beside(client, options, long_text, phases.begin(name, options.short_requests))
    beside = _shorts(shorts)
    stalls = await _stalls(client, options, long_text, phases)
    worst = [stall.worst_gap_s for stall in stalls if stall.worst_gap_s is not None]
    return HeadOfLine(
        idle=idle,
        beside=beside,
        num_long=options.long_requests,
        longs=_longs(longs),
        ttft_p50_ratio=ratio(beside.ttft_s.p50, idle.ttft_s.p50),
        ttft_p99_ratio=ratio(beside.ttft_s.p99, idle.ttft_s.p99),
        stalls=stalls,
        worst_gap_s=max(worst, default=None),
    )


async def _short_chats(client: Client, options: HolOptions, step: Callable[[], None]) -> list[Reply]:
    """One short chat each interval, and all their replies."""
    tasks: list[asyncio.Task[Reply]] = []
    began_at = time.perf_counter()
    for number in range(options.short_requests):
        due_at = began_at + number * options.short_interval_s
        await asyncio.sleep(max(0.0, due_at - time.perf_counter()))
        tasks.append(asyncio.create_task(client.chat(short_chat(number), options.short_tokens)))
        step()
    return list(await asyncio.gather(*tasks))


async def _beside(
    client: Client, options: HolOptions, long_text: str, step: Callable[[], None]
) -> tuple[list[Reply], list[Reply]]:
    """The same beside long prompts that go on until the last short chat is answered."""
    done: list[Reply] = []

    async def keep_long() -> None:
        failures = 0
        while failures < GIVE_UP_AFTER:
            done.append(await client.chat(user(long_text), options.long_output_tokens))
            failures = 0 if done[-1].is_good else failures + 1

    longs = [asyncio.create_task(keep_long()) for _ in range(options.long_requests)]
    try:
        await asyncio.sleep(options.short_interval_s / 2)  # the long ones are there first
        return await _short_chats(client, options, step), done
    finally:
        for task in longs:
            task.cancel()
        await asyncio.gather(*longs, return_exceptions=True)


def _shorts(replies: list[Reply]) -> Shorts:
    good = [reply for reply in replies if reply.is_good]
    return Shorts(
        tally=tally(replies),
        ttft_s=spread(reply.ttft for reply in good),
        itl_s=spread(gap for reply in good for gap in reply.gaps),
    )


def _longs(replies: list[Reply]) -> Longs:
    good = [reply for reply in replies if reply.is_good]
    return Longs(
        tally=tally(replies),
        prompt_tokens=good[0].prompt_tokens if good else None,
        ttft_s=spread(reply.ttft for reply in good),
        e2e_s=spread(reply.e2e for reply in good),
    )


async def _stalls(client: Client, options: HolOptions, long_text: str, phases: Phases) -> list[Stall]:
    """Three ways for a stream and a long prompt to meet, each several times."""
    cases: dict[str, Callable[[], Awaitable[tuple[Reply, Reply, float]]]] = {
        "alone, then a long one": lambda: _long_arrives(client, options, long_text, 0),
        f"beside {options.stall_others}, then a long one": lambda: _long_arrives(
            client, options, long_text, options.stall_others
        ),
        "begun after a long one": lambda: _stream_arrives(client, options, long_text),
    }
    step = phases.begin("stalls of a running stream", len(cases) * options.stall_repeats)
    stalls = []
    for case, meet in cases.items():
        for repeat in range(options.stall_repeats):
            stalls.append(_stall(case, repeat, *await meet()))
            step()
    return stalls


async def _long_arrives(client: Client, options: HolOptions, long_text: str, others: int) -> tuple[Reply, Reply, float]:
    """The long prompt comes while the stream, and perhaps others, run. Stream, long, and the instant it came."""
    arrival = asyncio.Event()

    def on_text(reply: Reply) -> None:
        if len(reply.stamps) == options.stream_lead:
            arrival.set()

    beside = [asyncio.create_task(client.chat(user(STORY), options.stream_tokens)) for _ in range(others)]
    stream = asyncio.create_task(client.chat(user(STORY), options.stream_tokens, on_text))
    waiting = asyncio.create_task(arrival.wait())
    await asyncio.wait({stream, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    arrived_at = time.perf_counter()
    long = await client.chat(user(long_text), 1)
    await asyncio.gather(*beside)
    return await stream, long, arrived_at


async def _stream_arrives(client: Client, options: HolOptions, long_text: str) -> tuple[Reply, Reply, float]:
    """The stream comes while an engine that had nothing else to do reads the long prompt."""
    arrived_at = time.perf_counter()
    long = asyncio.create_task(client.chat(user(long_text), 1))
    await asyncio.sleep(LONG_FIRST_S)
    stream = await client.chat(user(STORY), options.stream_tokens)
    return stream, await long, arrived_at


def _stall(case: str, repeat: int, stream: Reply, long: Reply, arrived_at: float) -> Stall:
    error = stream.error or long.error
    if error is not None:
        return Stall(case=case, repeat=repeat, error=error)
    pairs = list(zip(stream.stamps, stream.stamps[1:], strict=False))
    before = [later - earlier for earlier, later in pairs if later <= arrived_at]
    # A gap counts as disturbed while it overlaps the reading of the long prompt.
    during = [later - earlier for earlier, later in pairs if later > arrived_at and earlier < long.stamps[0]]
    return Stall(
        case=case,
        repeat=repeat,
        gap_before_p50_s=spread(before).p50,
        worst_gap_s=max(during, default=None),
        stream_ttft_s=stream.ttft,
        long_ttft_s=long.ttft,
        long_prompt_tokens=long.prompt_tokens,
    )
