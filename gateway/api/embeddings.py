"""POST /v1/embeddings."""

from __future__ import annotations

import functools

from gateway.api.generating import Dialect
from gateway.openai.embeddings import decode_embeddings
from gateway.openai.wire import WireOptions


def embeddings_dialect(options: WireOptions) -> Dialect:
    """The dialect of embeddings, as strict as `options` say."""
    decode = functools.partial(decode_embeddings, options=options)
    return Dialect("embeddings", "/v1/embeddings", decode, "input", options)
