"""Tiny random models of many families, and folders of them that can be served. For tests alone.

Weights are drawn wide enough that greedy tokens vary and the best two logits lie well apart; everything is fp32 and
depends on (name, seed) alone. The tokenizer is byte-level: any text encodes, and single tokens may be half a character.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedTokenizerFast

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
SPECIAL = (PAD, START, END)
PAD_ID, START_ID, END_ID = 0, 1, 2
VOCAB_SIZE = 264  # the specials, 256 bytes, and a few merged tokens
MAX_MODEL_LEN = 512
WINDOW = 24

CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

SHARED: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
    "bos_token_id": START_ID,
    "eos_token_id": END_ID,
    "pad_token_id": PAD_ID,
}
LLAMA_SHAPE: Mapping[str, Any] = {
    **SHARED,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_MODEL_LEN,
}


def _config(kind: str, **fields: Any) -> Callable[[], PreTrainedConfig]:
    return lambda: getattr(transformers, f"{kind}Config")(**fields)


CONFIGS: Mapping[str, Callable[[], PreTrainedConfig]] = {
    "llama": _config("Llama", **LLAMA_SHAPE),
    "qwen2": _config("Qwen2", **LLAMA_SHAPE),
    "qwen3": _config("Qwen3", **LLAMA_SHAPE, head_dim=16),
    "mistral": _config("Mistral", **LLAMA_SHAPE, head_dim=16, sliding_window=WINDOW),
    "gemma3": _config(
        "Gemma3Text",
        **{**LLAMA_SHAPE, "num_hidden_layers": 4},
        head_dim=16,
        query_pre_attn_scalar=16,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
    ),
    "mixtral": _config("Mixtral", **LLAMA_SHAPE, num_local_experts=4, num_experts_per_tok=2),
    "gpt2": _config(
        "GPT2",
        **{**SHARED, "tie_word_embeddings": True},
        n_embd=64,
        n_layer=3,
        n_head=4,
        n_positions=MAX_MODEL_LEN,
    ),
    "bloom": _config("Bloom", **SHARED, hidden_size=64, n_layer=2, n_head=4),
    "falcon": _config(
        "Falcon",
        **SHARED,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=MAX_MODEL_LEN,
    ),
}


def build(name: str, seed: int = 0) -> Any:
    """A transformers model of the family, in eval mode. The caller's random state is left as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(CONFIGS[name](), dtype=torch.float32)
    return model.eval().requires_grad_(False)


def save(
    name: str,
    path: Path,
    tokenizer: bool = True,
    seed: int = 0,
    max_shard_size: str | None = None,
    max_model_len: int | None = None,
) -> Path:
    """Write such a model as a folder; with `tokenizer` it can be served. `max_shard_size` as in "50KB" makes shards.

    `max_model_len` is another context length, for families whose weights do not depend on it.
    """
    shards = {} if max_shard_size is None else {"max_shard_size": max_shard_size}
    model = build(name, seed)
    if max_model_len is not None:
        model.config.max_position_embeddings = max_model_len
    model.save_pretrained(path, **shards)
    if tokenizer:
        tiny_tokenizer(max_model_len or MAX_MODEL_LEN).save_pretrained(path)
    return path


def tiny_tokenizer(max_model_len: int = MAX_MODEL_LEN) -> PreTrainedTokenizerFast:
    """Byte-level BPE with a chat template: `<|im_start|>role`, text, `<|im_end|>`."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("Ġ", "a")]
    tokens = [*SPECIAL, *letters, *("".join(pair) for pair in merges)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    assert len(vocabulary) == VOCAB_SIZE
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=START,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_model_len,
        clean_up_tokenization_spaces=False,
    )
