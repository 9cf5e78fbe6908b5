"""Limits with one set of rules and a clock: what the tests of limits reserve from."""

from __future__ import annotations

import pytest

from backends.types import Usage
from gateway.budgets import SoftAlert
from gateway.errors import GatewayError
from gateway.events import Charge
from gateway.limits import Demand, LimitOptions, Limits, Reservation
from gateway.rules import Meter, Mode, Rule, Scope, ScopeKind
from tests.conftest import FakeClock

NOTHING = Usage()


def rule(
    meter: Meter,
    amount: int,
    *,
    kind: ScopeKind = "project",
    period: str | None = None,
    mode: Mode = "enforce",
    id: str | None = None,  # noqa: A002 - a rule's own word
) -> Rule:
    name = {"key": "key_1", "project": "acme/web", "tenant": "acme", "model": "m"}[kind]
    if meter in ("tokens", "usd"):
        period = period or "month"
    return Rule(
        id=id or f"{kind}-{meter}", scope=Scope(kind, name), meter=meter, amount=amount, period=period, mode=mode
    )


def demand(prompt: int = 10, output: int = 10, cost: int | None = 0, request_id: str = "r") -> Demand:
    return Demand(request_id=request_id, model="m", prompt_tokens=prompt, output_tokens=output, cost_nano=cost)


def usage(prompt: int, completion: int, cached: int = 0) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


class Desk:
    """Limits with one set of rules."""

    def __init__(self, clock: FakeClock, *rules: Rule, options: LimitOptions | None = None) -> None:
        self.rules = rules
        self.alerts: list[SoftAlert] = []
        self.limits = Limits(options or LimitOptions(), clock, self.alerts.append)

    def reserve(self, *args: int | None, **kwargs: int) -> Reservation:
        return self.limits.reserve(self.rules, demand(*args, **kwargs))  # type: ignore[arg-type]

    def refused(self, *args: int | None) -> GatewayError:
        before = self.sums
        with pytest.raises(GatewayError) as caught:
            self.reserve(*args)
        assert self.sums == before, "a refusal consumed something"
        return caught.value

    def use(self, prompt: int, completion: int, cached: int = 0, cost: int = 0) -> tuple[Charge, ...]:
        return self.reserve(prompt, completion, cost).settle(usage(prompt, completion, cached), cost)

    @property
    def sums(self) -> dict[str, tuple[int, int]]:
        """Rule → used and reserved."""
        return {state.rule.id: (state.used, state.reserved) for state in self.limits.states(self.rules)}
