"""Why a limit refuses: which of several is told, and in which words. OpenAI's words and codes, where it has them."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gateway.counters import Counter, Moment, RuleState
from gateway.errors import BudgetSpent, LimitReached, LimitReport, NeverFits, NotPriced
from gateway.openai.rate_limits import duration
from gateway.rules import NANO, PREPAID, Meter, Rule, ScopeKind

RATE_CODE = "rate_limit_exceeded"
BUDGET_CODE = "insufficient_quota"
BUDGET_CODES: dict[tuple[Meter, ScopeKind], str] = {
    ("usd", "project"): "project_spend_limit_exceeded",
    ("usd", "tenant"): "organization_spend_limit_exceeded",
    ("tokens", "tenant"): "organization_usage_limit_exceeded",
}
CREDIT_CODE = "credit_balance_exhausted"
WORDS: dict[Meter, str] = {
    "rpm": "requests per min (RPM)",
    "tpm": "tokens per min (TPM)",
    "concurrency": "concurrent requests",
    "tokens": "tokens",
    "usd": "USD",
}
# Of several that refuse, the first of these is told: what no waiting helps, then what takes long to come back.
ORDER: dict[Meter, int] = {"tokens": 1, "usd": 1, "rpm": 2, "tpm": 3, "concurrency": 4}


def worst(counters: Iterable[Counter], asked: tuple[int, int, int], now: Moment) -> Counter | None:
    """The one to tell of those that have no room: of the gravest class, that with the longest wait."""

    def gravity(counter: Counter) -> tuple[int, float]:
        amount = asked[counter.column]
        if counter.never_fits(amount):
            return 0, 0.0
        wait_s = counter.wait_s(amount, now)
        return ORDER[counter.rule.meter], -(math.inf if wait_s is None else wait_s)

    return min(counters, key=gravity, default=None)


def refuse(counter: Counter, asked: int, model: str, now: Moment) -> LimitReached:
    """The error that says that `asked` has no room."""
    rule, state, wait_s = counter.rule, counter.state(now), counter.wait_s(asked, now)
    report = LimitReport(
        scope=str(rule.scope),
        limit=rule.id,
        meter=rule.meter,
        amount=rule.amount,
        used=state.used,
        reserved=state.reserved,
        asked=asked,
        retry_after_s=wait_s,
    )
    if counter.never_fits(asked):
        return NeverFits(_too_large(rule, asked, model), report, code=code_of(rule))
    if rule.is_budget:
        return BudgetSpent(_spent(state, asked, model, wait_s), report, code=code_of(rule))
    return LimitReached(_reached(state, asked, model, wait_s), report, code=code_of(rule))


def not_priced(rule: Rule, model: str) -> NotPriced:
    """The error for a model without a price under a money budget."""
    return NotPriced(
        f"The model {_short(model)} has no price, and a spend limit applies{_where(rule)}. "
        "Ask the operator to set a price for it, or use another model.",
        param="model",
        code="model_not_priced",
    )


def code_of(rule: Rule) -> str:
    """What clients switch on."""
    if not rule.is_budget:
        return RATE_CODE
    if rule.period == PREPAID:
        return CREDIT_CODE
    return BUDGET_CODES.get((rule.meter, rule.scope.kind), BUDGET_CODE)


def money(nano: int) -> str:
    """Nano-dollars as dollars, exact, with two decimals or as many as it takes."""
    cents, rest = divmod(abs(nano), NANO // 100)
    decimals = f"{rest:07d}".rstrip("0")
    return f"{'-' if nano < 0 else ''}${cents // 100}.{cents % 100:02d}{decimals}"


def _reached(state: RuleState, asked: int, model: str, wait_s: float | None) -> str:
    return (
        f"Rate limit reached for {_short(model)}{_where(state.rule)} on {WORDS[state.rule.meter]}: "
        f"Limit {state.rule.amount}, Used {state.used + state.reserved}, Requested {asked}.{_again(wait_s)}"
    )


def _spent(state: RuleState, asked: int, model: str, wait_s: float | None) -> str:
    rule = state.rule
    is_prepaid = rule.period == PREPAID
    what = "Credit balance exhausted" if is_prepaid else f"{'Spend' if rule.meter == 'usd' else 'Usage'} limit reached"
    amounts = (
        f"{name} {_amount(rule, amount)}"
        for name, amount in (
            ("Credit" if is_prepaid else "Limit", rule.amount),
            ("Used", state.used),
            ("Reserved", state.reserved),
            ("Requested", asked),
        )
    )
    then = " Add credit to go on." if is_prepaid else _again(wait_s)
    return f"{what} for {_short(model)}{_where(rule)} on {_unit(rule)}: {', '.join(amounts)}.{then}"


def _too_large(rule: Rule, asked: int, model: str) -> str:
    advice = (
        "The input or output tokens must be reduced in order to run successfully."
        if rule.meter in ("tpm", "tokens", "usd")
        else "This limit lets no request through."
    )
    return (
        f"Request too large for {_short(model)}{_where(rule)} on {_unit(rule)}: "
        f"Limit {_amount(rule, rule.amount)}, Requested {_amount(rule, asked)}. {advice}"
    )


def _where(rule: Rule) -> str:
    return "" if rule.scope.kind == "model" else f" in {rule.scope.kind} {rule.scope.id}"


def _unit(rule: Rule) -> str:
    if not rule.is_budget or rule.period == PREPAID:
        return WORDS[rule.meter]
    kind, _, length = (rule.period or "").rpartition(":")
    return f"{WORDS[rule.meter]} per {kind} {length}" if kind else f"{WORDS[rule.meter]} per {length}"


def _amount(rule: Rule, amount: int) -> str:
    return money(amount) if rule.meter == "usd" else str(amount)


def _again(wait_s: float | None) -> str:
    return "" if wait_s is None else f" Please try again in {duration(wait_s)}."


def _short(model: str) -> str:
    return model if len(model) <= 100 else f"{model[:100]}…"
