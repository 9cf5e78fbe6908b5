"""What a refusal says: OpenAI's sentences and codes, exact amounts."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gateway.errors import LimitReached
from gateway.refusals import money
from gateway.rules import NANO, PREPAID, Meter, Rule, ScopeKind
from tests.conftest import FakeClock
from tests.unit.gateway.limit_desk import Desk, demand, rule

HALF_PAST = 1800.0  # half past midnight


def refusal(*args: int, used: tuple[int, int, int] | None, rule: Rule) -> LimitReached:
    clock = FakeClock(HALF_PAST)
    desk = Desk(clock, rule)
    if used is not None:
        desk.use(*used[:2], cost=used[2])
        desk.reserve(1, 1, NANO // 10)
    error = desk.refused(*args)
    assert isinstance(error, LimitReached)
    return error


@pytest.mark.parametrize(
    ("asked", "used", "rule", "message"),
    [
        (
            (800, 100, 0),
            (29_498, 0, 0),
            rule("tpm", 30_000),
            "Rate limit reached for m in project acme/web on tokens per min (TPM): Limit 30000, Used 29500, "
            "Requested 900. Please try again in 800ms.",
        ),
        (
            (1, 1, 0),
            (1, 1, 0),
            rule("rpm", 2, kind="key"),
            "Rate limit reached for m in key key_1 on requests per min (RPM): Limit 2, Used 2, Requested 1. "
            "Please try again in 30s.",
        ),
        (
            (1, 1, 0),
            (1, 1, 0),
            rule("concurrency", 1, kind="model"),
            "Rate limit reached for m on concurrent requests: Limit 1, Used 1, Requested 1. Please try again in 1s.",
        ),
        (
            (60, 1, 0),
            None,
            rule("tpm", 50, kind="tenant"),
            "Request too large for m in tenant acme on tokens per min (TPM): Limit 50, Requested 61. "
            "The input or output tokens must be reduced in order to run successfully.",
        ),
        (
            (1, 1, 0),
            None,
            rule("rpm", 0),
            "Request too large for m in project acme/web on requests per min (RPM): Limit 0, Requested 1. "
            "This limit lets no request through.",
        ),
        (
            (1, 1, NANO // 2),
            (1, 1, NANO // 2),
            rule("usd", NANO, period="day"),
            "Spend limit reached for m in project acme/web on USD per day: Limit $1.00, Used $0.50, Reserved $0.10, "
            "Requested $0.50. Please try again in 23h30m0s.",
        ),
        (
            (50, 50, 0),
            (50, 48, 0),
            rule("tokens", 100, kind="tenant", period="rolling:2h"),
            "Usage limit reached for m in tenant acme on tokens per rolling 2h: Limit 100, Used 98, Reserved 2, "
            "Requested 100. Please try again in 2h30m0s.",
        ),
        (
            (1, 1, 1),
            (1, 1, 9 * NANO // 10),
            rule("usd", NANO, period=PREPAID),
            "Credit balance exhausted for m in project acme/web on USD: Credit $1.00, Used $0.90, Reserved $0.10, "
            "Requested $0.000000001. Add credit to go on.",
        ),
        (
            (1, 1, 2 * NANO),
            None,
            rule("usd", NANO),
            "Request too large for m in project acme/web on USD per month: Limit $1.00, Requested $2.00. "
            "The input or output tokens must be reduced in order to run successfully.",
        ),
    ],
)
def test_a_refusal_says_what_was_asked_and_what_there_is(
    asked: tuple[int, int, int], used: tuple[int, int, int] | None, rule: Rule, message: str
) -> None:
    assert str(refusal(*asked, used=used, rule=rule)) == message


@pytest.mark.parametrize(
    ("meter", "kind", "period", "code"),
    [
        ("rpm", "tenant", None, "rate_limit_exceeded"),
        ("tpm", "key", None, "rate_limit_exceeded"),
        ("concurrency", "model", None, "rate_limit_exceeded"),
        ("usd", "project", "month", "project_spend_limit_exceeded"),
        ("usd", "tenant", "rolling:30d", "organization_spend_limit_exceeded"),
        ("tokens", "tenant", "day", "organization_usage_limit_exceeded"),
        ("tokens", "project", "day", "insufficient_quota"),
        ("usd", "key", "week", "insufficient_quota"),
        ("usd", "model", "hour", "insufficient_quota"),
        ("usd", "tenant", PREPAID, "credit_balance_exhausted"),
        ("tokens", "key", PREPAID, "credit_balance_exhausted"),
    ],
)
def test_clients_can_switch_on_the_code(meter: Meter, kind: ScopeKind, period: str | None, code: str) -> None:
    error = refusal(10, 10, 20, used=None, rule=rule(meter, 0, kind=kind, period=period))

    assert error.code == code


def test_a_long_model_name_is_cut_short() -> None:
    desk = Desk(FakeClock(), rule("tpm", 0))
    verdict = desk.limits.check(desk.rules, replace(demand(), model="x" * 5000))

    assert verdict.message is not None
    assert len(verdict.message) < 400


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "$0.00"),
        (1, "$0.000000001"),
        (10**7, "$0.01"),
        (12_340_000, "$0.01234"),
        (10 * NANO, "$10.00"),
        (1234 * NANO + NANO // 2, "$1234.50"),
        (-NANO, "-$1.00"),
    ],
)
def test_money_is_written_exactly(nano: int, text: str) -> None:
    assert money(nano) == text
