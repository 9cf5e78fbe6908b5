"""`laneway prices`: what a million tokens of each model cost."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli import amounts
from gateway.cli.tables import Field, print_row, print_rows
from gateway.cli.target import Config, Json, open_accounts
from gateway.rules import Price

FIELDS: tuple[Field[Price], ...] = (
    Field("Model", lambda price: price.model),
    Field("Prompt", lambda price: amounts.dollars(price.prompt_nano), is_number=True),
    Field("Cached", lambda price: amounts.dollars(price.cached_nano), is_number=True),
    Field("Completion", lambda price: amounts.dollars(price.completion_nano), is_number=True),
    Field("Version", lambda price: price.version, is_number=True),
)

prices = typer.Typer(name="prices", help="What models cost, in USD a million tokens.", no_args_is_help=True)


@prices.command("set")
def set_price(
    model: Annotated[str, typer.Argument(help="A model's name; * is the price of every model without its own.")],
    prompt: Annotated[int, typer.Option(parser=amounts.nano_dollars, metavar="USD", help="A million prompt tokens.")],
    completion: Annotated[
        int, typer.Option(parser=amounts.nano_dollars, metavar="USD", help="A million completion tokens.")
    ],
    cached: Annotated[
        int | None,
        typer.Option(
            parser=amounts.nano_dollars, metavar="USD", help="A million cached prompt tokens. \\[default: as --prompt]"
        ),
    ] = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Price a model from now on. What was used before keeps the price it had."""
    with open_accounts(config) as accounts:
        price = accounts.set_price(model, prompt, completion, prompt if cached is None else cached)
    print_row(price, FIELDS, as_json)


@prices.command("list")
def list_prices(config: Config = None, as_json: Json = False) -> None:
    """List the prices that hold now, in USD a million tokens."""
    with open_accounts(config) as accounts:
        rows = accounts.prices()
    print_rows(rows, FIELDS, as_json)
