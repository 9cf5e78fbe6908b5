"""An encoder of transformers as an `Embedder`: one padded forward, the states pooled as the model's files say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from backends.hf.encoder import Encoder


class EncoderRunner:
    """Computes on `device`, where the model is. Pools in float32, whatever the model computes in."""

    def __init__(self, model: Any, encoder: Encoder, device: torch.device) -> None:
        self._model = model
        self._encoder = encoder
        self._device = device
        self._padding = int(getattr(model.config, "pad_token_id", None) or 0)

    @torch.inference_mode()
    def vectors(self, inputs: Sequence[Sequence[int]]) -> list[bytes]:
        """See `Embedder`."""
        longest = max(map(len, inputs))
        rows = [[*token_ids, *[self._padding] * (longest - len(token_ids))] for token_ids in inputs]
        lengths = torch.tensor([len(token_ids) for token_ids in inputs])
        mask = (torch.arange(longest) < lengths[:, None]).long().to(self._device)
        ids = torch.tensor(rows, device=self._device)
        states: Tensor = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
        pooled = self._pooled(states.float(), mask)
        found = normalize(pooled) if self._encoder.is_normalized else pooled
        return [row.astype("<f4").tobytes() for row in found.cpu().numpy()]

    def _pooled(self, states: Tensor, mask: Tensor) -> Tensor:
        if self._encoder.pooling == "cls":
            return states[:, 0]
        weights = mask.unsqueeze(-1).float()
        return (states * weights).sum(1) / weights.sum(1)
