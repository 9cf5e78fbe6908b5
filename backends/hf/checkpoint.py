"""A model folder, judged from its files alone: what it holds, how big it is, why it could not be served. No torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from backends.errors import ConfigError
from backends.hf.encoder import Encoder

JSONObject: TypeAlias = dict[str, Any]

FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # as safetensors spells those that loading casts
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MAX_HEADER_BYTES = 100_000_000  # safetensors' own bound
INDEX = "model.safetensors.index.json"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "tekken.json")
CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length")
# Architectures that generate text; AutoModelForCausalLM decides in the end, but only after a long load.
GENERATIVE = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


class Checkpoint(Struct, frozen=True, kw_only=True):
    """The facts of a model folder. `num_bytes` is the size of its weights by the dtype they are stored in."""

    folder: Path
    config: JSONObject
    shards: tuple[Path, ...]
    num_bytes: Mapping[str, int]

    @classmethod
    def read(cls, folder: Path) -> Checkpoint:
        """Raises `ConfigError` for a folder without a configuration or without whole safetensors files."""
        config = _config(folder)
        shards = _shards(folder)
        sizes: Counter[str] = Counter()
        for shard in shards:
            sizes.update(_tensor_bytes(shard))
        return cls(folder=folder, config=config, shards=shards, num_bytes=sizes)

    def bytes_as(self, dtype: str) -> int:
        """Bytes of the weights once loaded as `dtype`. Quantized weights keep their size."""
        factor = {stored: DTYPE_BYTES[dtype] / size for stored, size in FLOAT_BYTES.items()}
        return math.ceil(sum(size * factor.get(stored, 1.0) for stored, size in self.num_bytes.items()))

    @property
    def text_config(self) -> JSONObject:
        """The part of the configuration that speaks of the language model."""
        nested = self.config.get("text_config")
        return nested if isinstance(nested, dict) else self.config

    @property
    def encoder(self) -> Encoder | None:
        """How it makes vectors, None when it is no embedding model. Raises `ConfigError` for a way not known here."""
        return Encoder.read(self.folder, self.config)

    @property
    def max_model_len(self) -> int | None:
        """Tokens the model was made for, or None when it does not say (such as with ALiBi)."""
        if (encoder := self.encoder) is not None and encoder.max_tokens is not None:
            return encoder.max_tokens
        known = [self.text_config.get(field) for field in CONTEXT_FIELDS]
        lengths = [length for length in known if isinstance(length, int) and length > 0]
        return max(lengths[0], _stretched(self.text_config)) if lengths else None

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ends of an answer: the generation config's, or else the config's, and the tokenizer's."""
        generation = _read_json(self.folder / "generation_config.json")
        eos = generation.get("eos_token_id", self.text_config.get("eos_token_id", self.config.get("eos_token_id")))
        ids = eos if isinstance(eos, list) else [eos]
        return frozenset(token for token in [*ids, _tokenizer_eos(self.folder)] if isinstance(token, int))


def check_servable(checkpoint: Checkpoint, trust_remote_code: bool) -> None:
    """Raises `ConfigError` for a model that could neither chat nor make vectors: what is missing and what to do."""
    is_encoder = checkpoint.encoder is not None
    if not is_encoder:
        _check_architecture(checkpoint)
    _check_code(checkpoint, trust_remote_code)
    folder = checkpoint.folder
    if not any((folder / name).is_file() for name in TOKENIZERS):
        raise ConfigError(f"model: {folder} has no tokenizer (none of {', '.join(TOKENIZERS)}); copy them there.")
    if not is_encoder and not _has_chat_template(folder):
        raise ConfigError(
            f"model: {folder} has no chat template, so it is probably not a chat model. Choose its instruct version, or"
            f" add the template as {folder / 'chat_template.jinja'}."
        )


def _check_architecture(checkpoint: Checkpoint) -> None:
    named = checkpoint.config.get("architectures") or []
    generates = any(str(name).endswith(GENERATIVE) for name in named) or not named
    if checkpoint.config.get("is_encoder_decoder") or not generates:
        kind = ", ".join(map(str, named)) or "encoder-decoder"
        raise ConfigError(
            f"model: {checkpoint.folder} holds {kind}, not a causal language model; only those can be served."
        )


def _check_code(checkpoint: Checkpoint, trust_remote_code: bool) -> None:
    from transformers.models.auto.auto_mappings import CONFIG_MAPPING_NAMES  # a table; torch is not loaded

    model_type = checkpoint.config.get("model_type")
    if model_type in CONFIG_MAPPING_NAMES or (model_type is None and not checkpoint.config.get("auto_map")):
        return
    if not checkpoint.config.get("auto_map"):
        raise ConfigError(
            f"model: {checkpoint.folder} is of type {model_type!r}, which the installed transformers does not know."
        )
    if not trust_remote_code:
        raise ConfigError(
            f"model: {checkpoint.folder} is of type {model_type!r} and brings its own Python code. If you have read it"
            " and trust it, set trust_remote_code = true."
        )


def _has_chat_template(folder: Path) -> bool:
    files = ("chat_template.jinja", "chat_template.json")
    folders = ("additional_chat_templates", "chat_templates")
    return (
        any((folder / name).is_file() for name in files)
        or any(any((folder / name).glob("*.jinja")) for name in folders)
        or bool(_read_json(folder / "tokenizer_config.json").get("chat_template"))
    )


def _config(folder: Path) -> JSONObject:
    file = folder / "config.json"
    if file.is_file():
        return _read_json(file)
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(f"model: {folder} holds an adapter, not a model; merge it into its base model first.")
    if ggufs := sorted(folder.glob("*.gguf")):
        raise ConfigError(f"model: {folder} has no config.json but GGUF files; name one of them: {ggufs[0]}")
    raise ConfigError(f"model: {folder} has no config.json, so it is not a model folder.")


def _shards(folder: Path) -> tuple[Path, ...]:
    """The files that hold the weights, all there."""
    index = folder / INDEX
    if not index.is_file():
        single = folder / "model.safetensors"
        if not single.is_file():
            raise ConfigError(_why_no_weights(folder))
        return (single,)
    names = sorted({str(name) for name in _read_json(index).get("weight_map", {}).values()})
    missing = [name for name in names if not (folder / name).is_file()]
    if missing or not names:
        shown = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        raise ConfigError(
            f"model: {folder} lacks {len(missing)} of the {len(names)} weight files that {INDEX} lists: {shown}"
        )
    return tuple(folder / name for name in names)


def _why_no_weights(folder: Path) -> str:
    if any(any(folder.glob(pattern)) for pattern in PICKLES):
        return (
            f"model: {folder} has its weights as pickle files alone (.bin, .pt), which can run code when they are read,"
            " so they are refused. Convert them to safetensors first: load the model with transformers where you trust"
            " it, and save_pretrained it."
        )
    if any(folder.glob("*.safetensors")):
        return f"model: {folder} has safetensors files, but neither model.safetensors nor {INDEX}."
    return f"model: {folder} has no weights (no model.safetensors)."


def _tensor_bytes(shard: Path) -> Mapping[str, int]:
    """Bytes by dtype, from the header. Raises `ConfigError` for a file that is cut short or is something else."""
    size = shard.stat().st_size
    with shard.open("rb") as file:
        head = file.read(8)
        length = int.from_bytes(head, "little")
        if head == b"version ":
            raise ConfigError(f"model: {shard} is a Git LFS pointer, not the weights; run git lfs pull there.")
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise ConfigError(f"model: {shard} is not a safetensors file, or is cut short; fetch it again.")
        tensors = _decode(file.read(length), shard)
    sizes: Counter[str] = Counter()
    end = 0
    for name, tensor in tensors.items():
        if name != "__metadata__":
            begin, end_here = tensor["data_offsets"]
            sizes[tensor["dtype"]] += end_here - begin
            end = max(end, end_here)
    if size < 8 + length + end:
        raise ConfigError(f"model: {shard} is cut short: {size} bytes of {8 + length + end}; fetch it again.")
    return sizes


def _stretched(config: JSONObject) -> int:
    """Positions that YaRN adds; 0 without it."""
    rope = config.get("rope_parameters") or config.get("rope_scaling")
    if not isinstance(rope, dict) or rope.get("rope_type", rope.get("type")) != "yarn":
        return 0
    original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    return int(original * factor) if original and factor else 0


def _tokenizer_eos(folder: Path) -> int | None:
    token = _read_json(folder / "tokenizer_config.json").get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    if not text:
        return None
    added = _read_json(folder / "tokenizer.json").get("added_tokens", [])
    return next((entry["id"] for entry in added if entry.get("content") == text), None)


def _read_json(file: Path) -> JSONObject:
    """The object in `file`, empty when there is no file."""
    return _decode(file.read_bytes(), file) if file.is_file() else {}


def _decode(text: bytes, file: Path) -> JSONObject:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"model: {file} cannot be read: {error}") from error
