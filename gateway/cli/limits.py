"""`laneway limits`: set, show, end and top up what keys, projects, tenants and models may use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from backends.errors import ConfigError
from gateway.cli import amounts
from gateway.cli.screen import CommandFailed
from gateway.cli.tables import Field, print_json, print_note, print_row, print_rows, print_table
from gateway.cli.target import Config, Json, actor, open_accounts, open_store
from gateway.rules import BUDGETS, Meter, Mode, Scope, ScopeKind

if TYPE_CHECKING:
    from gateway.accounts import Accounts
    from gateway.accounts.rows import LimitRow
    from gateway.counters import RuleState

FIELDS: tuple[Field[LimitRow], ...] = (
    Field("ID", lambda row: row.id),
    Field("Scope", lambda row: row.scope),
    Field("Only model", lambda row: row.model),
    Field("Meter", lambda row: row.meter),
    Field("Amount", lambda row: amounts.metered(row.meter, row.amount), is_number=True),
    Field("Period", lambda row: row.period),
    Field("Mode", lambda row: row.mode),
    Field("Since", lambda row: amounts.shown_at(row.created_at)),
    Field("Ended", lambda row: amounts.shown_at(row.ended_at)),
)

STATE_FIELDS: tuple[Field[RuleState], ...] = (
    Field("ID", lambda state: state.rule.id),
    Field("Scope", lambda state: str(state.rule.scope)),
    Field("Meter", lambda state: state.rule.meter),
    Field("Amount", lambda state: amounts.metered(state.rule.meter, state.rule.amount), is_number=True),
    Field("Used", lambda state: amounts.metered(state.rule.meter, state.used), is_number=True),
    Field("Reserved", lambda state: amounts.metered(state.rule.meter, state.reserved), is_number=True),
    Field("Left", lambda state: amounts.metered(state.rule.meter, state.remaining), is_number=True),
    Field("Resets in", lambda state: None if state.resets_in_s is None else f"{state.resets_in_s:.1f} s"),
)

Key = Annotated[str | None, typer.Option(metavar="ID", help="Limits of this key.")]
Project = Annotated[str | None, typer.Option(metavar="T/P", help="Limits of this project of a tenant.")]
Tenant = Annotated[str | None, typer.Option(help="Limits of this tenant.")]
Model = Annotated[str | None, typer.Option(help="Limits of this model, over all tenants.")]

limits = typer.Typer(name="limits", help="Set, show, end and top up limits.", no_args_is_help=True)


@limits.command("set")
def set_limits(
    key: Key = None,
    project: Project = None,
    tenant: Tenant = None,
    model: Model = None,
    only_model: Annotated[str | None, typer.Option(help="Count only requests for this model.")] = None,
    rpm: Annotated[int | None, typer.Option(min=1, help="Requests a minute.")] = None,
    tpm: Annotated[int | None, typer.Option(min=1, help="Tokens a minute.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Requests at once.")] = None,
    budget: Annotated[
        int | None, typer.Option(parser=amounts.budget_nano, metavar="USD", help="Money for each period.")
    ] = None,
    token_budget: Annotated[
        int | None, typer.Option(parser=amounts.budget_tokens, metavar="N", help="Tokens for each period.")
    ] = None,
    period: Annotated[
        str | None,
        typer.Option(help="Of a budget: hour, day, week, month, rolling:24h, rolling:30d, prepaid. \\[default: month]"),
    ] = None,
    mode: Annotated[
        Mode, typer.Option(help="enforce refuses, shadow only counts, soft only warns (log line and webhook).")
    ] = "enforce",
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Set limits of one key, project, tenant or model, in the place of those of the same kind."""
    scope = _one_scope(key, project, tenant, model)
    rates: dict[Meter, int | None] = {"rpm": rpm, "tpm": tpm, "concurrency": concurrency}
    budgets: dict[Meter, int | None] = {"usd": budget, "tokens": token_budget}
    spent = [*_given(budgets, period)]
    if period is not None and not spent:
        raise typer.BadParameter("--period is of a budget; give --budget or --token-budget too")
    wanted = [*_given(rates, None), *spent]
    if not wanted:
        raise typer.BadParameter("give a limit: --rpm, --tpm, --concurrency, --budget or --token-budget")
    with open_accounts(config) as accounts:
        _check(wanted, mode)
        rows = [
            accounts.set_limit(scope, meter, amount, period=each, mode=mode, model=only_model)
            for meter, amount, each in wanted
        ]
    print_rows(rows, FIELDS, as_json)


@limits.command("show")
def show_limits(
    key: Key = None,
    project: Project = None,
    tenant: Tenant = None,
    model: Model = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Show the limits that hold, of one scope or of all, and what was settled on the budgets among them."""
    from gateway.accounts import Accounts
    from gateway.cli.budget_use import budget_states

    scope = _one_scope(key, project, tenant, model) if _scopes(key, project, tenant, model) else None
    with open_store(config) as (settings, store):
        rows = Accounts(store, actor()).limits(scope)
        states = budget_states(store, settings.limits, {row.id for row in rows if row.meter in BUDGETS})
    used = {rule_id: state.used for rule_id, state in states.items()}
    if as_json:
        print_json([msgspec.to_builtins(row) | {"used": used.get(row.id)} for row in rows])
    else:
        use: Field[LimitRow] = Field("Used", lambda row: _used(row, used), is_number=True)
        print_table(rows, [*FIELDS[:5], use, *FIELDS[5:-1]])


@limits.command("end")
def end_limit(
    limit_id: Annotated[str, typer.Argument(metavar="ID")], config: Config = None, as_json: Json = False
) -> None:
    """End a limit: it counts and refuses nothing from now on."""
    with open_accounts(config) as accounts:
        row = accounts.end_limit(limit_id)
    print_row(row, FIELDS, as_json)


@limits.command("top-up")
def top_up(
    limit_id: Annotated[str, typer.Argument(metavar="ID", help="Of a prepaid budget.")],
    amount: Annotated[str, typer.Argument(metavar="USD|N", help="USD for a budget of money, else tokens.")],
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Add credit to a prepaid budget."""
    with open_accounts(config) as accounts:
        row = accounts.top_up(limit_id, _credit(_find(accounts, limit_id), amount))
    print_row(row, FIELDS, as_json)


@limits.command("check")
def check_limits(
    key: Annotated[str, typer.Option(metavar="ID", help="Who would ask.")],
    model: Annotated[str, typer.Option(help="What for.")],
    prompt_tokens: Annotated[int, typer.Option(min=0, help="Tokens of the prompt.")] = 0,
    max_tokens: Annotated[int, typer.Option(min=0, help="Tokens of the answer, at most.")] = 0,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Ask the running server whether a request would pass, without sending one. Exit code 1 when it would not."""
    from gateway.control import NotRunning, ask
    from gateway.limits import Verdict

    with open_store(config) as (_, store):
        asked = {"key": key, "model": model, "prompt_tokens": prompt_tokens, "max_tokens": max_tokens}
        try:
            verdict = ask(store, "check", Verdict, **asked)
        except (NotRunning, ConfigError) as error:
            raise CommandFailed(str(error)) from None
    if as_json:
        print_json(verdict)
    else:
        if verdict.states:
            print_table(verdict.states, STATE_FIELDS)
        print_note("it would pass" if verdict.allowed else f"it would be refused: {verdict.message}")
    raise typer.Exit(0 if verdict.allowed else 1)


def _one_scope(key: str | None, project: str | None, tenant: str | None, model: str | None) -> Scope:
    scopes = _scopes(key, project, tenant, model)
    if len(scopes) != 1:
        raise typer.BadParameter("say whose limits: one of --key, --project, --tenant and --model")
    return scopes[0]


def _scopes(key: str | None, project: str | None, tenant: str | None, model: str | None) -> list[Scope]:
    given: dict[ScopeKind, str | None] = {"key": key, "project": project, "tenant": tenant, "model": model}
    if project is not None and not all(project.partition("/")):
        raise typer.BadParameter(f"--project {project[:60]}: write TENANT/PROJECT")
    return [Scope(kind, name) for kind, name in given.items() if name is not None]


def _given(meters: Mapping[Meter, int | None], period: str | None) -> Iterator[tuple[Meter, int, str | None]]:
    return ((meter, amount, period) for meter, amount in meters.items() if amount is not None)


def _used(row: LimitRow, used: Mapping[str, int]) -> str | None:
    return amounts.metered(row.meter, used[row.id]) if row.id in used else None


def _check(wanted: Sequence[tuple[Meter, int, str | None]], mode: Mode) -> None:
    """Before the first is set, so that a wrong one leaves all as they were: each is a change of its own."""
    from gateway.accounts.checks import check_amount, check_limit

    for meter, amount, period in wanted:
        check_amount(amount, f"--{meter}")
        check_limit(meter, period, mode)


def _credit(row: LimitRow, text: str) -> int:
    """What is added to this budget, in its own unit. More than can be kept in all is refused in that unit too."""
    credit = amounts.budget_nano(text) if row.meter == "usd" else amounts.budget_tokens(text)
    if row.amount + credit > amounts.MOST:
        most, present = (amounts.metered(row.meter, amount) for amount in (amounts.MOST, row.amount))
        raise CommandFailed(f"{text[:60]} more would be over {most}, the most that is kept; there is {present}")
    return credit


def _find(accounts: Accounts, limit_id: str) -> LimitRow:
    found = [row for row in accounts.limits() if row.id == limit_id]
    if not found:
        raise CommandFailed(f"there is no limit {limit_id[:60]}; laneway limits show lists them")
    return found[0]
