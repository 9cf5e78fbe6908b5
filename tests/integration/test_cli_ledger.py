"""`laneway usage`, `ledger` and `explain`: what was used, on a store with what servers wrote into it."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet
import pytest
from msgspec.structs import replace
from sqlalchemy import update

from gateway.events import Admitted, Charge, Detail, Event, Kind, Noted, Record, Settled
from gateway.journal import commit
from gateway.request_id import new_id
from gateway.rules import Rule, Scope, window_at
from gateway.store import Store
from gateway.tables import usage_days
from tests.integration.commands import Commands, ids, one_line
from tests.integration.served import IN_TIME_S, LANEWAY

COST = 1_100_000  # of what `Books.settle` uses, at a dollar a million prompt tokens and two for completion
SUMS = ["requests", "prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens", "cost_nano_usd"]


class Books:
    """A store that a server wrote into, and the commands on it."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store = store
        config = folder / "laneway.toml"
        config.write_text(f'[store]\nurl = "{store.options.url}"\n')
        self.commands = Commands(config)

    def write(self, *records: Record) -> None:
        connection = self.store.raw_connection()
        commit(connection, records, self.store.dialect)
        connection.close()

    def settle(self, tenant: str = "acme", *, charges: tuple[Charge, ...] = (), shown_id: str = "", **more: Any) -> str:
        """A finished request of 1000 prompt tokens, 200 of them cached, and 50 completion tokens. Returns its id."""
        admit = admission(tenant, charges, shown_id)
        end = dict(FINISHED, at=admit.at + 900) | more
        settle = replace(admit, **end, detail=text_of(Detail(charges=charges)))
        same = {name: getattr(settle, name) for name in ("model", "key_id", "price_version")}
        self.write(Admitted(replace(admit, **same)), Settled(settle, charges))
        return admit.request_id


FINISHED = {
    **{"kind": Kind.SETTLE, "backend": "b", "outcome": "ok", "source": "reported"},
    **{"cached_tokens": 200, "wait_ms": 20, "ttft_ms": 150, "total_ms": 900},
}


def admission(
    tenant: str = "acme", charges: tuple[Charge, ...] = (), shown_id: str = "", run_id: str = "dead"
) -> Event:
    """Of a request that came a minute ago."""
    now = time.time() - 60
    return Event(
        request_id=new_id(now),
        kind=Kind.ADMIT,
        seq=0,
        at=int(now * 1000),
        run_id=run_id,
        tenant=tenant,
        project="p",
        key_id="key_1",
        model="m",
        route="chat",
        lane="standard",
        prompt_tokens=1000,
        completion_tokens=50,
        detail=text_of(Detail(shown_id=shown_id or None, charges=charges)),
    )


def text_of(detail: Detail) -> str:
    return msgspec.json.encode(detail).decode()


@pytest.fixture
def books(sqlite_store: Store, tmp_path: Path) -> Books:
    """On SQLite."""
    return Books(sqlite_store, tmp_path)


class TestUsage:
    def test_json_is_a_list_of_objects_with_the_names_and_then_the_sums(self, books: Books) -> None:
        for tenant, model in (("beta", "m"), ("acme", "m"), ("acme", "n"), ("acme", "m")):
            books.settle(tenant, model=model, cost_nano=123_456)

        rows = books.commands.json("usage", "--by", "tenant,model", "--since", "7d")

        assert [list(row) for row in rows] == [["tenant", "model", *SUMS]] * 3
        assert [list(row.values()) for row in rows] == [
            ["acme", "m", 2, 2000, 100, 400, 0, 246_912],
            ["acme", "n", 1, 1000, 50, 200, 0, 123_456],
            ["beta", "m", 1, 1000, 50, 200, 0, 123_456],
        ]
        assert books.commands.run("usage", "--by", "tenant,model", "--format", "json").document == rows

    def test_only_what_is_asked_for_is_counted(self, books: Books) -> None:
        books.settle("acme")
        books.settle("beta", outcome="client_abort")

        by_tenant = books.commands.json("usage", "--tenant", "beta", "--model", "m")
        by_outcome = books.commands.json("usage", "--by", "outcome", "--outcome", "client_abort")
        before = books.commands.json("usage", "--since", "2020-01-01", "--until", "2021-01-01")

        assert [row["tenant"] for row in by_tenant] == ["beta"]
        assert [(row["outcome"], row["requests"]) for row in by_outcome] == [("client_abort", 1)]
        assert before == []

    def test_the_table_has_a_total_separators_and_exact_money_in_a_hundred_columns(self, books: Books) -> None:
        books.settle("acme", model="smollm2-135m-instruct", prompt_tokens=123_456_789, cost_nano=12_345_678_901_234)
        books.settle("acme-research", model="gpt-5-mini", cost_nano=500_000_000)

        table = books.commands.run("usage", "--by", "tenant,model", terminal=True).out

        plain = re.sub(r"\x1b\[[0-9;]*m", "", table)
        lines = [line.split() for line in plain.splitlines() if "─" not in line]
        assert max(map(len, plain.splitlines())) <= 100
        assert lines == [
            ["Tenant", "Model", "Requests", "Prompt", "Completion", "Cached", "USD"],
            ["acme", "smollm2-135m-instruct", "1", "123,456,789", "50", "200", "$12,345.678901234"],
            ["acme-research", "gpt-5-mini", "1", "1,000", "50", "200", "$0.500000000"],
            ["total", "2", "123,457,789", "100", "400", "$12,346.178901234"],
        ]

    def test_csv_goes_to_standard_output_or_a_file(self, books: Books, tmp_path: Path) -> None:
        books.settle()
        file = tmp_path / "usage.csv"

        printed = books.commands.run("usage", "--by", "tenant", "--format", "csv")
        written = books.commands.run("usage", "--by", "tenant", "--format", "csv", "--output", file)

        assert (written.code, written.stdout) == (0, b"")
        assert file.read_bytes() == printed.stdout
        assert list(csv.reader(io.StringIO(printed.out))) == [
            ["tenant", *SUMS],
            ["acme", "1", "1000", "50", "200", "0", "0"],
        ]

    def test_parquet_is_for_files_and_pipes_and_not_for_terminals(self, books: Books) -> None:
        books.settle()

        refused = books.commands.run("usage", "--format", "parquet", terminal=True)
        piped = books.commands.run("usage", "--format", "parquet")

        assert (refused.code, refused.stdout) == (1, b"")
        assert "--output" in refused.err
        table = pyarrow.parquet.read_table(io.BytesIO(piped.stdout))
        assert table.to_pylist()[0]["prompt_tokens"] == 1000

    @pytest.mark.parametrize(
        ("words", "code", "said"),
        [
            (("--by", "tenant,colour"), 1, "colour"),
            (("--since", "yesterday"), 2, "--since"),
            (("--since", "1d", "--until", "2d"), 1, "until"),
            (("--json", "--format", "csv"), 2, "--json"),
            (("--output", "/tmp/never-written"), 2, "--output"),
            (("--format", "csv", "--output", "/no/such/folder/file"), 1, "--output"),
        ],
    )
    def test_what_cannot_be_asked_is_refused(self, books: Books, words: tuple[str, ...], code: int, said: str) -> None:
        done = books.commands.run("usage", *words)

        assert (done.code, done.out) == (code, "")
        assert said in done.err


class TestVerify:
    def test_a_ledger_that_holds_is_clean(self, books: Books) -> None:
        books.settle()
        books.settle("beta")

        report = books.commands.json("ledger", "verify")

        assert (report["findings"], report["in_flight"]) == ([], [])
        assert report["checked"]["settles"] == 2
        assert re.search(r"^Findings +none$", books.commands.run("ledger", "verify").out, re.MULTILINE)

    def test_what_was_tampered_with_is_found_and_the_exit_code_says_so(self, books: Books) -> None:
        books.settle()
        with books.store.changing() as connection:
            connection.execute(update(usage_days).values(cost_nano=usage_days.c.cost_nano - 1))

        told = books.commands.run("ledger", "verify", "--json")
        shown = books.commands.run("ledger", "verify")

        assert (told.code, shown.code) == (1, 1)
        assert [finding["kind"] for finding in told.document["findings"]] == ["day"]
        assert "acme" in shown.out
        assert "1 findings" in shown.err


class TestRecover:
    def test_what_a_dead_server_left_open_is_settled_once(self, books: Books) -> None:
        admit = admission()
        progress = replace(
            admit, kind=Kind.PROGRESS, seq=1, completion_tokens=7, backend="b", source="counted", detail=""
        )
        books.write(Admitted(admit), Noted(progress))
        unsettled = books.commands.run("ledger", "verify", "--json")

        (settled,) = books.commands.json("ledger", "recover")

        assert [finding["kind"] for finding in unsettled.document["findings"]] == ["unrecovered"]
        assert (settled["request_id"], settled["outcome"]) == (admit.request_id, "crash")
        assert (settled["prompt_tokens"], settled["completion_tokens"]) == (1000, 7)
        assert books.commands.json("ledger", "recover") == []
        assert books.commands.json("ledger", "verify")["findings"] == []

    def test_what_a_living_server_works_on_is_left_to_it(self, books: Books, tmp_path: Path) -> None:
        admit = admission(run_id="alive")
        books.write(Admitted(admit))

        with books.store.hold("alive", tmp_path / "control.sock"):
            recovered = books.commands.json("ledger", "recover")
            report = books.commands.json("ledger", "verify")

        assert recovered == []
        assert report["findings"] == []
        assert [request["request_id"] for request in report["in_flight"]] == [admit.request_id]


class TestExport:
    def test_each_settled_request_is_a_row_and_every_event_on_request(self, books: Books, tmp_path: Path) -> None:
        request_ids = [books.settle(), books.settle("=beta")]

        rows = list(csv.DictReader(io.StringIO(books.commands.run("ledger", "export").out)))
        lines = books.commands.run("ledger", "export", "--format", "jsonl", "--all-events").out.splitlines()
        books.commands.run("ledger", "export", "--format", "parquet", "--output", tmp_path / "events.parquet")

        assert sorted(row["request_id"] for row in rows) == sorted(request_ids)
        assert {row["tenant"] for row in rows} == {"acme", "'=beta"}
        assert [json.loads(line)["kind"] for line in lines] == ["admit", "settle"] * 2
        assert pyarrow.parquet.read_table(tmp_path / "events.parquet").num_rows == 2

    @pytest.mark.parametrize("words", [("ledger", "export"), ("usage",)], ids=" ".join)
    def test_a_file_is_not_emptied_for_parquet_that_cannot_be_written(
        self, books: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
    ) -> None:
        file = tmp_path / "events.parquet"
        file.write_text("precious")
        monkeypatch.setitem(sys.modules, "pyarrow", None)

        done = books.commands.run(*words, "--format", "parquet", "--output", file)

        assert (done.code, one_line(done.err)) == (2, True)
        assert "laneway[parquet]" in done.err
        assert file.read_text() == "precious"

    def test_only_the_time_that_is_asked_for_is_exported(self, books: Books) -> None:
        books.settle()

        done = books.commands.run("ledger", "export", "--since", "2020-01-01", "--until", "2021-01-01")

        assert (done.code, len(done.out.splitlines())) == (0, 1)


class TestExplain:
    def test_every_step_of_a_request_is_told_with_its_cost(self, books: Books) -> None:
        commands = books.commands
        commands.json("prices", "set", "m", "--prompt", "0.15", "--completion", "0.6", "--cached", "0.075")
        commands.json("tenants", "create", "acme", "--weight", 2)
        (budget,) = commands.json("limits", "set", "--tenant", "acme", "--budget", 5, "--period", "prepaid")
        cost = 165_000
        request_id = books.settle(
            charges=(Charge(budget["id"], 0, cost),), price_version=1, cost_nano=cost, shown_id="order 17"
        )

        told = commands.json("explain", f"chatcmpl-{request_id}")
        shown = commands.run("explain", "order 17").out

        assert (told["request_id"], told["state"], told["cost_nano"]) == (request_id, "settled", cost)
        assert [step["kind"] for step in told["steps"]] == ["admit", "settle"]
        steps = re.findall(r"^ *(\d+)  (admit|attempt|first token|settle) ", shown, re.MULTILINE)
        assert steps == [("0", "admit"), ("20", "attempt"), ("150", "first token"), ("900", "settle")]
        for text in (
            "800 prompt × $0.15 + 200 cached × $0.075 + 50 completion × $0.6",
            "waited 20 ms, first token after 150 ms, total 900 ms",
            "1,000 prompt, 50 completion, 200 cached (reported)",
            "tenant:acme",
            "$0.000165",
        ):
            assert text in shown

    def test_a_request_that_still_runs_has_no_cost_yet(self, books: Books) -> None:
        admit = admission()
        books.write(Admitted(admit))

        told = books.commands.json("explain", admit.request_id)
        shown = books.commands.run("explain", admit.request_id).out

        assert (told["state"], told["outcome"]) == ("open", None)
        assert re.search(r"^State +open$", shown, re.MULTILINE)
        assert "not settled yet" in shown

    def test_an_id_chosen_by_a_client_has_no_power_over_the_terminal(self, books: Books) -> None:
        request_id = books.settle(shown_id="\x1b]0;mine\x07")

        assert r"\x1b]0;mine\x07" in books.commands.run("explain", request_id).out

    def test_an_unknown_request_is_a_failure(self, books: Books) -> None:
        done = books.commands.run("explain", "req_nothing", "--json")

        assert (done.code, done.out, one_line(done.err)) == (1, "", True)
        assert "req_nothing" in done.err


def test_from_a_key_to_its_proven_use_on_either_database(store: Store, tmp_path: Path) -> None:
    books = Books(store, tmp_path)
    commands = books.commands

    key = commands.json("keys", "create", "--tenant", "acme", "--name", "ci", "--budget", "5")
    price = commands.json("prices", "set", "*", "--prompt", 1, "--completion", 2)
    (budget,) = commands.json("limits", "show", "--key", key["id"])
    rule = Rule(id=budget["id"], scope=Scope("key", key["id"]), meter="usd", amount=5, period="month")
    window = window_at(rule, time.time() - 60)
    request_id = books.settle(
        charges=(Charge(budget["id"], window.starts_at, COST),),
        **{"key_id": key["id"], "price_version": price["version"], "cost_nano": COST},
    )

    used = commands.json("usage", "--by", "key")
    assert [(row["key"], row["requests"], row["cost_nano_usd"]) for row in used] == [(key["id"], 1, COST)]
    assert commands.json("ledger", "verify")["checked"] == {"settles": 1, "hours": 1, "days": 1, "windows": 1}
    assert commands.json("limits", "show")[0]["used"] == COST
    assert commands.json("explain", request_id)["key_name"] == "ci"
    assert request_id in commands.run("ledger", "export").out


def test_the_commands_are_what_the_console_script_runs(tmp_path: Path) -> None:
    def laneway(*words: str) -> subprocess.CompletedProcess[str]:
        environ = os.environ | {"LANEWAY_CONFIG": str(tmp_path / "laneway.toml")}
        return subprocess.run((*LANEWAY, *words), env=environ, capture_output=True, text=True, timeout=IN_TIME_S)

    made = laneway("init", "--dir", str(tmp_path), "--json")
    listed = laneway("keys", "list", "--json")
    unknown = laneway("explain", "req_nothing")

    assert [(run.returncode, run.stderr) for run in (made, listed)] == [(0, ""), (0, "")]
    assert ids(json.loads(listed.stdout)) == [json.loads(made.stdout)["id"]]
    assert (unknown.returncode, one_line(unknown.stderr)) == (1, True)
