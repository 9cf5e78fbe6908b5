"""Money, durations and instants of the command line."""

from __future__ import annotations

import time

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli import amounts
from gateway.rules import NANO


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("12.5", 12_500_000_000),
        ("$3", 3 * NANO),
        (" 0.000000001 ", 1),
        (".25", 250_000_000),
        ("7.", 7 * NANO),
        ("1.0000000000000", NANO),
        ("0", 0),
        ("9007199.254740991", 2**53 - 1),
    ],
)
def test_money_is_read_exactly(text: str, nano: int) -> None:
    assert amounts.nano_dollars(text) == nano


@pytest.mark.parametrize(
    "text", ["0.0000000001", "-1", "1e9", "12,5", "", ".", "$", "ten", "inf", "9007199.254740992", "1000000000000", "١"]
)
def test_what_is_no_exact_amount_of_money_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        amounts.nano_dollars(text)


@given(st.integers(0, amounts.MOST))
def test_money_that_is_shown_is_read_as_the_same(nano: int) -> None:
    assert amounts.nano_dollars(amounts.dollars(nano).replace(",", "")) == nano


def test_money_has_separators_and_at_least_cents() -> None:
    shown = [amounts.dollars(nano) for nano in (0, 1_234_567 * NANO, NANO // 2, 1, -NANO)]

    assert shown == ["$0.00", "$1,234,567.00", "$0.50", "$0.000000001", "-$1.00"]


def test_money_of_one_column_has_as_many_decimals_as_its_finest_amount() -> None:
    column = [NANO, 1_500_000, 250_000_000]
    decimals = amounts.decimals_of(column)

    assert [amounts.dollars(nano, decimals) for nano in column] == ["$1.0000", "$0.0015", "$0.2500"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("24h", 86_400), ("7d", 604_800), ("2w", 1_209_600)]
)
def test_a_duration_has_one_unit(text: str, seconds: int) -> None:
    assert amounts.duration_s(text) == seconds


@pytest.mark.parametrize("text", ["7", "d", "1h30m", "-1d", "1y", "99999d", "999999999w"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        amounts.duration_s(text)


def test_an_instant_is_utc_unless_it_says_otherwise() -> None:
    instants = [amounts.past_at(text) for text in ("2026-01-31", "2026-01-31T12:00", "2026-01-31T12:00+02:00")]

    assert [instant - instants[0] for instant in instants] == [0, 43_200, 36_000]
    assert instants[0] == 1_769_817_600


def test_a_duration_is_an_instant_from_now() -> None:
    before = time.time()
    past, future = amounts.past_at("1d"), amounts.future_at("1d")
    after = time.time()

    assert before - 86_400 <= past <= after - 86_400
    assert before + 86_400 <= future <= after + 86_400


@pytest.mark.parametrize("text", ["2001-01-01", "0s"])
def test_what_is_over_is_not_to_come(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is over"):
        amounts.future_at(text)


def test_a_budget_is_more_than_nothing() -> None:
    assert (amounts.budget_nano("0.000000001"), amounts.budget_tokens("1")) == (1, 1)
    for read, text in ((amounts.budget_nano, "0.0"), (amounts.budget_tokens, "0")):
        with pytest.raises(typer.BadParameter, match="is no budget"):
            read(text)


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", ""])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        amounts.past_at(text)


def test_names_are_kept_once_in_their_order() -> None:
    assert amounts.Names(" b, a,,b ") == ("b", "a")


@pytest.mark.parametrize("text", ["", " , "])
def test_a_list_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        amounts.Names(text)


@pytest.mark.parametrize(("text", "tokens"), [("1000000", 1_000_000), ("1_000_000", 1_000_000), ("1,000", 1000)])
def test_a_number_of_tokens_may_have_separators(text: str, tokens: int) -> None:
    assert amounts.token_count(text) == tokens


@pytest.mark.parametrize("text", ["1.5", "-3", "1M", "", "²", "9" * 16])
def test_what_is_no_number_of_tokens_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        amounts.token_count(text)
