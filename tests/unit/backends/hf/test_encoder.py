from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backends.errors import ConfigError
from backends.hf.encoder import Encoder

BERT: dict[str, Any] = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 384}


def folder_of(path: Path, *modules: str, **pooling: object) -> Path:
    """A folder of sentence-transformers."""
    listed = [{"type": f"sentence_transformers.models.{name}", "path": f"1_{name}"} for name in modules]
    (path / "modules.json").write_text(json.dumps(listed))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return path


def test_the_built_in_model_is_read_as_its_files_say(minilm_dir: Path) -> None:
    config = json.loads((minilm_dir / "config.json").read_text())

    assert Encoder.read(minilm_dir, config) == Encoder(pooling="mean", is_normalized=True, size=384, max_tokens=256)


def test_cls_pooling_without_normalisation_is_what_its_files_can_ask_for(tmp_path: Path) -> None:
    encoder = Encoder.read(folder_of(tmp_path, "Transformer", "Pooling", pooling_mode_cls_token=True), BERT)

    assert encoder == Encoder(pooling="cls", is_normalized=False, size=384)


def test_a_bare_encoder_makes_vectors_and_a_chat_model_none(tmp_path: Path) -> None:
    assert Encoder.read(tmp_path, BERT) == Encoder(pooling="mean", is_normalized=True, size=384)
    assert Encoder.read(tmp_path, {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}) is None


@pytest.mark.parametrize(
    ("modules", "pooling", "words"),
    [
        (("Pooling", "Dense"), {"pooling_mode_mean_tokens": True}, "'Dense'"),
        (("Pooling",), {"pooling_mode_lasttoken": True}, "pooling_mode_lasttoken"),
        (("Transformer",), {}, "no Pooling"),
    ],
)
def test_a_way_to_pool_that_is_not_served_is_refused(
    tmp_path: Path, modules: tuple[str, ...], pooling: dict[str, bool], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        Encoder.read(folder_of(tmp_path, *modules, **pooling), BERT)


def test_only_matryoshka_models_have_fewer_dimensions(tmp_path: Path) -> None:
    plain, any_length, listed = (
        Encoder.read(tmp_path, BERT | more)
        for more in ({}, {"is_matryoshka": True}, {"matryoshka_dimensions": [64, 128]})
    )

    assert plain is not None and any_length is not None and listed is not None
    assert [plain.can_shorten_to(size) for size in (384, 64)] == [True, False]
    assert [any_length.can_shorten_to(size) for size in (384, 65, 385)] == [True, True, False]
    assert [listed.can_shorten_to(size) for size in (384, 64, 65)] == [True, True, False]
