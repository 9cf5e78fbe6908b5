"""`[wire]`: how closely bodies are held to OpenAI's document, and how streams stay alive."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

UnknownFields: TypeAlias = Literal["ignore", "warn", "reject"]


class WireOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[wire]`: what becomes of bodies that OpenAI would refuse, and of silent streams.

    `unknown_fields` is about fields that nothing here knows: they are counted, also logged, or refused. `strict`
    refuses all that OpenAI refuses and most servers let pass, unknown fields among it. After `keep_alive_s` seconds
    of silence a stream gets a comment, so that no proxy gives it up; 0 sends none.
    """

    unknown_fields: UnknownFields = "ignore"
    strict: bool = False
    keep_alive_s: Annotated[float, Meta(ge=0, le=3600)] = 15.0

    @property
    def refuses_unknown(self) -> bool:
        """Whether an unknown field is an error."""
        return self.strict or self.unknown_fields == "reject"


LENIENT = WireOptions()
