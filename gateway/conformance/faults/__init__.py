"""Public faults of OpenAI-compatible servers, as cases: a file for each theme, a numbered case for each fault."""

from __future__ import annotations

from gateway.conformance.case import Case
from gateway.conformance.faults.embeddings import embeddings
from gateway.conformance.faults.errors import errors
from gateway.conformance.faults.logprobs import logprobs
from gateway.conformance.faults.messages import messages
from gateway.conformance.faults.routes import routes
from gateway.conformance.faults.sampling import sampling
from gateway.conformance.faults.streaming import streaming
from gateway.conformance.faults.tools import tools

GROUPS = (streaming, errors, sampling, messages, tools, logprobs, embeddings, routes)


def fault_cases() -> list[Case]:
    """All of them, group by group."""
    return [case for group in GROUPS for case in group.cases]
