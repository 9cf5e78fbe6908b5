"""The built-in embedding model against a plain forward of transformers."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer

from backends.hf.embedder import EncoderRunner
from backends.hf.encoder import Encoder
from backends.hf.loader import load
from backends.hf.options import HFOptions

TEXTS = ["Bread.", "The capital of France is Paris.", "word " * 200]


def cosine(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(one.double(), other.double(), dim=0))


def test_vectors_are_those_of_a_plain_forward_alone_and_among_others(minilm_dir: Path) -> None:
    loaded = load(HFOptions(model=str(minilm_dir)))
    assert loaded.encoder is not None
    runner = EncoderRunner(loaded.model, loaded.encoder, loaded.device)
    plain: Any = AutoModel.from_pretrained(minilm_dir, dtype=torch.float32).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(minilm_dir)
    inputs = [tokenizer(text, truncation=True, max_length=256)["input_ids"] for text in TEXTS]

    together = [torch.tensor(struct.unpack("<384f", vector)) for vector in runner.vectors(inputs)]

    for ids, vector in zip(inputs, together, strict=True):
        with torch.inference_mode():
            state = plain(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0)
        alone = torch.tensor(struct.unpack("<384f", runner.vectors([ids])[0]))
        assert abs(float(vector.norm()) - 1) < 1e-5
        assert cosine(state, vector) > 1 - 1e-5
        assert cosine(alone, vector) > 1 - 1e-5


def test_cls_pooling_takes_the_state_of_the_first_token_as_it_is(minilm_dir: Path) -> None:
    loaded = load(HFOptions(model=str(minilm_dir)))
    first = Encoder(pooling="cls", is_normalized=False, size=384)
    inputs = [[101, 7592, 102], [101, 7592, 2088, 999, 102]]

    vectors = EncoderRunner(loaded.model, first, loaded.device).vectors(inputs)

    for ids, vector in zip(inputs, vectors, strict=True):
        with torch.inference_mode():
            state = loaded.model(input_ids=torch.tensor([ids])).last_hidden_state[0, 0].float()
        torch.testing.assert_close(torch.tensor(struct.unpack("<384f", vector)), state, atol=1e-4, rtol=1e-4)
