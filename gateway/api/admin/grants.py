"""What a key may give to the keys it makes: never more than it has itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from gateway.errors import PermissionDenied
from gateway.openai import faults
from gateway.snapshot import Snapshot
from gateway.tenants import Role, VirtualKey
from gateway.virtual_keys import LANES, common_models

Names: TypeAlias = tuple[str, ...] | None  # None: all of them


def granted(
    caller: VirtualKey,
    state: Snapshot,
    place: tuple[str, str],
    models: Sequence[str] | None,
    lanes: Sequence[str] | None,
) -> tuple[Names, Names]:
    """Models and lanes of a key in `place` (tenant, project), where the caller asks for these; None asks for all.

    All there is may be more than the caller has, now or when its tenant is given more; so then the key is bound by all
    that binds the caller, save what binds everybody in `place` anyway. Raises `PermissionDenied` for a name beyond what
    the caller has.
    """
    inherited = _inherited(caller, state, place)
    own = inherited if caller.role == "admin" else _own(caller)
    return _within("models", models, own[0], inherited[0]), _within("lanes", lanes, own[1], inherited[1])


def check_lifetime(caller: VirtualKey, role: Role, expires_at: float | None) -> None:
    """Raises `PermissionDenied` for a key to the admin API that would live on after the one that makes it."""
    ends_at = caller.expires_at
    if role == "user" or ends_at is None or (expires_at is not None and expires_at <= ends_at):
        return
    raise PermissionDenied(
        f"Your key expires at {ends_at:.0f}, so a key with the role '{role}' has to expire by then: set expires_at.",
        param="expires_at",
        code="grant_too_wide",
    )


def _own(caller: VirtualKey) -> tuple[Names, Names]:
    """What the caller has, with all that binds it."""
    has_every_lane = set(LANES) <= set(caller.lanes)
    return caller.models, None if has_every_lane else caller.lanes


def _inherited(caller: VirtualKey, state: Snapshot, place: tuple[str, str]) -> tuple[Names, Names]:
    """What binds the caller's own key, and its project where that is not `place`.

    An admin decides about tenants and projects, so these do not bind it. What a key of the config has of itself is not
    known here: all that binds it counts.
    """
    entry = state.keys.get(caller.id)
    if entry is None:
        return _own(caller)
    project = state.projects.get(f"{caller.tenant}/{caller.project}")
    if caller.role == "admin" or project is None or (caller.tenant, caller.project) == place:
        return entry.models, entry.lanes
    return common_models(entry.models, project.models), common_models(entry.lanes, project.lanes)


def _within(param: str, asked: Sequence[str] | None, own: Names, inherited: Names) -> Names:
    if asked is None:
        return inherited
    for name in asked:
        if own is not None and not _covers(own, name):
            raise PermissionDenied(
                f"Your key may not use '{faults.cut(name)}', so it cannot give it to another; "
                f"it may: {', '.join(own) or 'none'}.",
                param=param,
                code="grant_too_wide",
            )
    return tuple(asked)


def _covers(own: tuple[str, ...], name: str) -> bool:
    return name in (common_models((name,), own) or ())
