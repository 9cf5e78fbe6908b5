"""The built-in engine behind `laneway serve` against every case that it has what for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from gateway.conformance.cases import all_cases
from gateway.conformance.run import run
from gateway.conformance.survey import survey
from gateway.conformance.target import Target
from tests.integration.served import Serve
from tests.integration.tiny_served import MODEL, settings

# What the engine cannot do yet it refuses, and a scripted answer is not a model's. Nothing else may be passed over.
PASSED_OVER = (
    "it needs a scripted backend",
    "it needs a key",
    "the server refuses tools",
    "the server refuses JSON formats",
    "the server refuses logprobs",
    "the server refuses embeddings",
    "the server refuses /v1/embeddings",
    "the server refuses this: This model does not support",
)


def test_no_case_fails_and_only_what_the_engine_lacks_is_not_run(serve: Serve, tiny_llama_dir: Path) -> None:
    served = serve(settings(tiny_llama_dir))
    target = asyncio.run(survey(Target(address=served.address, model=MODEL)))

    results = asyncio.run(run(all_cases(target.window), target, concurrency=4))

    failed = [
        (result.id, result.asked, result.expected, result.got) for result in results if result.outcome == "failed"
    ]
    reasons = {str(result.reason) for result in results if result.outcome == "not run"}
    assert failed == []
    assert {reason for reason in reasons if not reason.startswith(PASSED_OVER)} == set()
    assert sum(result.outcome == "passed" for result in results) > 140
