"""POST /v1/embeddings."""

from __future__ import annotations

from gateway.api.generating import Dialect
from gateway.openai.embeddings import decode_embeddings

EMBEDDINGS = Dialect("embeddings", "/v1/embeddings", decode_embeddings, "input")
