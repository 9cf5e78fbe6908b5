"""The C kernels of `kernels.c`: compiled once into the cache folder, checked, and called on torch tensors.

They need a C compiler, and a CPU with AVX512-BF16. Where either is missing `load` returns None with the reason in the
log, and torch computes the same.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from torch import Tensor

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = ("-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
COMPILE_TIMEOUT_S = 60
CPU_FLAG = "avx512_bf16"
MAX_HEAD_DIM = 256


class NativeKernels:
    """The compiled kernels. All tensors are bfloat16 on the CPU; shapes are as the functions' names for them say."""

    def __init__(self, library: Path, threads: int) -> None:
        self._lib = ctypes.CDLL(str(library))
        self._threads = threads

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        rows: Tensor,
        tables: Tensor,
        scale: float,
        window: int | None,
    ) -> Tensor:
        """Attention of a step: query [T, heads, head_dim], pages as `store` makes them → [T, heads, head_dim].

        rows: int32 [R, 4] of (first token, its position, tokens, offset into `tables`); tables: int32 block ids.
        """
        tokens, heads, dim = query.shape
        out = torch.empty((tokens, heads, dim), dtype=query.dtype)
        _, kv_heads, block_size, _ = keys.shape
        self._lib.attend(
            _p(query), _l(query.stride(0)), _l(query.stride(1)), _p(out), _p(keys), _p(values),
            _p(rows), _l(len(rows)), _p(tables), _l(heads), _l(kv_heads), _l(dim), _l(block_size),
            ctypes.c_float(scale), _l(window or 0), _l(self._threads),
        )  # fmt: skip
        return out

    def store(self, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """Write key and value [T, kv_heads, head_dim] to `slots` (int64 [T]).

        Pages are [blocks, kv_heads, block_size, head_dim].
        """
        tokens, kv_heads, dim = key.shape
        self._lib.store(
            _p(key), _l(key.stride(0)), _l(key.stride(1)), _p(value), _l(value.stride(0)), _l(value.stride(1)),
            _p(keys), _p(values), _p(slots), _l(tokens), _l(kv_heads), _l(dim), _l(keys.shape[2]),
        )  # fmt: skip

    def rotate_and_store(
        self, fused: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, slots: Tensor, heads: int
    ) -> None:
        """Rotary embedding of a fused projection [T, (heads + 2 kv_heads) * head_dim].

        Queries are rotated in place, keys and values go to their pages.
        """
        _, kv_heads, block_size, dim = keys.shape
        self._lib.rotate_and_store(
            _p(fused), _p(cos), _p(sin), _p(keys), _p(values), _p(slots), _l(len(slots)), _l(heads), _l(kv_heads),
            _l(dim), _l(block_size), _l(self._threads),
        )  # fmt: skip

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """weight * (x / rms(x)) over the last dimension."""
        x = x.contiguous()
        out = torch.empty_like(x)
        dim = x.shape[-1]
        self._lib.rms_norm(
            _p(x), _p(weight), _p(out), _l(x.numel() // dim), _l(dim), ctypes.c_float(eps), _l(self._threads)
        )
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up of [..., 2 * width], gate first."""
        width = gate_up.shape[-1] // 2
        out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype)
        self._lib.silu_mul(_p(gate_up), _p(out), _l(out.numel() // width), _l(width), _l(self._threads))
        return out


_l = ctypes.c_long


def _p(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def load(cache: Path, threads: int, cpu_flags: frozenset[str]) -> NativeKernels | None:
    """The kernels for this CPU, compiled into `cache` if they are not there yet; None where they cannot be had."""
    if CPU_FLAG not in cpu_flags:
        return None
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        log.info("no C compiler found: attention runs in torch, slower")
        return None
    try:
        return NativeKernels(_compiled(compiler, cache, cpu_flags), threads)
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("the C kernels could not be built, attention runs in torch: %s", str(error)[:200])
        return None


def _compiled(compiler: str, cache: Path, cpu_flags: frozenset[str]) -> Path:
    """The shared library in `cache`, named by everything it depends on, so that it is never stale."""
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=10).stdout
    parts = (SOURCE.read_bytes(), version, " ".join(FLAGS).encode(), " ".join(sorted(cpu_flags)).encode())
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]
    library = cache / f"kernels-{key}.so"
    if not library.exists():
        cache.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=cache, suffix=".so")
        os.close(handle)
        try:
            command = [compiler, *FLAGS, "-o", draft, str(SOURCE), "-lm"]
            subprocess.run(command, capture_output=True, check=True, timeout=COMPILE_TIMEOUT_S)
            Path(draft).replace(library)
        finally:
            Path(draft).unlink(missing_ok=True)
    return library
