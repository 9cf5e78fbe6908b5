"""Scenario prefix: requests that share a long system prompt; does the second one profit from the first?"""

from __future__ import annotations

from msgspec import Struct, field

from gateway.cli.bench.client import Client, Message, Reply
from gateway.cli.bench.progress import Phases
from gateway.cli.bench.prompts import TOPICS, TokenCounter, nonce, synthetic_text
from gateway.cli.bench.stats import Spread, Tally, ratio, spread, tally


class PrefixOptions(Struct, frozen=True, kw_only=True):
    """How many requests, one after another, share how long a prompt."""

    requests: int = field(name="prefix_requests")
    prompt_tokens: int = field(name="prefix_tokens")
    output_tokens: int = field(name="short_tokens")


class Prefix(Struct, frozen=True, kw_only=True):
    """`speedup` is the first TTFT over the median of the rest."""

    tally: Tally
    prompt_tokens: int | None
    first_ttft_s: float | None
    rest_ttft_s: Spread
    speedup: float | None
    cached_tokens_last: int | None


async def run_prefix(
    client: Client, options: PrefixOptions, counter: TokenCounter, seed: int, phases: Phases
) -> Prefix:
    """Ask one after another: nothing but the cache can make the later ones faster."""
    system = f"{nonce()} {await synthetic_text(options.prompt_tokens, counter, seed + 1)}"
    step = phases.begin("shared prefix", options.requests)
    replies = []
    for number in range(options.requests):
        replies.append(await client.chat(_question(system, number), options.output_tokens))
        step()
    return _prefix(replies)


def _question(system: str, number: int) -> list[Message]:
    text = f"Question {number}: what is {TOPICS[number % len(TOPICS)]} good for?"
    return [{"role": "system", "content": system}, {"role": "user", "content": text}]


def _prefix(replies: list[Reply]) -> Prefix:
    first, *rest = replies
    good = [reply for reply in rest if reply.is_good]
    first_ttft_s = first.ttft if first.is_good else None
    rest_ttft_s = spread(reply.ttft for reply in good)
    return Prefix(
        tally=tally(replies),
        prompt_tokens=first.prompt_tokens,
        first_ttft_s=first_ttft_s,
        rest_ttft_s=rest_ttft_s,
        speedup=ratio(first_ttft_s, rest_ttft_s.p50),
        cached_tokens_last=good[-1].cached_tokens if good else None,
    )
