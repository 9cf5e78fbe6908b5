"""From options to a warm engine: load, take the fastest runner that passes the self-check, size the cache, warm up."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import torch

from backends.base import LaneRule
from backends.errors import ConfigError
from backends.fairness import FairQueue, LaneShare
from backends.hf import native
from backends.hf.attention import AttentionKernel
from backends.hf.block_pool import BlockPool
from backends.hf.catalog import default_home
from backends.hf.embedder import EncoderRunner
from backends.hf.embedding_engine import BatchLimits, EmbeddingEngine, Input
from backends.hf.encoder import Encoder
from backends.hf.engine import Engine
from backends.hf.fused import fuse
from backends.hf.loader import LoadedModel, load
from backends.hf.loop import Deliver
from backends.hf.machine import Machine
from backends.hf.messages import PROTOCOL_VERSION, Welcome
from backends.hf.native_attention import NativeAttention
from backends.hf.options import HFOptions
from backends.hf.per_sequence import PerSequenceRunner
from backends.hf.plan import Runner
from backends.hf.runner import BatchedRunner
from backends.hf.scheduler import Scheduler, SchedulerLimits
from backends.hf.self_check import TOLERANCE, ForwardRunner, SelfCheck, check_blocks
from backends.hf.step_time import StepTime
from backends.hf.swaps import Swap, pack_linears, undo
from backends.hf.torch_attention import TorchAttention
from backends.hf.warm_up import warm_up

log = logging.getLogger("laneway.hf")

# Share of the memory left after loading that an automatic KV cache may take; what is never written is never taken.
KV_MEMORY_SHARE = 0.5
WARM_UP_INPUTS, WARM_UP_TOKENS = 8, 32  # of the forward that says how fast an embedding model is
# Rotary embeddings whose frequencies follow the longest position of the batch: a neighbour would change an answer.
BATCH_DEPENDENT_ROPE = ("dynamic", "longrope")


class EngineRunner(Runner, ForwardRunner, Protocol):
    """A runner as an engine is built with it: it can be checked, measured and resized."""

    @property
    def name(self) -> str:
        """How operators know it."""
        ...

    @property
    def bytes_per_block(self) -> int:
        """Bytes of cache one block takes; known after the self-check."""
        ...

    def resize(self, num_blocks: int) -> None:
        """Make the cache anew."""
        ...


def build_engine(
    options: HFOptions, lanes: Mapping[str, LaneRule], deliver: Deliver
) -> tuple[Engine | EmbeddingEngine, Welcome]:
    """A warm engine. Raises `ConfigError` for what can never work."""
    machine = Machine.probe()
    threads = options.threads or machine.physical_cores
    torch.set_num_threads(threads)
    home = default_home(os.environ)
    loaded = load(options, home, machine=machine)
    if loaded.encoder is not None:
        return _embedding_engine(loaded, loaded.encoder, options, lanes, deliver)
    kernels = native.load(home / "kernels", threads, machine.cpu_flags) if _may_be_native(loaded, options) else None
    runner = choose_runner(loaded, options, None if kernels is None else NativeAttention(kernels))
    runner.resize(_num_blocks(runner, loaded, options))
    step_time = StepTime()
    shapes = warm_up(runner, step_time, options.max_num_seqs, loaded.max_model_len)
    log.info("warmed up with %d shapes; a decode takes %.1f ms", shapes, step_time.predict(1, 128, 1) * 1e3)
    scheduler = Scheduler(
        BlockPool(runner.num_blocks, runner.block_size),
        FairQueue(_shares(lanes)),
        step_time,
        SchedulerLimits(
            max_num_seqs=options.max_num_seqs,
            max_batched_tokens=options.max_batched_tokens,
            max_step_s=options.max_step_s,
            max_model_len=loaded.max_model_len,
        ),
        {name: rule.target_itl for name, rule in lanes.items()},
    )
    welcome = Welcome(
        version=PROTOCOL_VERSION,
        max_model_len=loaded.max_model_len,
        max_sequence_tokens=scheduler.max_sequence_tokens,
        vocab_size=loaded.vocab_size,
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=str(loaded.device),
        runner=runner.name,
        end_token_ids=sorted(loaded.eos_token_ids),
    )
    return Engine(runner, scheduler, step_time, deliver), welcome


def _embedding_engine(
    loaded: LoadedModel, encoder: Encoder, options: HFOptions, lanes: Mapping[str, LaneRule], deliver: Deliver
) -> tuple[EmbeddingEngine, Welcome]:
    """It keeps nothing between steps, so there is no cache to size. The second of two equal forwards is timed."""
    embedder = EncoderRunner(loaded.model, encoder, loaded.device)
    inputs = [[0] * min(WARM_UP_TOKENS, loaded.max_model_len)] * WARM_UP_INPUTS
    embedder.vectors(inputs)
    began_at = time.monotonic()
    embedder.vectors(inputs)
    token_s = (time.monotonic() - began_at) / (len(inputs) * len(inputs[0]))
    log.info("warmed up; a token takes %.3f ms", token_s * 1e3)
    limits = BatchLimits(inputs=options.max_num_seqs, tokens=options.max_batched_tokens, seconds=options.max_step_s)
    queue: FairQueue[Input] = FairQueue(_shares(lanes))
    welcome = Welcome(
        version=PROTOCOL_VERSION,
        max_model_len=loaded.max_model_len,
        max_sequence_tokens=loaded.max_model_len,
        vocab_size=loaded.vocab_size,
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=str(loaded.device),
        runner="embedding",
    )
    return EmbeddingEngine(embedder, queue, limits, deliver, token_s), welcome


def _shares(lanes: Mapping[str, LaneRule]) -> dict[str, LaneShare]:
    return {name: LaneShare(rule.priority, rule.floor) for name, rule in lanes.items()}


def choose_runner(loaded: LoadedModel, options: HFOptions, kernel: NativeAttention | None) -> EngineRunner:
    """The first of the candidates, fastest first, that gives what the plain model gives."""
    check = SelfCheck(loaded.model, loaded.vocab_size)
    reasons: list[str] = []
    for name, runner, swaps in _candidates(loaded, options, kernel):
        try:
            error = check.error(runner)
        except Exception as failure:  # whatever a model's own code raises, the next candidate may do without it
            error, reason = float("inf"), f"{type(failure).__name__}: {str(failure)[:100]}"
        else:
            reason = f"its logits are off by {error:.1e}"
        if error <= TOLERANCE[loaded.dtype]:
            log.info("the %s runner passed the self-check, off by %.1e", name, error)
            return runner
        log.warning("the %s runner cannot serve this model: %s", name, reason)
        reasons.append(f"{name}: {reason}")
        undo(swaps)
    raise ConfigError(f"model: {options.model!r} cannot be served: {'; '.join(reasons)}.")


def _candidates(
    loaded: LoadedModel, options: HFOptions, kernel: NativeAttention | None
) -> Iterator[tuple[str, EngineRunner, list[Swap]]]:
    """Ways to run the model, each built when it is asked for; what it changed in the model comes with it."""
    model, blocks, size = loaded.model, check_blocks(options.block_size), options.block_size
    plain = model.config._attn_implementation
    if options.runner != "per_sequence" and _is_batchable(loaded):
        attention: AttentionKernel = TorchAttention(loaded.dtype, loaded.device)
        if kernel is not None:
            yield "native", BatchedRunner(model, kernel, blocks, size), fuse(model, kernel) + pack_linears(model)
        swaps = pack_linears(model)
        yield "batched", BatchedRunner(model, attention, blocks, size), swaps
        if swaps:
            yield "batched, unpacked", BatchedRunner(model, attention, blocks, size), []
        model.set_attn_implementation(plain)
    if options.runner != "batched":
        yield "per-sequence", PerSequenceRunner(model, blocks, size), []


def _may_be_native(loaded: LoadedModel, options: HFOptions) -> bool:
    return options.kernels == "auto" and loaded.device.type == "cpu" and loaded.dtype is torch.bfloat16


def _is_batchable(loaded: LoadedModel) -> bool:
    """Whether the class goes through the attention interface, a row's positions are its own affair, and all of the
    model is in one place, as the pages are."""
    config: Any = loaded.config.get_text_config()
    if len(set(getattr(loaded.model, "hf_device_map", {}).values())) > 1:
        return False
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        return False  # the attention function is not told the chunk's size, and only long prompts would show it
    rope: Any = getattr(config, "rope_parameters", None) or {}
    rules = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    return bool(loaded.model.is_backend_compatible()) and not any(
        rule.get("rope_type") in BATCH_DEPENDENT_ROPE for rule in rules
    )


def _num_blocks(runner: EngineRunner, loaded: LoadedModel, options: HFOptions) -> int:
    """Blocks that `kv_cache_memory` buys; automatic: a share of what is free, and no more than all rows could fill."""
    per_block = max(1, runner.bytes_per_block)
    if options.kv_cache_memory == "auto":
        most = options.max_num_seqs * -(-loaded.max_model_len // options.block_size)
        blocks = min(most, int(_free_memory(loaded.device) * KV_MEMORY_SHARE) // per_block)
    else:
        blocks = options.kv_cache_memory // per_block
    if blocks < 2:
        raise ConfigError(
            f"kv_cache_memory: room for {blocks} blocks of {per_block} bytes is too little; give at least"
            f" {2 * per_block} bytes, or a smaller block_size than {options.block_size}."
        )
    log.info("KV cache: %d blocks of %d tokens, at most %.2f GB", blocks, options.block_size, blocks * per_block / 1e9)
    return blocks


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return Machine.probe().available_memory
