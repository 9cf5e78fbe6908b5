"""POST /v1/completions. No chat template is applied here, ever."""

from __future__ import annotations

from gateway.api.generating import Dialect
from gateway.openai.completions import decode_completion

COMPLETIONS = Dialect("completions", "/v1/completions", decode_completion, "prompt")
