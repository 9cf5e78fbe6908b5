"""Who is calling: tenants and the keys that stand for them."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Collection, Iterator
from typing import Annotated

from msgspec import Meta, Struct

from backends.errors import ConfigError

LANES = ("interactive", "standard", "batch")
DEFAULT_LANE = "standard"


class StaticKey(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[auth.key]]`: a key written in the config. `weight` is the tenant's share among tenants."""

    key: Annotated[str, Meta(min_length=8)]
    tenant: str = "default"
    weight: Annotated[float, Meta(gt=0, le=1000)] = 1.0
    lanes: tuple[str, ...] = LANES
    default_lane: str = DEFAULT_LANE


class AuthOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[auth]`: `keys` is the short form, tenant `default` with every lane."""

    keys: tuple[Annotated[str, Meta(min_length=8)], ...] = ()
    key: tuple[StaticKey, ...] = ()


class VirtualKey(Struct, frozen=True, kw_only=True):
    """What a caller may do. `id` is safe to log; the secret is not kept."""

    id: str
    tenant: str = "default"
    weight: float = 1.0
    lanes: tuple[str, ...] = LANES
    default_lane: str = DEFAULT_LANE


ANONYMOUS = VirtualKey(id="anonymous")


class KeyRing:
    """The known keys, by the digest of their secret. Empty means an open server: everyone is `ANONYMOUS`."""

    def __init__(self, options: AuthOptions, lanes: Collection[str] = LANES) -> None:
        """Raises `ConfigError` for a key given twice, or one whose lanes do not exist or lack its default lane."""
        self._keys: dict[bytes, tuple[bytes, VirtualKey]] = {}
        for place, static in _static_keys(options):
            _check_lanes(place, static, lanes)
            digest = _digest(static.key.encode())
            if digest in self._keys:
                raise ConfigError(f"{place}: the same key is given twice; each key stands for one tenant")
            self._keys[digest] = (digest, _virtual(static, digest))

    @property
    def is_open(self) -> bool:
        """Whether no key was ever configured, so that any Authorization is accepted."""
        return not self._keys

    def find(self, secret: bytes) -> VirtualKey | None:
        """The key with this secret. Only digests are looked up and compared, so time tells nothing about a secret."""
        digest = _digest(secret)
        known, key = self._keys.get(digest, (b"", ANONYMOUS))
        return key if hmac.compare_digest(known, digest) else None


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


def _virtual(static: StaticKey, digest: bytes) -> VirtualKey:
    return VirtualKey(
        id=f"key_{digest.hex()[:12]}",
        tenant=static.tenant,
        weight=static.weight,
        lanes=static.lanes,
        default_lane=static.default_lane,
    )


def _digest(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
