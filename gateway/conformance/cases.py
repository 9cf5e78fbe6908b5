"""All cases: the table of validation, and the public faults."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from gateway.conformance.case import Case
from gateway.conformance.faults import GROUPS, fault_cases
from gateway.conformance.validation import GROUP, validation_cases

GROUP_NAMES = (GROUP, *(group.name for group in GROUPS))
PLENTY = 1 << 17  # tokens, where the length of the context is not known: rows about it are not run then


def all_cases(window: int | None) -> list[Case]:
    """Every case, for a model whose context holds `window` tokens."""
    return [*validation_cases(window or PLENTY), *fault_cases()]


def chosen(cases: Sequence[Case], names: Collection[str]) -> list[Case]:
    """Those whose id, the number of their row (`V16`) or group is among `names`; all of them without names.

    Raises `LookupError` with the name that nothing has.
    """
    known = {name for case in cases for name in _names(case)}
    for name in names:
        if name not in known:
            raise LookupError(name)
    return [case for case in cases if not names or not _names(case).isdisjoint(names)]


def _names(case: Case) -> set[str]:
    return {case.id, case.id.partition(".")[0], case.group}
