"""One request is told from its first event to its last, whatever name it is asked by."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.events import Charge, Detail
from gateway.explain import Attempt, BudgetUse, Explanation, Step, explain
from gateway.history import detail_text
from gateway.recovery import recover
from gateway.rules import Price
from gateway.store import Store
from tests.ledger_records import (
    NOON,
    PRICE,
    add_budgets,
    add_price,
    admitted,
    failed,
    progressed,
    request_id,
    settled,
    write,
)

RESERVED = (Charge("lim_tokens", NOON, 600), Charge("lim_usd", NOON, 315_000))
CHARGED = (Charge("lim_tokens", NOON, 70), Charge("lim_usd", NOON, 39_000))


def told(store: Store, request: str = request_id(1), *, tenant: str | None = None) -> Explanation:
    found = explain(store, request, tenant=tenant, clock=lambda: NOON + 3600)
    assert found is not None
    return found


@pytest.fixture
def priced_store(sqlite_store: Store) -> Store:
    add_price(sqlite_store)
    add_budgets(sqlite_store, [("lim_tokens", "tokens"), ("lim_usd", "usd")])
    return sqlite_store


@pytest.fixture
def whole(priced_store: Store) -> Store:
    """A store with one request that had everything: a failed attempt, progress, budgets, cached tokens."""
    admit = admitted(detail=Detail(shown_id="mine", stream=True, charges=RESERVED, line="batch_1/7"))
    detail = detail_text(Detail(shown_id="mine", charges=CHARGED, attempts=2))
    write(
        priced_store,
        admit,
        failed(admit, error="BackendUnavailable"),
        progressed(admit, prompt_tokens=100, completion_tokens=20),
        settled(admit, *CHARGED, cached_tokens=80, detail=detail, after_s=2.5),
    )
    return priced_store


def test_all_facts_of_a_request_are_told(whole: Store) -> None:
    found = told(whole)

    assert (found.state, found.outcome, found.error, found.source) == ("settled", "ok", None, "reported")
    assert (found.tenant, found.project, found.key_id, found.key_name) == ("acme", "default", "key_1", None)
    assert (found.model, found.route, found.lane, found.stream) == ("m", "chat", "standard", True)
    assert (found.shown_id, found.line, found.run_id) == ("mine", "batch_1/7", "run-that-died")
    assert (found.admitted_at, found.settled_at) == (NOON, NOON + 2.5)
    assert (found.reserved_prompt_tokens, found.reserved_completion_tokens) == (100, 500)
    assert found.reserved_cost_nano == PRICE.cost(100, 500)
    assert (found.wait_ms, found.ttft_ms, found.total_ms) == (20, 300, 2500)
    assert (found.prompt_tokens, found.completion_tokens, found.cached_tokens) == (100, 50, 80)


def test_the_cost_is_told_as_it_was_computed(whole: Store) -> None:
    found = told(whole)

    assert (found.cost_nano, found.price_version) == (39_000, 1)
    assert found.cost_text == (
        "(20 prompt × $0.15 + 80 cached × $0.075 + 50 completion × $0.6) / 1 million tokens = $0.000039; price 1 of m"
    )


def test_budgets_are_told_with_what_was_reserved_and_what_was_charged(whole: Store) -> None:
    budget: dict[str, Any] = {"starts_at": NOON, "scope": "tenant:acme", "period": "day"}

    assert told(whole).budgets == (
        BudgetUse(rule_id="lim_tokens", meter="tokens", reserved=600, charged=70, **budget),
        BudgetUse(rule_id="lim_usd", meter="usd", reserved=315_000, charged=39_000, **budget),
    )


def test_attempts_are_told_the_last_one_from_the_settle(whole: Store) -> None:
    assert told(whole).attempts == (
        Attempt(number=1, backend="b1", outcome="backend_error", error="BackendUnavailable", wait_ms=10, total_ms=200),
        Attempt(number=2, backend="b", outcome="ok", wait_ms=20, total_ms=2480),
    )


def test_steps_are_told_in_the_order_of_time(whole: Store) -> None:
    assert told(whole).steps == (
        Step(
            at=NOON,
            after_ms=0,
            kind="admit",
            text="admitted to lane standard for m; reserved 100 prompt and 500 completion tokens, $0.000315",
        ),
        Step(at=NOON + 0.5, after_ms=500, kind="attempt", text="attempt 1 on b1 failed: BackendUnavailable"),
        Step(
            at=NOON + 1,
            after_ms=1000,
            kind="progress",
            text="running on b: so far 100 prompt and 20 completion tokens, reported",
        ),
        Step(
            at=NOON + 2.5,
            after_ms=2500,
            kind="settle",
            text="ok: 100 prompt (80 cached) and 50 completion tokens, reported, $0.000039",
        ),
    )


def test_a_cost_that_was_rounded_says_so(sqlite_store: Store) -> None:
    add_price(sqlite_store, Price(version=2, model="*", prompt_nano=1, completion_nano=1, cached_nano=1))
    admit = admitted(price_version=2)
    write(sqlite_store, admit, settled(admit, prompt_tokens=1, completion_tokens=0, cost_nano=1))

    assert told(sqlite_store).cost_text == (
        "(1 prompt × $0.000000001) / 1 million tokens = $0.000000001, rounded up to a nano-dollar; price 2 of *"
    )


def test_a_request_without_a_price_costs_nothing(sqlite_store: Store) -> None:
    admit = admitted(price_version=0)
    write(sqlite_store, admit, settled(admit))

    found = told(sqlite_store)

    assert (found.cost_nano, found.price_version, found.cost_text) == (0, 0, "no price: nothing is charged")
    assert found.steps[0].text.endswith("500 completion tokens")


def test_a_request_that_used_nothing_costs_nothing(priced_store: Store) -> None:
    admit = admitted(detail=Detail(charges=RESERVED))
    nothing: dict[str, Any] = {
        "outcome": "backend_error",
        "source": "none",
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "backend": "",
    }
    write(priced_store, admit, settled(admit, **nothing, detail=detail_text(Detail(error="BackendFailed"))))

    found = told(priced_store)

    assert (found.error, found.attempts, found.cost_text) == ("BackendFailed", (), "no tokens were used: $0")
    assert [budget.charged for budget in found.budgets] == [0, 0]
    assert found.steps[-1].text == "backend_error (BackendFailed): no tokens, $0"


def test_an_open_request_is_told_as_far_as_it_is(priced_store: Store) -> None:
    admit = admitted(detail=Detail(charges=RESERVED))
    write(priced_store, admit, failed(admit))
    assert told(priced_store).state == "open"
    assert [attempt.outcome for attempt in told(priced_store).attempts] == ["backend_error"]

    write(priced_store, progressed(admit, prompt_tokens=100, completion_tokens=20))
    found = told(priced_store)

    assert (found.state, found.outcome, found.settled_at, found.cost_text) == ("open", None, None, "not settled yet")
    assert (found.prompt_tokens, found.completion_tokens, found.source) == (100, 20, "reported")
    assert found.attempts[1:] == (Attempt(number=2, backend="b", outcome=None, wait_ms=20),)
    assert [budget.charged for budget in found.budgets] == [None, None]


def test_a_request_that_a_crash_ended_is_told_with_what_was_recovered(priced_store: Store) -> None:
    admit = admitted(detail=Detail(charges=RESERVED))
    write(priced_store, admit, progressed(admit, prompt_tokens=100, completion_tokens=20))
    recover(priced_store, clock=lambda: NOON + 60)

    found = told(priced_store)

    assert (found.outcome, found.source) == ("crash", "estimated")
    assert found.attempts == (Attempt(number=1, backend="b", outcome="crash", wait_ms=20),)
    assert found.steps[-1].text == "crash: 100 prompt and 20 completion tokens, estimated, $0.000027"


def test_a_budget_that_the_store_does_not_know_is_told_by_its_id(sqlite_store: Store) -> None:
    write(sqlite_store, admitted(detail=Detail(charges=RESERVED[:1])))

    assert told(sqlite_store).budgets == (
        BudgetUse(
            rule_id="lim_tokens", starts_at=NOON, scope=None, meter=None, period=None, reserved=600, charged=None
        ),
    )


def test_what_is_left_of_a_request_whose_admit_is_gone_is_told(priced_store: Store) -> None:
    admit = admitted()
    write(priced_store, settled(admit))

    found = told(priced_store)

    assert (found.admitted_at, found.reserved_prompt_tokens, found.cost_nano) == (None, 0, PRICE.cost(100, 50))


@pytest.mark.parametrize("prefix", ["", "req_", "chatcmpl-", "cmpl-"])
def test_any_id_that_the_client_was_shown_finds_the_request(sqlite_store: Store, prefix: str) -> None:
    write(sqlite_store, admitted(1), admitted(2))

    assert told(sqlite_store, prefix + request_id(2)).request_id == request_id(2)


def test_an_id_that_nobody_was_shown_finds_nothing(sqlite_store: Store) -> None:
    write(sqlite_store, admitted(1))

    assert explain(sqlite_store, request_id(2)) is None
    assert explain(sqlite_store, "") is None


@pytest.mark.parametrize("chosen", ["mine", "100%_of it", 'quote " and \\ and {brace}', "req_mine"])
def test_an_id_that_the_client_chose_finds_its_latest_request(store: Store, chosen: str) -> None:
    write(
        store,
        admitted(1, detail=Detail(shown_id=chosen)),
        admitted(2, at=NOON + 60, detail=Detail(shown_id=chosen)),
        admitted(3, at=NOON + 120, detail=Detail(shown_id=chosen.upper())),
        admitted(4, at=NOON + 180, detail=Detail(shown_id=chosen + "x")),
    )

    assert told(store, chosen).request_id == request_id(2, NOON + 60)


def test_an_id_that_the_client_chose_is_found_for_an_hour(sqlite_store: Store) -> None:
    write(sqlite_store, admitted(1, detail=Detail(shown_id="mine")))

    assert explain(sqlite_store, "mine", clock=lambda: NOON + 3600) is not None
    assert explain(sqlite_store, "mine", clock=lambda: NOON + 3601) is None


def test_an_id_that_the_client_chose_is_found_among_the_newest_requests_only(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.explain.MOST_ADMITS", 2)
    old, *newer = (admitted(number, at=NOON + number, detail=Detail(shown_id=f"mine{number}")) for number in range(3))
    write(store, old, *newer, *(settled(admit) for admit in newer))

    assert explain(store, "mine0", clock=lambda: NOON + 60) is None
    assert [told(store, f"mine{number}").request_id for number in (1, 2)] == [
        request_id(number, NOON + number) for number in (1, 2)
    ]


def test_a_tenant_sees_only_its_own_requests(sqlite_store: Store) -> None:
    write(
        sqlite_store,
        admitted(1, detail=Detail(shown_id="mine")),
        admitted(2, at=NOON + 60, tenant="other", detail=Detail(shown_id="mine")),
    )

    assert told(sqlite_store, "mine").tenant == "other"
    assert told(sqlite_store, "mine", tenant="acme").request_id == request_id(1)
    assert told(sqlite_store, tenant="acme").request_id == request_id(1)
    assert explain(sqlite_store, request_id(1), tenant="other") is None
