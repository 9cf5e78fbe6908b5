"""`laneway explain`: every step of one request."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from gateway.cli import amounts
from gateway.cli.screen import CommandFailed, stdout
from gateway.cli.tables import Field, print_facts, print_json, print_table
from gateway.cli.target import Config, Json, open_store

if TYPE_CHECKING:
    from gateway.explain import BudgetUse, Explanation, Step

STEPS: tuple[Field[Step], ...] = (
    Field("After ms", lambda step: step.after_ms, is_number=True),
    Field("Step", lambda step: step.kind),
    Field("What happened", lambda step: step.text, folds=True),
)
BUDGETS: tuple[Field[BudgetUse], ...] = (
    Field("Budget", lambda use: use.rule_id),
    Field("Scope", lambda use: use.scope),
    Field("Period", lambda use: use.period),
    Field("Reserved", lambda use: amounts.metered(use.meter or "", use.reserved), is_number=True),
    Field("Charged", lambda use: _charged(use), is_number=True),
)


def _charged(use: BudgetUse) -> str | None:
    return None if use.charged is None else amounts.metered(use.meter or "", use.charged)


def explain(
    request_id: Annotated[str, typer.Argument(help="As the response header or the answer's id says it.")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show every step of one request: limits, wait, attempts, tokens and cost."""
    from gateway.explain import explain as explain_request

    with open_store(config) as (_, store):
        found = explain_request(store, request_id)
    if found is None:
        raise CommandFailed(f"the ledger has no request {request_id[:80]}")
    if as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: Explanation) -> None:
    print_facts(_facts(found))
    stdout().print()
    print_table(_time_line(found), STEPS)
    if found.budgets:
        stdout().print()
        print_table(found.budgets, BUDGETS)


def _time_line(found: Explanation) -> list[Step]:
    """The events, and between them what only the settle tells: when its one attempt began, when text began to flow."""
    from gateway.explain import Step

    if not found.steps or found.settled_at is None:
        return list(found.steps)
    *events, end = found.steps
    first = found.steps[0].at
    told = []
    if len(found.attempts) == 1 and found.wait_ms is not None:
        told.append((found.wait_ms, "attempt", f"attempt 1 on {found.attempts[0].backend} begins"))
    if found.ttft_ms is not None:
        told.append((found.ttft_ms, "first token", "the answer begins"))
    between = [Step(at=first + ms / 1000, after_ms=ms, kind=kind, text=text) for ms, kind, text in told]
    return [*sorted([*events, *between], key=lambda step: step.after_ms), end]


def _facts(found: Explanation) -> Iterator[tuple[str, object]]:
    yield "Request", found.request_id
    yield "Shown as", found.shown_id
    yield "Line of", found.line
    yield "State", found.state if found.outcome is None else f"{found.state}: {found.outcome}"
    yield "Error", found.error
    yield "Tenant", f"{found.tenant} / {found.project}"
    yield "Key", f"{found.key_id} ({found.key_name})" if found.key_name else found.key_id
    yield "Model", found.model
    yield "Route", f"{found.route}, streamed" if found.stream else found.route
    yield "Lane", found.lane
    yield "Admitted", _moment(found.admitted_at)
    yield "Settled", _moment(found.settled_at)
    yield "Times", _times(found)
    yield "Tokens", _tokens(found)
    yield "Cost", found.cost_text


def _moment(at: float | None) -> str | None:
    """In UTC, to the millisecond."""
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(" ", "milliseconds")


def _times(found: Explanation) -> str:
    spans = (("waited", found.wait_ms), ("first token after", found.ttft_ms), ("total", found.total_ms))
    return ", ".join(f"{name} {span:,} ms" for name, span in spans if span is not None)


def _tokens(found: Explanation) -> str:
    kinds = (("cached", found.cached_tokens), ("reasoning", found.reasoning_tokens))
    among = "".join(f", {tokens:,} {kind}" for kind, tokens in kinds if tokens)
    counted = f"{found.prompt_tokens:,} prompt, {found.completion_tokens:,} completion{among}"
    return counted if found.source is None else f"{counted} ({found.source})"
