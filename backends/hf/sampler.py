"""Logits → token ids. Rows are independent: each keeps its own parameters, and its noise depends on its seed alone."""

from __future__ import annotations

import hashlib
import struct

import torch
from torch import Tensor

from backends.hf.sequence import Sequence, TokenParams

# Top-p is decided among this many best tokens where they hold enough probability; else among all.
NUCLEUS_CANDIDATES = 256


@torch.inference_mode()  # in float32 `logits` is what the forward made, which may not be written to outside of it
def sample(logits: Tensor, sequences: list[Sequence]) -> list[int]:
    """One token id for each row. logits: [R, vocabulary], any float type, used up; row i belongs to `sequences[i]`."""
    logits = logits.float()
    for i, sequence in enumerate(sequences):
        if sequence.num_output_tokens < sequence.params.min_tokens and sequence.params.stop_token_ids:
            logits[i, list(sequence.params.stop_token_ids)] = -torch.inf
    tokens: list[int] = logits.argmax(dim=-1).tolist()
    for i, sequence in enumerate(sequences):
        if sequence.params.temperature > 0:
            tokens[i] = _draw(logits[i], sequence.params, noise(sequence.params, sequence.num_output_tokens))
    return tokens


def noise(params: TokenParams, position: int) -> float:
    """A uniform number in (0, 1) from (seed, choice, position) and nothing else.

    Stateless, so that preemption, restart and the mix of the batch cannot change a seeded answer; the choice index
    enters, so that n answers to one seed differ.
    """
    word = struct.pack("<QQQ", params.seed & (2**64 - 1), params.choice, position)
    number = int.from_bytes(hashlib.blake2b(word, digest_size=8).digest(), "little") >> 11
    return (number + 0.5) / 2.0**53


def _draw(logits: Tensor, params: TokenParams, uniform: float) -> int:
    """Temperature, then top-k, top-p, min-p, then the inverse of the cumulative distribution at `uniform`."""
    scaled = logits / max(params.temperature, 1e-5)
    if params.top_k == 0 and params.top_p >= 1:
        probabilities = scaled.softmax(dim=-1)
        if params.min_p > 0:
            probabilities = torch.where(probabilities >= params.min_p * probabilities.max(), probabilities, 0)
        return _invert(probabilities, uniform)
    values, ids = _candidates(scaled, params)
    probabilities = (values - scaled.logsumexp(dim=-1)).exp()
    if params.top_k > 0:
        probabilities = probabilities / probabilities.sum()
    # A token is in the nucleus while the mass before it is under top_p: the best one always is.
    before = probabilities.cumsum(dim=-1) - probabilities
    keep = before < params.top_p
    keep[0] = True
    keep &= probabilities >= params.min_p * probabilities[0]
    return int(ids[_invert(torch.where(keep, probabilities, 0), uniform)])


def _candidates(scaled: Tensor, params: TokenParams) -> tuple[Tensor, Tensor]:
    """The tokens that top-k and top-p can choose from, best first: values and ids."""
    size = scaled.shape[-1]
    if 0 < params.top_k < size:
        return scaled.topk(params.top_k)
    values, ids = scaled.topk(min(NUCLEUS_CANDIDATES, size))
    if len(ids) < size and float((values - scaled.logsumexp(dim=-1)).exp().sum()) < params.top_p:
        values, ids = scaled.sort(descending=True)
    return values, ids


def _invert(probabilities: Tensor, uniform: float) -> int:
    """The first index whose cumulative share passes `uniform`; never one of no probability."""
    total = probabilities.double().cumsum(dim=-1)
    index = int(torch.searchsorted(total, uniform * float(total[-1]), right=True))
    if index >= len(probabilities):
        index = int(probabilities.nonzero()[-1])
    return index
