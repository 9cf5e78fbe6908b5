"""What a virtual key is: its text with a checksum, the digest that is stored of it, and what it permits.

The text is `lw-`, 32 random characters of base 62 and 6 that are their CRC-32, so that garbage is told without looking
anything up, and a scanner for leaked secrets can be sure.
"""

from __future__ import annotations

import binascii
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Literal, TypeAlias

from msgspec import Struct

Role: TypeAlias = Literal["user", "viewer", "manager", "admin"]

LANES = ("interactive", "standard", "batch")
DEFAULT_LANE = "standard"

PREFIX = "lw-"
ALPHABET = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
RANDOM_CHARS = 32
CHECKSUM_CHARS = 6  # 62**6 > 2**32
LONGEST_MODEL = 200

_DIGITS = ALPHABET.encode()
_FORM = re.compile(rb"lw-([0-9A-Za-z]{32})([0-9A-Za-z]{6})")


class VirtualKey(Struct, frozen=True, kw_only=True):
    """What a caller may do. `id` is safe to log; the secret is not kept.

    `models` are names, or beginnings of names that end in `*`; None allows every model. `lanes` are those it may ask
    for. `role` is what it may do in the admin API: nothing (user), read all of it (viewer), read and change its own
    tenant (manager), everything (admin). `expires_at` is in Unix seconds.
    """

    id: str
    name: str = ""
    tenant: str = "default"
    project: str = "default"
    weight: float = 1.0
    lanes: tuple[str, ...] = LANES
    default_lane: str = DEFAULT_LANE
    models: tuple[str, ...] | None = None
    role: Role = "user"
    expires_at: float | None = None

    def may_use(self, model: str) -> bool:
        """Whether requests for this model are allowed."""
        return self.models is None or any(_covers(pattern, model) for pattern in self.models)


ANONYMOUS = VirtualKey(id="anonymous")


def mint() -> str:
    """A new secret."""
    text = random_text(RANDOM_CHARS)
    return f"{PREFIX}{text}{checksum(text.encode()).decode()}"


def random_text(num_chars: int) -> str:
    """Of base 62, such that nobody can guess it."""
    return "".join(secrets.choice(ALPHABET) for _ in range(num_chars))


def checksum(text: bytes) -> bytes:
    """CRC-32 of `text` in base 62, highest digit first."""
    number = binascii.crc32(text)
    digits = bytearray(CHECKSUM_CHARS)
    for place in range(CHECKSUM_CHARS - 1, -1, -1):
        number, digit = divmod(number, 62)
        digits[place] = _DIGITS[digit]
    return bytes(digits)


def is_well_formed(secret: bytes) -> bool:
    """Whether this can be a virtual key at all."""
    form = _FORM.fullmatch(secret)
    return form is not None and checksum(form[1]) == form[2]


def digest(secret: bytes, pepper: bytes) -> bytes:
    """What is stored of a secret: HMAC-SHA256, so that a stolen store without the pepper cannot be searched."""
    return hmac.digest(pepper, secret, "sha256")


def hint(secret: str) -> str:
    """Enough of a secret for its owner to recognise it; 24 of its characters stay unseen."""
    return f"{secret[: len(PREFIX) + 4]}…{secret[-4:]}"


def is_model_pattern(text: str) -> bool:
    """Whether this can be among a key's models: a name, or the beginning of names and a `*`."""
    return 0 < len(text) <= LONGEST_MODEL and text.isprintable() and "*" not in text[:-1]


def common_models(some: Sequence[str] | None, others: Sequence[str] | None) -> tuple[str, ...] | None:
    """The models that both lists allow, as a list again."""
    if some is None or others is None:
        both = others if some is None else some
        return None if both is None else tuple(both)
    narrow = [one for one in some if any(_covers(other, one) for other in others)]
    narrow += [other for other in others if any(_covers(one, other) for one in some)]
    return tuple(dict.fromkeys(narrow))


def _covers(pattern: str, name: str) -> bool:
    """Whether `pattern` allows the model, or all that the pattern `name` allows."""
    return pattern == name or (pattern.endswith("*") and name.startswith(pattern[:-1]))
