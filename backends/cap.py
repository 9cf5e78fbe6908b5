"""The cap of an answer: the most tokens it may have beside its prompt."""

from __future__ import annotations

from backends.errors import InvalidRequest
from backends.types import GenerateRequest


def answer_cap(request: GenerateRequest, prompt_tokens: int, limit: int) -> int:
    """The most tokens of one answer in a context of `limit` tokens, of which its prompt takes `prompt_tokens`.

    Raises `InvalidRequest` where the client wants more than is left and `request.exact_cap` forbids to cut that.
    """
    wanted, room = request.sampling.max_tokens, limit - prompt_tokens
    if wanted is None:
        return room
    if wanted > room and request.exact_cap is not None:
        raise InvalidRequest(
            f"{request.exact_cap} is too large: {wanted}. This model's maximum context length is {limit} tokens, of "
            f"which the prompt takes {prompt_tokens}.",
            param=request.exact_cap,
        )
    return min(wanted, room)
