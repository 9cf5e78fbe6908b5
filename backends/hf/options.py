"""Options of the built-in engine, their bounds, and what each means. No torch."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

PositiveInt: TypeAlias = Annotated[int, Meta(ge=1)]


class HFOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[backends.NAME]` with `type = "hf"`.

    `model` is a Hugging Face repo id, a folder, a `.gguf` file or a built-in name; it is served as `served_name`, or
    under that id (a folder or file: its last path component).
    `kv_cache_memory` is in bytes, or "auto": a share of what the machine has left after loading.
    `max_step_s` bounds the predicted time of every step, also when nothing decodes, since the next arrival is unknown.
    `max_batched_tokens` is a second bound, on tokens. `max_output_tokens` is the operator's cap on one answer.
    `runner` "auto" takes the fastest that passes the start-up self-check. `kernels` "auto" compiles the C kernels where
    the CPU has AVX512-BF16 and there is a compiler; "torch" never does.
    `threads` 0 means one a physical core.
    """

    model: str
    served_name: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: str = "auto"
    device_map: str | None = None
    offload_folder: str | None = None
    max_model_len: PositiveInt | None = None
    max_num_seqs: Annotated[int, Meta(ge=1, le=4096)] = 64
    max_output_tokens: PositiveInt | None = None
    max_batched_tokens: Annotated[int, Meta(ge=16, le=65536)] = 2048
    max_step_s: Annotated[float, Meta(gt=0, le=10)] = 0.08
    kv_cache_memory: Annotated[int, Meta(ge=1 << 20)] | Literal["auto"] = "auto"
    block_size: Annotated[int, Meta(ge=1, le=1024)] = 32
    runner: Literal["auto", "batched", "per_sequence"] = "auto"
    kernels: Literal["auto", "torch"] = "auto"
    threads: Annotated[int, Meta(ge=0, le=1024)] = 0
    hang_after_s: Annotated[float, Meta(ge=1, le=3600)] = 30.0
