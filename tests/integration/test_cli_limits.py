"""`laneway limits` and `prices`: how much may be used, and what it costs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.commands import Commands, one_line


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """With a config that names a store which is not there yet."""
    config = tmp_path / "laneway.toml"
    config.write_text('[store]\nurl = "sqlite:///laneway.db"\n')
    return Commands(config)


class TestLimits:
    def test_one_command_sets_several_limits_of_a_scope(self, commands: Commands) -> None:
        commands.json("tenants", "create", "acme")

        rows = commands.json(
            *("limits", "set", "--tenant", "acme", "--only-model", "m", "--rpm", 5, "--budget", 1.5),
            *("--token-budget", "1_000_000", "--period", "rolling:24h", "--mode", "shadow"),
        )

        assert {(row["scope_kind"], row["scope_id"], row["model"], row["mode"]) for row in rows} == {
            ("tenant", "acme", "m", "shadow")
        }
        assert [(row["meter"], row["amount"], row["period"]) for row in rows] == [
            ("rpm", 5, None),
            ("usd", 1_500_000_000, "rolling:24h"),
            ("tokens", 1_000_000, "rolling:24h"),
        ]

    @pytest.mark.parametrize(
        "words",
        [
            ("--budget", 5, "--period", "nonsense"),
            ("--budget", 5, "--mode", "soft"),
            ("--budget", 5, "--concurrency", 2**53),
        ],
    )
    def test_when_one_limit_cannot_be_none_is_set(self, commands: Commands, words: tuple[object, ...]) -> None:
        commands.json("tenants", "create", "acme")

        done = commands.run("limits", "set", "--tenant", "acme", "--rpm", 7, *words)

        assert (done.code, one_line(done.err)) == (1, True)
        assert commands.json("limits", "show") == []

    def test_a_limit_replaces_its_own_kind_and_ends_by_its_id(self, commands: Commands) -> None:
        commands.json("keys", "create", "--tenant", "acme", "--name", "ci")
        scope = ("--project", "acme/default")
        (before,) = commands.json("limits", "set", *scope, "--rpm", 5)
        (after,) = commands.json("limits", "set", *scope, "--rpm", 7)

        assert (after["id"], after["amount"]) == (before["id"], 7)
        assert commands.json("limits", "end", after["id"])["ended_at"] is not None
        assert commands.json("limits", "show", *scope) == []

    def test_prepaid_credit_is_topped_up_in_its_own_unit(self, commands: Commands) -> None:
        commands.json("tenants", "create", "acme")
        prepaid = ("limits", "set", "--tenant", "acme", "--period", "prepaid")
        money, tokens = commands.json(*prepaid, "--budget", 10, "--token-budget", 1000)

        assert commands.json("limits", "top-up", money["id"], "0.25")["amount"] == 10_250_000_000
        assert commands.json("limits", "top-up", tokens["id"], "500")["amount"] == 1500
        assert commands.run("limits", "top-up", tokens["id"], "0.25").code == 2
        assert commands.run("limits", "top-up", money["id"], "0").code == 2
        too_much = commands.run("limits", "top-up", money["id"], "9007199")
        assert (too_much.code, one_line(too_much.err)) == (1, True)
        assert "there is $10.25" in too_much.err

    def test_the_table_shows_money_and_use(self, commands: Commands) -> None:
        commands.json("limits", "set", "--model", "m", "--budget", "1234.5")

        table = commands.run("limits", "show").out

        assert re.search(r"model:m +usd +\$1,234\.50 +\$0\.00 +month +enforce", table)

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("--rpm", 1), "--tenant"),
            (("--tenant", "a", "--model", "m", "--rpm", 1), "one of"),
            (("--project", "web", "--rpm", 1), "TENANT/PROJECT"),
            (("--tenant", "a"), "--rpm"),
            (("--tenant", "a", "--rpm", 1, "--period", "day"), "--budget"),
            (("--tenant", "a", "--budget", 0), "more than $0"),
            (("--tenant", "a", "--token-budget", 0), "more than 0 tokens"),
        ],
    )
    def test_a_limit_without_whose_or_what_is_a_wrong_use(
        self, commands: Commands, words: tuple[object, ...], said: str
    ) -> None:
        done = commands.run("limits", "set", *words)

        assert (done.code, done.out) == (2, "")
        assert said in " ".join(done.err.split())

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("set", "--tenant", "nobody", "--rpm", 1), "nobody"),
            (("set", "--model", "m", "--budget", 1, "--period", "fortnight"), "fortnight"),
            (("end", "lim_unknown"), "lim_unknown"),
            (("top-up", "lim_unknown", "5"), "lim_unknown"),
        ],
    )
    def test_a_limit_that_cannot_be_is_refused_in_one_line(
        self, commands: Commands, words: tuple[object, ...], said: str
    ) -> None:
        done = commands.run("limits", *words)

        assert (done.code, one_line(done.err)) == (1, True)
        assert said in done.err


class TestPrices:
    def test_a_price_holds_until_the_next_and_cached_tokens_cost_the_same_unless_said(self, commands: Commands) -> None:
        commands.json("prices", "set", "m", "--prompt", 1, "--completion", 2)
        price = commands.json("prices", "set", "m", "--prompt", "0.15", "--completion", "0.6")
        other = commands.json("prices", "set", "*", "--prompt", 1, "--completion", 1, "--cached", "0.1")

        assert (price["prompt_nano"], price["completion_nano"], price["cached_nano"]) == (
            150_000_000,
            600_000_000,
            150_000_000,
        )
        assert other["cached_nano"] == 100_000_000
        assert commands.json("prices", "list") == [other, price]
        assert re.search(r"^m +\$0\.15 +\$0\.15 +\$0\.60 +2$", commands.run("prices", "list").out, re.MULTILINE)
