"""Tiny tokenizers in the two styles there are, saved as model folders: bytes, and pieces with byte fallback."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_letters() -> list[str]:
    """The visible letter of each byte, as byte-level vocabularies spell it."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    spelling = {byte: chr(byte) for byte in shown} | {byte: chr(256 + i) for i, byte in enumerate(hidden)}
    return [spelling[byte] for byte in range(256)]


def save(tokenizer: Tokenizer, folder: Path, chat_template: str | None = CHATML) -> Path:
    """Write it as transformers does."""
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<|bos|>", eos_token="<|end|>")
    wrapped.chat_template = chat_template
    wrapped.save_pretrained(folder)
    return folder


def byte_level() -> Tokenizer:
    """Ids 0 to 255 are bytes; then <|end|>, <|bos|>, <|hang|>, <|crash|>. BOS goes before every text."""
    tokenizer = Tokenizer(models.BPE(vocab={letter: byte for byte, letter in enumerate(byte_letters())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIALS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", 256 + SPECIALS.index("<|bos|>"))]
    )
    return tokenizer


SPECIALS = ["<|end|>", "<|bos|>", "<|hang|>", "<|crash|>"]


def sentencepiece() -> Tokenizer:
    """Like Llama 2: spaces as ▁, unknown characters as byte tokens, and a decoder that drops one leading space."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz", "▁a", "▁the"]
    merges = [("▁", "a")]
    vocab = {piece: i for i, piece in enumerate([*pieces, "th"])}
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=[*merges, ("t", "h")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<|end|>", "<|bos|>")])
    return tokenizer
