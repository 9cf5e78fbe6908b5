"""What a case is: a question to a server, with the answer that is right, told as a check over a probe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct

from gateway.conformance.probe import Probe

Check: TypeAlias = Callable[[Probe], Awaitable[None]]


class Need(StrEnum):
    """What a server must have for a case to be meaningful; the value names it in reports."""

    SCRIPT = "a scripted backend"
    KEY = "keys"
    WINDOW = "a known context length"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    EMBEDDINGS = "/v1/embeddings"
    TOOLS = "tools"
    FORMATS = "JSON formats"
    LOGPROBS = "logprobs of chats"
    TEXT_LOGPROBS = "logprobs of completions"
    EXTENSIONS = "vLLM's fields"
    LOAD = "/load"


class Case(Struct, frozen=True, kw_only=True):
    """One case. `sources` are public reports of the fault, as `owner/repository#number`.

    `check` raises `Mismatch` when the answer is not right; whatever else it trips over in an answer is one too.
    """

    id: str
    title: str
    group: str
    check: Check
    sources: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()


class Group:
    """Collects the cases of one theme, in the order in which they are written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cases: list[Case] = []

    def case(self, case_id: str, title: str, *sources: str, needs: tuple[Need, ...] = ()) -> Callable[[Check], Check]:
        """Make the function below the check of a case."""

        def add(check: Check) -> Check:
            made = Case(id=case_id, title=title, group=self.name, check=check, sources=sources, needs=needs)
            self.cases.append(made)
            return check

        return add
