"""POST /v1/completions. No chat template is applied here, ever."""

from __future__ import annotations

import functools

from gateway.api.generating import Dialect
from gateway.openai.completions import decode_completion
from gateway.openai.wire import WireOptions


def completion_dialect(options: WireOptions) -> Dialect:
    """The dialect of completions, as strict as `options` say."""
    decode = functools.partial(decode_completion, options=options)
    return Dialect("completions", "/v1/completions", decode, "prompt", options)
