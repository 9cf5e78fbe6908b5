"""Who is calling: the keys of the config and those of the store, and what each may do now."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Callable, Collection, Iterator
from functools import reduce
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from backends.errors import ConfigError
from gateway.accounts.checks import NAME_PATTERN
from gateway.accounts.rows import ProjectRow, TenantRow
from gateway.directory import Directory
from gateway.errors import StoreUnavailable
from gateway.snapshot import KeyEntry, Snapshot
from gateway.virtual_keys import (
    ANONYMOUS,
    DEFAULT_LANE,
    LANES,
    Role,
    VirtualKey,
    common_models,
    digest,
    is_model_pattern,
    is_well_formed,
)

__all__ = ("ANONYMOUS", "DEFAULT_LANE", "LANES", "AuthOptions", "KeyRing", "Role", "StaticKey", "VirtualKey")

STALE_S = 60.0  # what the store said so long ago admits nobody any more


Name = Annotated[str, Meta(pattern=NAME_PATTERN)]


class StaticKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[auth.key]]`: a key written in the config. `weight` is the tenant's share among tenants.

    `models` are those it may use, as names or as beginnings of names that end in `*`; without it, all. `role` is what
    it may do in the admin API. `name` is what people call it.
    """

    key: Annotated[str, Meta(min_length=8)]
    name: str = ""
    tenant: Name = "default"
    project: Name = "default"
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    lanes: tuple[str, ...] = LANES
    default_lane: str = DEFAULT_LANE
    models: tuple[str, ...] | None = None
    role: Role = "user"


class AuthOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[auth]`: `keys` is the short form, tenant `default` with every lane."""

    keys: tuple[Annotated[str, Meta(min_length=8)], ...] = ()
    key: tuple[StaticKey, ...] = ()


class KeyRing:
    """The known keys, by the digest of their secret. None ever known means an open server: everyone is `ANONYMOUS`.

    What a key may do is what it, its project and its tenant all allow. One thread asks.
    """

    def __init__(
        self,
        options: AuthOptions,
        lanes: Collection[str] = LANES,
        directory: Directory | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises `ConfigError` for a key given twice, or one whose lanes or models cannot be."""
        self._lanes = tuple(lanes)
        self._directory = directory
        self._clock = clock
        self._static = _static_ring(options, lanes, self._pepper)
        self._has_ever_had_static = bool(self._static)
        self._state = Snapshot()
        self._permitted: dict[bytes, VirtualKey | None] = {}  # by digest, what each key may do in `_state`

    def rebuild(self, options: AuthOptions) -> None:
        """Take other keys of the config from now on. Raises `ConfigError` and changes nothing."""
        self._static = _static_ring(options, self._lanes, self._pepper)
        self._has_ever_had_static = self._has_ever_had_static or bool(self._static)
        self._permitted.clear()

    @property
    def _pepper(self) -> bytes:
        return b"" if self._directory is None else self._directory.pepper

    @property
    def is_open(self) -> bool:
        """Whether no key ever was, in the config or in the store, so that any Authorization is accepted.

        Raises `StoreUnavailable` when the first key may have been made since the store was last seen.
        """
        directory = self._directory
        if self._has_ever_had_static or directory is None:
            return not self._has_ever_had_static
        if not directory.has_ever_had_key:
            directory.freshen()
            if directory.age_s > STALE_S:
                raise _unavailable()
        return not directory.has_ever_had_key

    def find(self, secret: bytes) -> VirtualKey | None:
        """The key with this secret and what it may do now; None when it is unknown, revoked, expired or ended.

        Only digests are looked up and compared, so time tells nothing about a secret. Raises `StoreUnavailable` when
        the store is away and may know the key, or has been away for so long that it may know better. Keys of the
        config do not depend on it.
        """
        if self._static:
            plain = _digest(secret)
            known, key = self._static.get(plain, (b"", ANONYMOUS))
            if hmac.compare_digest(known, plain):
                return self._find_static(plain, key)
        if self._directory is None or not is_well_formed(secret):
            return None
        return self._find_issued(self._directory, digest(secret, self._directory.pepper))

    def by_id(self, key_id: str) -> VirtualKey | None:
        """The key with this id and what it may do now; None as `find`."""
        for plain, key in self._static.values():
            if key.id == key_id:
                return self._find_static(plain, key)
        if self._directory is None:
            return None
        self._directory.freshen()
        entry = self._directory.state.keys.get(key_id)
        return None if entry is None or _is_over(entry, self._clock()) else self._permit(entry.digest, entry)

    def _find_static(self, plain: bytes, key: VirtualKey) -> VirtualKey | None:
        if self._directory is not None:
            self._directory.freshen()
        return self._permit(plain, key)

    def _find_issued(self, directory: Directory, keyed: bytes) -> VirtualKey | None:
        directory.freshen()
        entry = directory.find(keyed)
        if entry is None and directory.is_away:
            raise _unavailable()
        if entry is None or not hmac.compare_digest(entry.digest, keyed) or _is_over(entry, self._clock()):
            return None
        if directory.age_s > STALE_S:
            raise _unavailable()
        return self._permit(keyed, entry)

    def _permit(self, known: bytes, key: VirtualKey | KeyEntry) -> VirtualKey | None:
        """What the key with this digest may do in the present state of the store; worked out once a state."""
        state = self._state if self._directory is None else self._directory.state
        if state is not self._state:
            self._state, self._permitted = state, {}
        if known not in self._permitted:
            whole = key if isinstance(key, VirtualKey) else _issued(key, self._lanes, state)
            self._permitted[known] = _narrow(whole, state)
        return self._permitted[known]


def _issued(entry: KeyEntry, lanes: tuple[str, ...], state: Snapshot) -> VirtualKey:
    """A key of the store as it was made, before its tenant and project narrow it."""
    return VirtualKey(
        id=entry.id,
        name=entry.name,
        tenant=entry.tenant,
        project=entry.project,
        weight=state.tenants[entry.tenant].weight,
        lanes=lanes if entry.lanes is None else tuple(lane for lane in entry.lanes if lane in lanes),
        default_lane=entry.default_lane or DEFAULT_LANE,
        models=entry.models,
        role=entry.role,
        expires_at=entry.expires_at,
    )


def _narrow(key: VirtualKey, state: Snapshot) -> VirtualKey | None:
    """What is left of a key when its tenant and its project, where the store has them, bound it; None: they ended."""
    found = (state.tenants.get(key.tenant), state.projects.get(f"{key.tenant}/{key.project}"))
    bounds: list[TenantRow | ProjectRow] = [row for row in found if row is not None]
    if any(row.ended_at is not None for row in bounds):
        return None
    lanes = tuple(lane for lane in key.lanes if all(row.lanes is None or lane in row.lanes for row in bounds))
    models = reduce(common_models, (row.models for row in bounds), key.models)
    # Without a lane there is nowhere to go: such a key may use no model, so that it is refused early and in words.
    return replace(key, lanes=lanes, default_lane=_default_lane(key, lanes), models=models if lanes else ())


def _default_lane(key: VirtualKey, lanes: tuple[str, ...]) -> str:
    """The key's own, else `standard`, else the most urgent of those it may use."""
    wishes = (key.default_lane, DEFAULT_LANE, *LANES)
    return next((lane for lane in wishes if lane in lanes), key.default_lane)


def _is_over(entry: KeyEntry, now: float) -> bool:
    return entry.revoked_at is not None or (entry.expires_at is not None and entry.expires_at <= now)


def _unavailable() -> StoreUnavailable:
    return StoreUnavailable("The key cannot be checked now, since the store is away; try again.", retry_after_s=1.0)


def _static_ring(options: AuthOptions, lanes: Collection[str], pepper: bytes) -> dict[bytes, tuple[bytes, VirtualKey]]:
    ring: dict[bytes, tuple[bytes, VirtualKey]] = {}
    for place, static in _static_keys(options):
        _check_lanes(place, static, lanes)
        _check_models(place, static)
        plain = _digest(static.key.encode())
        if plain in ring:
            raise ConfigError(f"{place}: the same key is given twice; each key stands for one tenant")
        ring[plain] = (plain, _virtual(static, pepper))
    return ring


def _static_keys(options: AuthOptions) -> Iterator[tuple[str, StaticKey]]:
    for at, secret in enumerate(options.keys):
        yield f"auth.keys[{at}]", StaticKey(key=secret)
    for at, static in enumerate(options.key):
        yield f"auth.key[{at}]", static


def _check_lanes(place: str, static: StaticKey, lanes: Collection[str]) -> None:
    for lane in static.lanes:
        if lane not in lanes:
            raise ConfigError(f'{place}.lanes: "{lane[:60]}" is not a lane; allowed: {", ".join(lanes)}')
    if static.default_lane not in static.lanes:
        allowed = ", ".join(static.lanes) or "none: give it at least one"
        raise ConfigError(
            f'{place}.default_lane: "{static.default_lane[:60]}" is not among its lanes; allowed: {allowed}'
        )


def _check_models(place: str, static: StaticKey) -> None:
    for model in static.models or ():
        if not is_model_pattern(model):
            raise ConfigError(f'{place}.models: "{model[:60]}" does not fit; allowed: names, or beginnings and a *')


def _virtual(static: StaticKey, pepper: bytes) -> VirtualKey:
    """Its id is seen by many, so it says nothing about the secret to those who do not know the pepper."""
    return VirtualKey(
        id=f"key_{digest(static.key.encode(), pepper).hex()[:12]}",
        name=static.name,
        tenant=static.tenant,
        project=static.project,
        weight=static.weight,
        lanes=static.lanes,
        default_lane=static.default_lane,
        models=static.models,
        role=static.role,
    )


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
