"""The front's own log: its access lines. What they may say is named field by field; no header and no body is."""

from __future__ import annotations

import logging

from backends.log import FIELDS

ROOT = "laneway"

access = logging.getLogger(f"{ROOT}.access")


def fields(**values: object) -> dict[str, dict[str, object]]:
    """`extra` of a logging call: fields of the line. None is left out."""
    return {FIELDS: {name: value for name, value in values.items() if value is not None}}
