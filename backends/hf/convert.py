"""A GGUF file becomes a folder of bf16 safetensors with its tokenizer, once and whole. Run as a process of its own.

    python -m backends.hf.convert FILE FOLDER

Standard output carries one JSON object a stage, standard error the reason of a failure (exit code 2). Standard input is
a pipe that the caller holds: when it closes, the caller is gone and so is this process. FOLDER appears by a rename, so
it is whole or absent; a lock beside it lets any number of starters ask for it at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
from msgspec import Struct

from backends.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Report: TypeAlias = Callable[[float, str], None]

RECIPE = 1  # part of the folder's name: a better conversion is made anew
# Ends of a turn as llama.cpp knows them by their spelling; GGUF names only one end token.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<turn|>")
BLOCK_ENDINGS = 4  # a 4-bit file grows to about this many times its size in bf16


class Stage(Struct, frozen=True):
    """How far a conversion is: `fraction` of the whole, and what it does now."""

    fraction: float
    doing: str


def convert(gguf: Path, folder: Path, report: Report) -> None:
    """Make `folder` from `gguf` unless it is there. Raises `ConfigError` when the file or the disk cannot do it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder.with_name(f".{folder.name}.lock"), report):
        if folder.is_dir():
            return
        for left_over in folder.parent.glob(f".{folder.name}.*.partial"):
            shutil.rmtree(left_over, ignore_errors=True)
        _check_disk(gguf, folder.parent)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
        try:
            _write(gguf, temporary, report)
            _share(temporary)
            temporary.rename(folder)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    report(1.0, "ready")


@contextlib.contextmanager
def _exclusive(lock: Path, report: Report) -> Iterator[None]:
    """Hold the lock; the kernel lets it go when this process ends, however it ends."""
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(0.0, "waiting for another process that converts it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _check_disk(gguf: Path, parent: Path) -> None:
    needed, free = gguf.stat().st_size * BLOCK_ENDINGS, shutil.disk_usage(parent).free
    if free < needed:
        raise ConfigError(
            f"model: converting {gguf.name} takes up to {needed / 1e9:.1f} GB in {parent}, and {free / 1e9:.1f} GB are"
            " free there; free some, or set LANEWAY_HOME to a folder on a larger disk."
        )


def _write(gguf: Path, folder: Path, report: Report) -> None:
    report(0.02, "starting")
    import transformers

    logging: Any = transformers.logging  # untyped
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    report(0.3, "reading the weights")
    try:
        model = _dense(gguf)
        report(0.7, "reading the tokenizer")
        tokenizer = _tokenizer(gguf, model.config.max_position_embeddings)
    except (OSError, ValueError, ImportError, KeyError, NotImplementedError) as error:
        reason = str(error).strip().split("\n")[0][:300]
        raise ConfigError(f"model: transformers cannot read {gguf.name}: {reason}") from error
    model.generation_config.eos_token_id = _eos_token_ids(tokenizer)
    model.generation_config._from_model_config = False  # else a reader may make it anew, from the config alone
    report(0.85, "writing")
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _share(folder: Path) -> None:
    """Temporary folders and safetensors files are made for their owner alone; a cache may be read by others."""
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)


def _dense(gguf: Path) -> PreTrainedModel:
    """The model with plain bf16 weights. Without `dequantize` it may keep packed ones, and then it cannot be saved."""
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    dense: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    return dense


def _tokenizer(gguf: Path, max_model_len: int) -> PreTrainedTokenizerBase:
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer
    from transformers.integrations.gguf.reader import read_gguf_metadata

    tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    metadata, _ = read_gguf_metadata(str(gguf))
    if metadata.get("tokenizer.ggml.pre") == "smollm":  # transformers knows this split for others, not for SmolLM
        rust = tokenizer.backend_tokenizer
        rust.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    tokenizer.model_max_length = max_model_len
    result: PreTrainedTokenizerBase = tokenizer
    return result


def _eos_token_ids(tokenizer: Any) -> list[int]:
    """The file's end token, and every end of a turn that its chat template writes."""
    template = tokenizer.chat_template or ""
    ids = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    vocabulary = tokenizer.get_vocab()
    ids += [vocabulary[token] for token in TURN_ENDS if token in template and token in vocabulary]
    return sorted(set(ids))


def main(arguments: Sequence[str]) -> int:
    """The process. 0 when the folder is there, 2 with one line on standard error when it cannot be."""
    gguf, folder = map(Path, arguments)
    threading.Thread(target=_end_with_the_caller, daemon=True).start()
    try:
        convert(gguf, folder, _tell)
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


def _tell(fraction: float, doing: str) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(Stage(fraction, doing)) + b"\n")
    sys.stdout.buffer.flush()


def _end_with_the_caller() -> None:
    while os.read(0, 4096):  # not sys.stdin: a thread that waits in it breaks the end of the interpreter
        pass
    os._exit(1)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
