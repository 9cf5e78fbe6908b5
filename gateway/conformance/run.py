"""Runs cases against a target and says how each ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import httpx
from msgspec import Struct

from gateway.conformance.case import Case
from gateway.conformance.probe import Probe
from gateway.conformance.reply import Lacking, Mismatch, short
from gateway.conformance.target import Target

Outcome: TypeAlias = Literal["passed", "failed", "not run"]


class Result(Struct, frozen=True, kw_only=True):
    """How one case ended. `asked`, `expected` and `got` are those of a failure, `reason` says why one was not run."""

    id: str
    title: str
    group: str
    sources: tuple[str, ...]
    outcome: Outcome
    seconds: float = 0.0
    asked: str | None = None
    expected: str | None = None
    got: str | None = None
    reason: str | None = None


async def run(
    cases: Sequence[Case], target: Target, *, concurrency: int = 1, done: Callable[[Result], None] = lambda _: None
) -> list[Result]:
    """The results in the order of the cases, at most `concurrency` at a time; `done` is told of each as it ends."""
    places = asyncio.Semaphore(concurrency)

    async def in_turn(case: Case) -> Result:
        async with places:
            result = await run_case(case, target)
        done(result)
        return result

    return await asyncio.gather(*(in_turn(case) for case in cases))


async def run_case(case: Case, target: Target) -> Result:
    """One case, over connections of its own."""
    async with Probe(target) as probe:
        return await run_with(probe, case)


async def run_with(probe: Probe, case: Case) -> Result:
    """One case with this probe."""
    reasons = [probe.target.lacks[need] for need in case.needs if need in probe.target.lacks]
    if reasons:
        return _result(case, "not run", reason=reasons[0])
    started_at = time.monotonic()
    try:
        await case.check(probe)
    except Lacking as error:
        return _result(case, "not run", time.monotonic() - started_at, reason=str(error))
    except Mismatch as error:
        expected, got = error.right, error.got
    except httpx.HTTPError as error:
        expected, got = "the server answers", f"{type(error).__name__} {error}".strip()
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # a check reads on without looking
        expected, got = f"the answer has the documented shape; it does not: {type(error).__name__} {error}", None
    else:
        return _result(case, "passed", time.monotonic() - started_at)
    seconds = time.monotonic() - started_at
    got = got if got is not None else str(probe.reply or "nothing")
    return _result(case, "failed", seconds, asked=probe.asked, expected=expected, got=short(got))


def _result(case: Case, outcome: Outcome, seconds: float = 0.0, **more: str | None) -> Result:
    return Result(
        id=case.id,
        title=case.title,
        group=case.group,
        sources=case.sources,
        outcome=outcome,
        seconds=round(seconds, 3),
        **more,
    )
