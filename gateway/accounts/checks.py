"""What operators may write into the accounts: names, bounds, amounts, periods. All raise `InvalidBody` with `param`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import get_args
from zoneinfo import ZoneInfo

from msgspec import UnsetType

from gateway.errors import InvalidBody
from gateway.rules import BUDGETS, Meter, Mode, check_period
from gateway.virtual_keys import LANES, LONGEST_MODEL, Role, is_model_pattern

LARGEST = 2**53  # above it JSON numbers lose digits in many languages
HEAVIEST = 1000.0
LONGEST_TEXT = 200
LONGEST_OVERLAP_S = 366 * 86_400
DEFAULT_PERIOD = "month"

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"  # of tenants and projects
_NAME = re.compile(NAME_PATTERN)


def check_name(name: str, param: str) -> None:
    """Of a tenant or a project."""
    if not _NAME.fullmatch(name):
        raise _invalid(
            param, name, "up to 64 letters, digits, '.', '_' and '-', of which the first is a letter or digit"
        )


def check_text(text: str, param: str) -> None:
    """What people call a key."""
    if len(text) > LONGEST_TEXT or not text.isprintable():
        raise _invalid(param, text, f"up to {LONGEST_TEXT} printable characters")


def check_model(model: str, param: str = "model") -> None:
    """A model's whole name."""
    if not is_model_pattern(model) or "*" in model:
        raise _invalid(param, model, f"the name of one model, up to {LONGEST_MODEL} characters")


def check_models(models: Iterable[str] | None) -> tuple[str, ...] | None:
    """The models that something may use, each once."""
    if models is None:
        return None
    for model in models:
        if not is_model_pattern(model):
            raise _invalid("models", model, "names of models, or beginnings of names that end in '*'")
    return tuple(dict.fromkeys(models))


def check_lanes(lanes: Iterable[str] | None) -> tuple[str, ...] | None:
    """The lanes that something may ask for, each once."""
    if lanes is None:
        return None
    for lane in lanes:
        check_choice(lane, LANES, "lanes")
    once = tuple(dict.fromkeys(lanes))
    if not once:
        raise _invalid("lanes", "", f"at least one of {', '.join(LANES)}")
    return once


def check_bounds(
    models: Iterable[str] | UnsetType | None, lanes: Iterable[str] | UnsetType | None
) -> dict[str, tuple[str, ...] | None]:
    """Those of the two that are given, as the columns of a tenant, a project or a key."""
    bounds = {}
    if not isinstance(models, UnsetType):
        bounds["models"] = check_models(models)
    if not isinstance(lanes, UnsetType):
        bounds["lanes"] = check_lanes(lanes)
    return bounds


def check_default_lane(lane: str | None, lanes: Iterable[str] | None) -> None:
    """It must be among the key's own."""
    if lane is not None:
        check_choice(lane, LANES if lanes is None else tuple(lanes), "default_lane")


def check_role(role: str) -> None:
    """Of a key."""
    check_choice(role, get_args(Role), "role")


def check_choice(value: str, allowed: Iterable[str], param: str) -> None:
    """One of a few words."""
    if value not in allowed:
        raise _invalid(param, value, f"one of {', '.join(allowed)}")


def check_weight(weight: float) -> None:
    """Of a tenant among tenants."""
    if not 0 < weight <= HEAVIEST:
        raise _invalid("weight", weight, f"a number above 0, up to {HEAVIEST:g}")


def check_time_zone(name: str) -> None:
    """Where a tenant's days and months begin."""
    try:
        ZoneInfo(name)
    except (LookupError, ValueError, OSError):  # unknown, a path, a folder
        raise _invalid("time_zone", name, "an IANA time zone, such as Europe/Berlin") from None


def check_expiry(expires_at: float | None, now: float) -> None:
    """When a key ends by itself."""
    if expires_at is not None and not now < expires_at < LARGEST:
        raise _invalid("expires_at", expires_at, f"Unix seconds after {int(now)}, which is now")


def check_overlap(overlap_s: float) -> None:
    """How long a rotated key goes on."""
    if not (math.isfinite(overlap_s) and 0 <= overlap_s <= LONGEST_OVERLAP_S):
        raise _invalid("overlap_s", overlap_s, f"seconds from 0 to {LONGEST_OVERLAP_S}")


def check_amount(amount: int, param: str = "amount", *, least: int = 1) -> None:
    """In any unit."""
    if not least <= amount < LARGEST:
        raise _invalid(param, amount, f"a whole number from {least} to {LARGEST - 1}")


def check_limit(meter: str, period: str | None, mode: str) -> str | None:
    """The period that a limit will have: budgets have one, by default a month; what is a rate or runs has none."""
    check_choice(meter, get_args(Meter), "meter")
    check_choice(mode, get_args(Mode), "mode")
    if meter in BUDGETS:
        right = check_period(DEFAULT_PERIOD if period is None else period)
        if right is not None:
            raise _invalid("period", period, right)
        return period or DEFAULT_PERIOD
    if period is not None:
        raise _invalid("period", period, f"none for {meter}; only {' and '.join(sorted(BUDGETS))} have a period")
    if mode == "soft":
        raise _invalid("mode", mode, f"enforce or shadow for {meter}; soft tells of a budget that is passed")
    return None


def _invalid(param: str, value: object, allowed: str) -> InvalidBody:
    return InvalidBody(
        f"Invalid value for {param}: {str(value)[:60]!r}; allowed: {allowed}.", param=param, code="invalid_value"
    )
