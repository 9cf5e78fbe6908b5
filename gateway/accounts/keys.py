"""Virtual keys of an account: made and rotated. Their secret leaves here once, and only its digest is kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from gateway.accounts.change import Change
from gateway.accounts.checks import (
    check_bounds,
    check_default_lane,
    check_expiry,
    check_name,
    check_overlap,
    check_role,
    check_text,
)
from gateway.accounts.limits import Order
from gateway.accounts.lineage import first_ids
from gateway.accounts.rows import Columns, KeyRow, read_row, state_of
from gateway.errors import Conflict
from gateway.rules import Meter, Scope
from gateway.tables import keys
from gateway.virtual_keys import Role, digest, hint, mint, random_text

INHERITED = ("tenant", "project", "name", "role", "models", "lanes", "default_lane", "expires_at")  # by rotation


class NewKey(Struct, frozen=True, kw_only=True):
    """A key to be made, and its limits. None: every model, every lane; no expiry; no limit.

    `rpm` and `tpm` are a minute's, `concurrency` is of requests at once, `budget_nano` is in nano-dollars.
    """

    tenant: str
    project: str = "default"
    name: str = ""
    role: Role = "user"
    models: Sequence[str] | None = None
    lanes: Sequence[str] | None = None
    default_lane: str | None = None
    expires_at: float | None = None
    rpm: int | None = None
    tpm: int | None = None
    concurrency: int | None = None
    budget_nano: int | None = None
    budget_period: str = "month"

    def columns(self, now: float) -> dict[str, Any]:
        """What is kept of it. Raises `InvalidBody`."""
        check_name(self.tenant, "tenant")
        check_name(self.project, "project")
        check_text(self.name, "name")
        check_role(self.role)
        check_expiry(self.expires_at, now)
        check_default_lane(self.default_lane, self.lanes)
        return check_bounds(self.models, self.lanes) | {
            "tenant": self.tenant,
            "project": self.project,
            "name": self.name,
            "role": self.role,
            "default_lane": self.default_lane,
            "expires_at": None if self.expires_at is None else math.ceil(self.expires_at),
        }

    def limits(self, scope: Scope) -> Iterator[Order]:
        """The limits that come with it."""
        rates: dict[Meter, int | None] = {"rpm": self.rpm, "tpm": self.tpm, "concurrency": self.concurrency}
        for meter, amount in rates.items():
            if amount is not None:
                yield Order(scope=scope, meter=meter, amount=amount, param=meter)
        if self.budget_nano is not None:
            yield Order(
                scope=scope, meter="usd", amount=self.budget_nano, period=self.budget_period, param="budget_nano"
            )


class MadeKey(Struct, frozen=True, kw_only=True):
    """A key just made: the only time that its secret is seen."""

    row: KeyRow
    secret: str

    def __repr__(self) -> str:
        return f"MadeKey({self.row!r})"


def issue(change: Change, pepper: bytes, values: Mapping[str, Any]) -> MadeKey:
    """A new key with these columns."""
    secret, key_id = mint(), f"key_{random_text(20)}"
    change.insert(keys, id=key_id, digest=digest(secret.encode(), pepper), hint=hint(secret), **values)
    row = key_row(change.key(key_id), first_ids(change.connection), change.now)
    return MadeKey(row=row, secret=secret)


def rotate(change: Change, pepper: bytes, key_id: str, overlap_s: float) -> MadeKey:
    """A key in the place of `key_id`, which goes on for the overlap, and never for longer than it would have.

    Raises `InvalidBody`, `NotFound`, and `Conflict` for a key that has ended, or was rotated before.
    """
    check_overlap(overlap_s)
    old = change.key(key_id)
    state = state_of(old, change.now)
    if state != "live":
        raise Conflict(f"The key '{key_id}' is {state}; make a new one.")
    successor = change.first(keys, keys.c.replaces == key_id)
    if successor is not None:  # two successors would be two keys for one
        raise Conflict(f"The key '{key_id}' was rotated before, into '{successor['id']}'; rotate that one.")
    made = issue(change, pepper, {name: old[name] for name in INHERITED} | {"replaces": key_id})
    ends_at = change.now + int(overlap_s)
    if old["expires_at"] is not None:
        ends_at = min(ends_at, old["expires_at"])
    change.update(keys, keys.c.id == key_id, expires_at=ends_at)
    change.note("key.rotate", key_id, into=made.row.id, hint=made.row.hint, ends_at=ends_at)
    return made


def key_row(row: Columns, first: Mapping[str, str], now: float) -> KeyRow:
    """As operators see it; `first` has the first id of the line of each key that replaces another."""
    return read_row(KeyRow, row, scope_id=first.get(row["id"], row["id"]), state=state_of(row, now))
