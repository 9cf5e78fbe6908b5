"""Some hundred made-up and damaged requests; `make fuzz` makes many thousands. A seed always makes the same ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.openapi import OPERATIONS
from tests.fuzz.described import Described
from tests.fuzz.raw import MUTATIONS, Raw
from tests.fuzz.target import KEY, target
from tests.integration.front.front_server import Front, eventually


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    with target(tmp_path) as front:
        yield front


def test_requests_made_from_the_document_are_answered_as_it_says(front: Front) -> None:
    described = Described(front, KEY, 2026)

    described.run(4)

    assert described.faults == []
    assert len(described.operations) == len(OPERATIONS)
    assert {200, 400, 401, 404} <= described.statuses.keys()


def test_damaged_requests_are_refused_in_the_envelope_and_leave_nothing_behind(
    front: Front, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    raw = Raw(front, KEY, 2026)

    raw.run(300)

    assert raw.faults == []
    assert raw.mutations.keys() == {mutation.__name__ for mutation in MUTATIONS}
    assert {200, 400, 405, 415, 431} <= raw.statuses.keys()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == []
    eventually(lambda: front.count("running") == 0, "every request has ended")
