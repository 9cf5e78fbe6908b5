"""Options → a loaded model, and the checks that come before. Only `load` imports torch: the parent may `check`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from backends.errors import ConfigError
from backends.hf.catalog import Catalog, ModelSource, Progress, default_home
from backends.hf.checkpoint import Checkpoint, check_servable
from backends.hf.encoder import Encoder
from backends.hf.machine import Machine
from backends.hf.options import HFOptions
from backends.hf.progress import stages

if TYPE_CHECKING:
    import torch

MARGIN_BYTES = 512 << 20  # libraries, activations and a small KV cache
LENGTH_IF_UNKNOWN = 2048
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


@dataclass(frozen=True, eq=False, kw_only=True)
class LoadedModel:
    """A model ready to run: in eval mode, its parameters frozen, on `device` (where its inputs go) in `dtype`.

    `max_model_len` is in tokens. `eos_token_ids` end an answer. `weight_bytes` is what its parameters take.
    `encoder` is set for an embedding model.
    """

    model: Any
    config: Any
    dtype: torch.dtype
    device: torch.device
    max_model_len: int
    vocab_size: int
    eos_token_ids: frozenset[int]
    weight_bytes: int
    encoder: Encoder | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `check` found out: which files, and how they will be loaded."""

    checkpoint: Checkpoint
    dtype: str
    device: str
    max_model_len: int


def check(
    options: HFOptions, home: Path | None = None, progress: Progress | None = None, machine: Machine | None = None
) -> Plan:
    """Find the model and see that it can be served here; a GGUF model is converted now, once. No torch, no network.

    `home` is the cache folder (default: `LANEWAY_HOME`); `progress` is told of a conversion (default: a bar on standard
    error). Raises `ConfigError` for what could never load: its message names the option, and what to do.
    """
    machine = machine or Machine.probe()
    device = machine.device(options.device)
    _check_map(options)
    source = _prepare(options, home, progress)
    try:
        checkpoint = Checkpoint.read(source.folder)
        check_servable(checkpoint, options.trust_remote_code)
    except ConfigError as error:
        raise _with_hint(error, source) from error
    dtype = machine.dtype(_dtype(options, checkpoint), device)
    length = _max_model_len(options.max_model_len, checkpoint)
    _check_memory(checkpoint, options, dtype, device, machine)
    return Plan(checkpoint=checkpoint, dtype=dtype, device=device, max_model_len=length)


def tokenizer_dir(options: HFOptions, home: Path | None = None) -> Path:
    """The folder with the model's tokenizer. Waits for a conversion, or makes it. Raises `ConfigError`."""
    return _catalog(home).prepare(options.model, options.revision).folder


def load(
    options: HFOptions,
    home: Path | None = None,
    attn_implementation: str | None = None,
    machine: Machine | None = None,
) -> LoadedModel:
    """Check, then load: memory-mapped safetensors, straight to the device. Raises `ConfigError`.

    `attn_implementation` is transformers' word; None leaves its default.
    """
    import torch
    import transformers

    machine = machine or Machine.probe()
    if not torch.cuda.is_available():  # a driver too old for this torch: the GPU is there and cannot be used
        machine = structs.replace(machine, gpus=())
    plan = check(options, home, lambda *_: None, machine)
    logging: Any = transformers.logging  # untyped
    logging.disable_progress_bar()
    dtype: torch.dtype = getattr(torch, plan.dtype)
    model = _from_pretrained(plan, options, dtype, attn_implementation)
    model.eval().requires_grad_(False)
    generation: Any = getattr(model, "generation_config", None)  # encoders have none
    eos = generation.eos_token_id if generation is not None else None
    named = eos if isinstance(eos, list) else [] if eos is None else [eos]
    return LoadedModel(
        model=model,
        config=model.config,
        dtype=dtype,
        device=_input_device(model, plan.device),
        max_model_len=plan.max_model_len,
        vocab_size=model.config.get_text_config().vocab_size,
        eos_token_ids=plan.checkpoint.eos_token_ids | frozenset(named),
        weight_bytes=sum(weight.nbytes for weight in model.parameters()),
        encoder=plan.checkpoint.encoder,
    )


def _from_pretrained(plan: Plan, options: HFOptions, dtype: torch.dtype, attn_implementation: str | None) -> Any:
    from transformers import AutoModel, AutoModelForCausalLM

    is_encoder = plan.checkpoint.encoder is not None
    # With `output_loading_info` it returns a pair, which its types do not say.
    auto: Any = AutoModel if is_encoder else AutoModelForCausalLM
    folder = plan.checkpoint.folder
    where: dict[str, str | None] = {"device_map": None if plan.device == "cpu" else plan.device}
    if options.device_map is not None:
        where = {"device_map": options.device_map, "offload_folder": options.offload_folder}
    if attn_implementation is not None:
        where["attn_implementation"] = attn_implementation
    try:
        model, info = auto.from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=options.trust_remote_code,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are named in `info`, and refused below
            **where,
        )
    except (OSError, ValueError, ImportError, KeyError, RuntimeError) as error:
        raise ConfigError(f"model: transformers cannot load {folder}: {_first_line(error)}") from error
    if is_encoder:  # a head over the first token, which many checkpoints lack and no vector comes from
        info["missing_keys"] = [key for key in info["missing_keys"] if not str(key).startswith("pooler.")]
    _check_complete(folder, info)
    return model


def _check_complete(folder: Path, info: dict[str, Any]) -> None:
    """transformers fills what a checkpoint lacks with random numbers and a warning; served, that is nonsense."""
    absent = sorted(map(str, [*info["missing_keys"], *info["mismatched_keys"]]))
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise ConfigError(
            f"model: the weights in {folder} do not fit its config.json; absent or of another shape:"
            f" {', '.join(absent[:3])}{more}."
        )


def _prepare(options: HFOptions, home: Path | None, progress: Progress | None) -> ModelSource:
    catalog = _catalog(home)
    source = catalog.resolve(options.model, options.revision)
    if source.is_ready:
        return source
    if progress is not None:
        return catalog.prepare(options.model, options.revision, progress)
    with stages(f"Converting {options.model}, once") as report:
        return catalog.prepare(options.model, options.revision, report)


def _catalog(home: Path | None) -> Catalog:
    return Catalog(default_home(os.environ) if home is None else home)


def _with_hint(error: ConfigError, source: ModelSource) -> ConfigError:
    """Files of a repo that are wrong were perhaps not fetched to the end."""
    if source.kind != "repo":
        return error
    return ConfigError(f"{error} If its download was interrupted, complete it: laneway models pull {source.model}")


def _dtype(options: HFOptions, checkpoint: Checkpoint) -> str:
    """Vectors are compared with others made elsewhere or next year, so automatic is exact for embedding models."""
    return "float32" if options.dtype == "auto" and checkpoint.encoder is not None else options.dtype


def _max_model_len(wish: int | None, checkpoint: Checkpoint) -> int:
    limit = checkpoint.max_model_len
    if wish is not None and limit is not None and wish > limit:
        raise ConfigError(f"max_model_len: {wish} is more than the model's {limit} tokens; choose 1 to {limit}.")
    return wish or limit or LENGTH_IF_UNKNOWN


def _check_map(options: HFOptions) -> None:
    if options.offload_folder is not None and options.device_map is None:
        raise ConfigError('offload_folder: is used only together with device_map; set device_map = "auto".')
    if options.device_map is not None and options.device != "auto":
        raise ConfigError("device_map: cannot be combined with device; leave one of them out.")
    if options.device_map is not None and options.device_map not in DEVICE_MAPS:
        raise ConfigError(f"device_map: {options.device_map[:40]!r} is not one of {', '.join(DEVICE_MAPS)}.")
    if options.offload_folder is not None and Path(options.offload_folder).is_file():
        raise ConfigError(f"offload_folder: {options.offload_folder!r} is a file; name a folder.")


def _check_memory(checkpoint: Checkpoint, options: HFOptions, dtype: str, device: str, machine: Machine) -> None:
    """What a folder on disk may take over is not bounded; everything else must fit now."""
    if options.offload_folder is not None:
        return
    gpu = machine.gpu(device)
    if options.device_map is not None:
        room, where = machine.available_memory + sum(each.free_memory for each in machine.gpus), "memory and GPUs"
    elif gpu is not None:
        room, where = gpu.free_memory, f"{gpu.name} ({device})"
    elif device == "cpu":
        room, where = machine.available_memory, "memory"
    else:
        return
    needed = checkpoint.bytes_as(dtype) + MARGIN_BYTES
    if needed > room:
        raise ConfigError(
            f"model: {checkpoint.folder.name} needs {_gb(needed)} as {dtype} ({_gb(MARGIN_BYTES)} of it to run), but"
            f" {where} has {_gb(room)} free. {_advice(checkpoint, dtype, room)}"
        )


def _advice(checkpoint: Checkpoint, dtype: str, room: int) -> str:
    if dtype == "float32" and (half := checkpoint.bytes_as("bfloat16") + MARGIN_BYTES) <= room:
        return f'Set dtype = "bfloat16" ({_gb(half)}), or free some memory.'
    return 'Choose a smaller model, free some memory, or set device_map = "auto" with an offload_folder.'


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:.1f} GB"


def _input_device(model: Any, device: str) -> torch.device:
    """Where token ids go: with a device map, to the first part that computes somewhere."""
    import torch

    for place in getattr(model, "hf_device_map", {}).values():
        if place not in ("cpu", "disk"):
            return torch.device(place)
    return torch.device(device if not hasattr(model, "hf_device_map") else "cpu")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).split("\n")[0][:300]
