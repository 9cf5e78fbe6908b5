"""What was settled on budgets in the windows that count now, as the store has it."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select

from gateway.counters import RuleState
from gateway.directory import Directory
from gateway.limits import LimitOptions, Limits
from gateway.rules import Rule
from gateway.store import Store
from gateway.tables import budget_windows


def budget_states(store: Store, options: LimitOptions, rule_ids: Collection[str]) -> dict[str, RuleState]:
    """By the ids of the limits, which are budgets that hold. What a server has reserved at this moment is not in it."""
    rules = [rule for rule in _rules(store) if rule.id in rule_ids]
    limits = Limits(options)
    used = budget_windows.c.opening + budget_windows.c.used
    query = select(budget_windows.c.rule_id, budget_windows.c.starts_at, used)
    with store.reading() as connection:
        for rule_id, starts_at, amount in connection.execute(query):
            if rule_id in rule_ids:
                limits.seed(rule_id, starts_at, amount)
    return {state.rule.id: state for state in limits.states(rules)}


def _rules(store: Store) -> tuple[Rule, ...]:
    """Every limit, each with the time zone of its tenant."""
    directory = Directory(store)
    directory.start()
    try:
        return directory.all_rules()
    finally:
        directory.stop()
