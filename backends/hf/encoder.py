"""An embedding model, judged from its files: how the states of its tokens become one vector. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from backends.errors import ConfigError

Pooling: TypeAlias = Literal["mean", "cls"]

# Families that read a text in both directions. Bare models of them make vectors also where nothing says how.
ENCODER_TYPES = frozenset(
    {
        *("albert", "bert", "camembert", "deberta", "deberta-v2", "distilbert", "electra", "ernie", "eurobert"),
        *("modernbert", "mpnet", "nomic_bert", "roberta", "xlm-roberta"),
    }
)
POSITIONS_AFTER_PADDING = frozenset({"camembert", "mpnet", "roberta", "xlm-roberta"})  # they number from pad + 1 on
MODULES = ("Transformer", "Pooling", "Normalize")
WORDS: Mapping[str, Pooling] = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


class Encoder(Struct, frozen=True, kw_only=True):
    """How a model makes vectors of `size` numbers.

    `max_tokens` is the most it was trained to read, where that is less than its positions. `is_matryoshka` when the
    beginnings of its vectors mean something alone: those of the lengths in `dimensions`, or of any where it is empty.
    """

    pooling: Pooling
    is_normalized: bool
    size: int
    max_tokens: int | None = None
    is_matryoshka: bool = False
    dimensions: tuple[int, ...] = ()

    @classmethod
    def read(cls, folder: Path, config: Mapping[str, Any]) -> Encoder | None:
        """None for a model that makes no vectors. Raises `ConfigError` for one whose vectors are made in another way.

        A folder of sentence-transformers says how; a bare encoder is read by the mean of its states, at length 1.
        """
        modules = folder / "modules.json"
        if not modules.is_file() and not _is_bare_encoder(config):
            return None
        steps = _steps(modules) if modules.is_file() else {"Pooling": "", "Normalize": ""}
        lengths = _object(folder / "sentence_bert_config.json").get("max_seq_length"), _positions(config)
        dimensions = config.get("matryoshka_dimensions") or ()
        return cls(
            pooling=_pooling(folder / steps["Pooling"] / "config.json") if steps["Pooling"] else "mean",
            is_normalized="Normalize" in steps,
            size=_size(folder, config),
            max_tokens=min((length for length in lengths if isinstance(length, int)), default=None),
            is_matryoshka=bool(config.get("is_matryoshka") or dimensions),
            dimensions=tuple(dimensions),
        )

    def can_shorten_to(self, dimensions: int) -> bool:
        """Whether vectors of so many numbers are to be had."""
        if dimensions == self.size:
            return True
        return self.is_matryoshka and dimensions < self.size and (not self.dimensions or dimensions in self.dimensions)


def _is_bare_encoder(config: Mapping[str, Any]) -> bool:
    named = config.get("architectures") or []
    return config.get("model_type") in ENCODER_TYPES and any(str(name).endswith("Model") for name in named)


def _positions(config: Mapping[str, Any]) -> int | None:
    positions, padding = config.get("max_position_embeddings"), config.get("pad_token_id")
    if config.get("model_type") not in POSITIONS_AFTER_PADDING or not isinstance(positions, int):
        return None
    return positions - (1 if padding is None else padding) - 1


def _size(folder: Path, config: Mapping[str, Any]) -> int:
    size = config.get("hidden_size", config.get("dim"))
    if not isinstance(size, int):
        raise ConfigError(f"model: {folder} does not say hidden_size in its config.json, which an embedding model has.")
    return size


def _steps(modules: Path) -> dict[str, str]:
    """The folder of each module by the name of its class. Raises `ConfigError` for a class that is not known here."""
    listed = _decode(modules, list[dict[str, Any]])
    steps = {str(each.get("type", "")).rpartition(".")[2]: str(each.get("path", "")) for each in listed}
    unknown = [name for name in steps if name not in MODULES]
    if unknown or "Pooling" not in steps:
        reason = f"{unknown[0][:40]!r} in its modules.json" if unknown else "no Pooling in its modules.json"
        raise ConfigError(f"model: {modules.parent} has {reason}; only Transformer, Pooling, Normalize are served.")
    return steps


def _pooling(file: Path) -> Pooling:
    """Raises `ConfigError` for any but one of mean and cls."""
    config = _object(file)
    asked = [str(config["pooling_mode"])] if "pooling_mode" in config else []
    asked += [WORDS.get(name, name) for name, is_on in config.items() if name.startswith("pooling_mode_") and is_on]
    if asked == ["mean"] or asked == ["cls"]:
        return "mean" if asked == ["mean"] else "cls"
    raise ConfigError(
        f"model: {file} asks for pooling by {', '.join(asked)[:80] or 'nothing'}; only mean and cls are served."
    )


def _object(file: Path) -> dict[str, Any]:
    return _decode(file, dict[str, Any]) if file.is_file() else {}


def _decode(file: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"model: {file} cannot be read: {error}") from error
