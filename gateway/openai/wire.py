"""`[wire]`: how closely the body of a request is held to OpenAI's document."""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

UnknownFields: TypeAlias = Literal["ignore", "warn", "reject"]


class WireOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[wire]`: what becomes of bodies that OpenAI would refuse.

    `unknown_fields` is about fields that nothing here knows: they are counted, also logged, or refused. `strict`
    refuses all that OpenAI refuses and most servers let pass, unknown fields among it.
    """

    unknown_fields: UnknownFields = "ignore"
    strict: bool = False

    @property
    def refuses_unknown(self) -> bool:
        """Whether an unknown field is an error."""
        return self.strict or self.unknown_fields == "reject"


LENIENT = WireOptions()
