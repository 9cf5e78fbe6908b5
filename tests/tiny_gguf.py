"""A tiny Llama as a GGUF file, written as llama.cpp's converter would. For tests of the conversion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests import tiny_models

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def write(path: Path, seed: int = 0, architecture: str = "llama") -> Path:
    """The model that `tiny_models.build("llama", seed)` gives, in F32, with the tiny tokenizer."""
    model = tiny_models.build("llama", seed)
    writer = gguf.GGUFWriter(str(path), architecture)
    _write_config(writer, model.config)
    _write_tokenizer(writer)
    for name, tensor in model.state_dict().items():
        writer.add_tensor(_name(name), _permuted(name, tensor.numpy(), model.config))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_config(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _write_tokenizer(writer: gguf.GGUFWriter) -> None:
    tokenizer = tiny_models.tiny_tokenizer()
    model = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=lambda token: model["vocab"][token])
    special = set(tiny_models.SPECIAL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(tiny_models.START_ID)
    writer.add_eos_token_id(tiny_models.PAD_ID)  # as some files do: the end of the turn is another token
    writer.add_chat_template(tiny_models.CHAT_TEMPLATE)


def _name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[rest.removesuffix('.weight')]}.weight"


def _permuted(name: str, weight: np.ndarray[Any, Any], config: Any) -> np.ndarray[Any, Any]:
    """llama.cpp rotates neighbours where transformers rotates halves."""
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
    if heads is None:
        return weight
    shaped = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(shaped.swapaxes(1, 2).reshape(weight.shape))
