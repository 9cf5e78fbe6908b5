"""What a request for vectors asks the engine for: its inputs as token ids, cut where that is allowed, all checked.

Everything in here may take long for a long text, so the backend calls it in a thread.
"""

from __future__ import annotations

from backends.errors import InvalidRequest, PromptTooLong
from backends.hf.encoder import Encoder
from backends.hf.messages import Submit, Welcome
from backends.hf.prompts import check_ids
from backends.hf.tokenizer import ModelTokenizer
from backends.types import EmbedRequest

PROBE = "a"


def prepare_inputs(
    request: EmbedRequest, tokenizer: ModelTokenizer, encoder: Encoder, welcome: Welcome
) -> tuple[Submit, ...]:
    """Check, encode, cut. Raises `InvalidRequest` or `PromptTooLong`."""
    _check_dimensions(request.dimensions, encoder)
    limit = welcome.max_model_len
    submits = []
    for at, prompt in enumerate(request.prompts):
        token_ids = _token_ids(prompt, request, tokenizer, limit)
        check_ids(token_ids, welcome.vocab_size, "input")
        if not token_ids:
            raise InvalidRequest(f"Input {at} is empty: it has no token to embed.", param="input")
        if len(token_ids) > limit:
            raise PromptTooLong(
                f"This model's maximum context length is {limit} tokens. However, input {at} has "
                f"{len(token_ids)} tokens. Please shorten it, or set truncate_prompt_tokens.",
                param="input",
            )
        submits.append(
            Submit(
                id=0,
                prompt_ids=token_ids,
                max_tokens=0,
                lane=request.lane,
                tenant=request.tenant,
                weight=request.weight,
                deadline_at=request.deadline_at,
            )
        )
    return tuple(submits)


def _token_ids(
    prompt: str | tuple[int, ...], request: EmbedRequest, tokenizer: ModelTokenizer, limit: int
) -> list[int]:
    """Ids of an input. Of a text that is cut, what the tokenizer adds around it stays: models pool by it."""
    is_text = isinstance(prompt, str)
    ids = tokenizer.encode(prompt, request.add_special_tokens) if isinstance(prompt, str) else list(prompt)
    if request.truncate_to is None:
        return ids
    room = request.truncate_to if request.truncate_to > 0 else limit
    if len(ids) <= room:
        return ids
    before, after = _frame(tokenizer) if is_text and request.add_special_tokens else (0, 0)
    kept = room - before - after
    if kept <= 0:
        return ids[-room:]
    end = len(ids) - after
    return [*ids[:before], *ids[end - kept :]]


def _frame(tokenizer: ModelTokenizer) -> tuple[int, int]:
    """How many tokens go before and after a text."""
    bare, framed = tokenizer.encode(PROBE, False), tokenizer.encode(PROBE, True)
    added = len(framed) - len(bare)
    before = next((at for at in range(added + 1) if framed[at : at + len(bare)] == bare), 0)
    return before, added - before


def _check_dimensions(dimensions: int | None, encoder: Encoder) -> None:
    if dimensions is None or encoder.can_shorten_to(dimensions):
        return
    raise InvalidRequest(
        f"Invalid 'dimensions': this model's vectors can have {_lengths(encoder)} numbers, but got {dimensions}.",
        param="dimensions",
        code="invalid_value",
    )


def _lengths(encoder: Encoder) -> str:
    if not encoder.is_matryoshka:
        return f"exactly {encoder.size}"
    return _listed({*encoder.dimensions, encoder.size}) if encoder.dimensions else f"at most {encoder.size}"


def _listed(lengths: set[int]) -> str:
    return ", ".join(map(str, sorted(lengths)))
