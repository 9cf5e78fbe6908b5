"""The version of this software, wherever it is shown."""

from __future__ import annotations

import functools
from importlib.metadata import PackageNotFoundError, version


@functools.cache
def own_version() -> str:
    """The installed version."""
    try:
        return version("laneway")
    except PackageNotFoundError:  # run from a folder that was never installed
        return "0.0.0"
