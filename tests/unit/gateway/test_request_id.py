"""Ids of requests: unique, in the order of time, and found again in what a client was shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.request_id import id_at, ledger_id, new_id

NOW = 1_790_000_000.123
MOMENTS = st.floats(min_value=0, max_value=4e9)


def test_an_id_is_32_hex_digits_that_begin_with_its_milliseconds() -> None:
    made = new_id(NOW)

    assert len(made) == 32
    assert int(made[:12], 16) == 1_790_000_000_123
    assert set(made) <= set("0123456789abcdef")


def test_ids_of_one_moment_differ() -> None:
    assert len({new_id(NOW) for _ in range(1000)}) == 1000


@given(MOMENTS, MOMENTS)
def test_the_ids_of_a_range_of_time_are_a_range_of_ids(made_at: float, asked_at: float) -> None:
    is_later = int(made_at * 1000) >= int(asked_at * 1000)

    assert (new_id(made_at) >= id_at(asked_at)) == is_later


def test_a_moment_before_or_after_all_time_is_the_end_of_the_range() -> None:
    assert id_at(-1) == "0" * 32
    assert id_at(1e30) == "f" * 12 + "0" * 20


@pytest.mark.parametrize("prefix", ["", "req_", "chatcmpl-", "cmpl-"])
def test_an_id_is_found_in_what_a_client_was_shown(prefix: str) -> None:
    made = new_id()

    assert ledger_id(prefix + made) == made


def test_a_text_that_is_no_id_of_ours_stays_as_it_is() -> None:
    assert ledger_id("my-own-id") == "my-own-id"
