"""Money, durations, instants and lists as people write them on the command line, read exactly and shown again."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import typer

from gateway import instants
from gateway.rules import NANO

RECENT_S = 30 * instants.SECONDS["d"]  # how far back reports go that are not told
NANO_DIGITS = 9
MOST = 2**53 - 1  # nano-dollars or tokens; more is not kept: above it JSON numbers lose digits in many languages
CENT_DIGITS = 2
SHOWN = 60

_MONEY = re.compile(r"\$?(?=\.?[0-9])([0-9]{0,30})(?:\.([0-9]*))?")


def nano_dollars(text: str) -> int:
    """`12.5` or `$12.5` → nano-dollars, exactly."""
    found = _MONEY.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text[:SHOWN]} is not an amount of USD, such as 12.50")
    whole, fraction = found[1] or "0", (found[2] or "").rstrip("0")
    if len(fraction) > NANO_DIGITS:
        raise typer.BadParameter(f"{text[:SHOWN]} has more than {NANO_DIGITS} decimals; a nano-dollar is the smallest")
    nano = int(whole) * NANO + int(fraction.ljust(NANO_DIGITS, "0"))
    if nano > MOST:
        raise typer.BadParameter(f"{text[:SHOWN]} is more than {dollars(MOST, CENT_DIGITS)}, the most that is kept")
    return nano


def budget_nano(text: str) -> int:
    """As `nano_dollars`, and more than nothing."""
    nano = nano_dollars(text)
    if not nano:
        raise typer.BadParameter(f"{text[:SHOWN]} is no budget; give more than $0")
    return nano


def token_count(text: str) -> int:
    """`1000000` or `1_000_000` → tokens."""
    digits = text.strip().replace("_", "").replace(",", "")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 15:
        raise typer.BadParameter(f"{text[:SHOWN]} is not a number of tokens, such as 1000000")
    return int(digits)


def budget_tokens(text: str) -> int:
    """As `token_count`, and more than nothing."""
    tokens = token_count(text)
    if not tokens:
        raise typer.BadParameter(f"{text[:SHOWN]} is no budget; give more than 0 tokens")
    return tokens


def duration_s(text: str) -> int:
    """`90s`, `15m`, `24h`, `7d` or `2w` → seconds."""
    with _refused():
        return instants.duration_s(text)


def past_at(text: str) -> float:
    """`7d` (ago) or `2026-01-31[T12:00[+01:00]]` (UTC unless it says otherwise) → Unix seconds."""
    with _refused():
        return instants.instant(text, time.time(), -1)


def future_at(text: str) -> float:
    """`90d` (from now) or `2026-01-31[T12:00[+01:00]]` (UTC unless it says otherwise) → Unix seconds."""
    now = time.time()
    with _refused():
        at = instants.instant(text, now, 1)
    if at <= now:
        raise typer.BadParameter(f"{text[:SHOWN]} is over; give what is still to come, such as 90d")
    return at


class Names(tuple[str, ...]):
    """`a,b` → its names, each once, in their order. A class of its own: Typer reads a bare tuple as several words."""

    __slots__ = ()

    def __new__(cls, text: str) -> Names:
        """Refuses a text without a name."""
        found = dict.fromkeys(part.strip() for part in text.split(",") if part.strip())
        if not found:
            raise typer.BadParameter("there is no name in it; write names separated by commas")
        return super().__new__(cls, found)


@contextmanager
def _refused() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def dollars(nano: int, decimals: int | None = None) -> str:
    """`$1,234.50`; with as many decimals as it needs, or as given."""
    kept = decimals_of((nano,)) if decimals is None else decimals
    whole, fraction = divmod(abs(nano), NANO)
    return f"{'-' if nano < 0 else ''}${whole:,}.{fraction:0{NANO_DIGITS}d}"[: kept - NANO_DIGITS or None]


def metered(meter: str, amount: int) -> str:
    """What a limit allows: USD of money, else a number with separators."""
    return dollars(amount) if meter == "usd" else f"{amount:,}"


def decimals_of(amounts: Iterable[int]) -> int:
    """How many decimals show all of these nano-dollars exactly and aligned; at least cents."""
    return max((CENT_DIGITS, *(len(f"{abs(nano) % NANO:0{NANO_DIGITS}d}".rstrip("0")) for nano in amounts)))


def shown_at(at: float | None) -> str:
    """`2026-01-31 12:00` in UTC, or nothing."""
    return "" if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M")
