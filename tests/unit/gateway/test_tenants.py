"""Keys: who they stand for, and which are refused at the start."""

from __future__ import annotations

import pytest

from backends.errors import ConfigError
from gateway.tenants import AuthOptions, KeyRing, StaticKey

ALICE = StaticKey(key="sk-alice-secret", tenant="alice", weight=3, lanes=("batch",), default_lane="batch")


def test_a_static_key_is_found_by_its_secret_and_never_keeps_it() -> None:
    ring = KeyRing(AuthOptions(key=(ALICE,)))

    key = ring.find(b"sk-alice-secret")

    assert key is not None
    assert (key.tenant, key.weight, key.lanes, key.default_lane) == ("alice", 3, ("batch",), "batch")
    assert "secret" not in repr(vars(ring))


def test_the_short_form_is_the_default_tenant_with_every_lane() -> None:
    key = KeyRing(AuthOptions(keys=("sk-short-form",))).find(b"sk-short-form")

    assert key is not None
    assert (key.tenant, key.lanes, key.default_lane) == ("default", ("interactive", "standard", "batch"), "standard")


@pytest.mark.parametrize("secret", [b"", b"sk-alice-secreT", b"sk-alice-secret ", b"\xff\xfe"])
def test_an_unknown_secret_finds_nothing(secret: bytes) -> None:
    assert KeyRing(AuthOptions(key=(ALICE,))).find(secret) is None


def test_a_ring_without_keys_is_open() -> None:
    assert KeyRing(AuthOptions()).is_open
    assert not KeyRing(AuthOptions(keys=("sk-short-form",))).is_open


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (AuthOptions(keys=("sk-same-key", "sk-same-key")), "auth.keys[1]: the same key"),
        (AuthOptions(keys=("sk-alice-secret",), key=(ALICE,)), "auth.key[0]: the same key"),
        (AuthOptions(key=(StaticKey(key="sk-12345", lanes=("fast",), default_lane="fast"),)), '"fast" is not a lane'),
        (AuthOptions(key=(StaticKey(key="sk-12345", lanes=("batch",)),)), '"standard" is not among its lanes'),
        (AuthOptions(key=(StaticKey(key="sk-12345", lanes=()),)), "give it at least one"),
    ],
)
def test_a_key_that_cannot_work_stops_the_start_without_being_shown(options: AuthOptions, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KeyRing(options)

    assert words in str(caught.value)
    assert "sk-" not in str(caught.value)
