"""`laneway top`: a live view of the running server in the terminal."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer
from rich.columns import Columns
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from gateway.cli import amounts
from gateway.cli.screen import CommandFailed, stdout
from gateway.cli.tables import print_json, visible
from gateway.cli.target import Config, Json, open_store

if TYPE_CHECKING:
    from gateway.state import ServerState, Totals

MOST_REQUESTS = 15
MOST_LIMITS = 12
BAR_CELLS = 20
NUMBERS = ("Running", "Waiting", "Oldest wait", "Amount", "Used", "Reserved", "Age", "In", "Out")


def top(
    config: Config = None,
    every: Annotated[float, typer.Option(min=0.2, max=60, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Watch the server that runs on the config's store: lanes, backends, limits, requests in flight. Ctrl-C ends it."""
    from gateway.control import NotRunning, ask
    from gateway.state import ServerState

    with open_store(config) as (_, store):
        try:
            state = ask(store, "state", ServerState)
            if as_json:
                print_json(state)
                return
            screen = Screen()
            if once:
                stdout().print(screen.show(state))
                return
            with Live(screen.show(state), console=stdout(), screen=True, auto_refresh=False) as live:
                while True:
                    time.sleep(every)
                    live.update(screen.show(ask(store, "state", ServerState)), refresh=True)
        except NotRunning as error:
            raise CommandFailed(str(error)) from None
        except KeyboardInterrupt:
            return


class Screen:
    """Turns states into pictures; remembers the last one, since rates are differences."""

    def __init__(self) -> None:
        self._last: tuple[float, Totals] | None = None

    def show(self, state: ServerState) -> RenderableType:
        """The whole view."""
        parts: list[RenderableType] = [self._headline(state), Columns([_lanes(state), _backends(state)])]
        if state.limits:
            parts.append(_limits(state))
        parts.append(_requests(state))
        return Group(*parts)

    def _headline(self, state: ServerState) -> Text:
        now = (state.uptime_s, state.totals)
        before, self._last = self._last, now
        text = Text.assemble(("laneway ", "bold"), state.version, f"   up {_duration(state.uptime_s)}")
        if before is not None and now[0] > before[0]:
            seconds, old = now[0] - before[0], before[1]
            for name, count in (
                ("requests/s", state.totals.requests - old.requests),
                ("tokens in/s", state.totals.prompt_tokens - old.prompt_tokens),
                ("out/s", state.totals.completion_tokens - old.completion_tokens),
            ):
                text.append(f"   {name} {count / seconds:,.0f}")
        text.append(f"   loop lag {state.loop_lag_s * 1000:.0f} ms")
        writer = state.writer
        text.append(f"   ledger {writer.records:,} records, {writer.queued:,} queued")
        if writer.store_is_away:
            text.append(f"   STORE AWAY, {writer.spooled:,} spooled", "bold red")
        return text


def _lanes(state: ServerState) -> Panel:
    table = _table("Lane", "Running", "Waiting", "Oldest wait")
    for name, lane in state.lanes.items():
        wait = f"{lane.oldest_wait_s:.1f} s" if lane.waiting else ""
        table.add_row(_word(name), *map(_number, (f"{lane.running:,}", f"{lane.waiting:,}", wait)))
    return Panel(table, title="Lanes", border_style="dim")


def _backends(state: ServerState) -> Panel:
    table = _table("Backend", "Running", "Waiting", "State")
    for name, backend in state.backends.items():
        word = _word("ready", "green") if backend.ready else _word(backend.detail or "not ready", "red")
        table.add_row(_word(name), _number(f"{backend.running:,}"), _number(f"{backend.waiting:,}"), word)
    return Panel(table, title="Backends", border_style="dim")


def _limits(state: ServerState) -> Panel:
    table = _table("Scope", "Meter", "Amount", "Used", "Reserved", "Taken")
    fullest = sorted(state.limits, key=lambda limit: limit.remaining / max(1, limit.rule.amount))
    for limit in fullest[:MOST_LIMITS]:
        rule = limit.rule
        taken = limit.used + limit.reserved
        style = "red" if taken >= rule.amount else "green"
        table.add_row(
            _word(f"{rule.scope.kind}:{rule.scope.id}"),
            _word(f"{rule.meter} {rule.period or ''}".strip()),
            *(_number(amounts.metered(rule.meter, amount)) for amount in (rule.amount, limit.used, limit.reserved)),
            ProgressBar(total=max(1, rule.amount), completed=taken, width=BAR_CELLS, complete_style=style),
        )
    return Panel(table, title="Limits, the fullest first", border_style="dim")


def _requests(state: ServerState) -> Panel:
    table = _table("Age", "Tenant", "Key", "Model", "Lane", "State", "In", "Out")
    for entry in state.requests[:MOST_REQUESTS]:
        words = (entry.tenant, entry.key_id, entry.model, entry.lane, f"{entry.state} {entry.backend}".strip())
        usage = entry.usage
        table.add_row(
            _number(f"{entry.age_s:.1f} s"),
            *map(_word, words),
            *map(_number, (f"{usage.prompt_tokens:,}", f"{usage.completion_tokens:,}")),
        )
    tenants = Counter(entry.tenant for entry in state.requests).most_common(5)
    by_tenant = ", ".join(f"{visible(tenant)} {count}" for tenant, count in tenants)
    title = f"{len(state.requests):,} in flight" + (f": {by_tenant}" if by_tenant else "")
    return Panel(table, title=title, border_style="dim")


def _table(*titles: str) -> Table:
    """Where it is narrow, words and the bar give way first; numbers are never cut: half a number is another one."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in titles:
        is_number = title in NUMBERS
        table.add_column(_word(title), justify="right" if is_number else "left", no_wrap=is_number)
    return table


def _word(text: str, style: str = "") -> Text:
    """In one line, cut where there is no room."""
    return Text(visible(text), style, no_wrap=True, overflow="ellipsis")


def _number(text: str) -> Text:
    """Whole, in two lines at worst."""
    return Text(text, no_wrap=False, overflow="fold")


def _duration(seconds: float) -> str:
    minutes, hours, days = int(seconds) // 60, int(seconds) // 3600, int(seconds) // 86_400
    if days:
        return f"{days}d {hours % 24}h"
    return f"{hours}h {minutes % 60}m" if hours else f"{minutes}m {int(seconds) % 60}s"
