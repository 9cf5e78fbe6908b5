"""`laneway gemm-rate`: the matrix rate of this machine, which `laneway bench --roofline` measures an engine against."""

from __future__ import annotations

import json as jsonlib
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Annotated

import typer

from backends.hf import threads as compute_threads
from backends.hf.machine import allowed_cores, physical_cores

# torch itself is loaded later, once its threads are prepared; that it is missing must show now.
if find_spec("torch") is None:
    raise ModuleNotFoundError("No module named 'torch'", name="torch")

OUT_FEATURES, IN_FEATURES, ROWS = 3072, 576, 256  # the largest linear of SmolLM2-135M, at a step's usual rows
WARM_UP_CALLS = 20
CALLS = 100
ROUNDS = 5


def gemm_rate(
    threads: Annotated[int, typer.Option(min=0, max=1024, help="0: as many as the engine takes.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="For machines.")] = False,
) -> None:
    """Measure this machine's matrix rate: a bf16 linear of 3072×576 at 256 rows, best of 5. Needs an idle machine."""
    used = threads or physical_cores()
    compute_threads.prepare(used, allowed_cores(), os.environ)
    flops_s = measure(used)
    if json:
        typer.echo(jsonlib.dumps({"flops_s": flops_s, "threads": used}))
    else:
        typer.echo(f"{flops_s / 1e9:.0f} GFLOP/s in bf16 on {used} threads")


def measure(num_threads: int) -> float:
    """FLOP/s, the best of `ROUNDS` rounds of `CALLS` calls each. Loads torch: its threads are then the engine's."""
    import torch
    import torch.nn.functional as F

    torch.set_num_threads(num_threads)
    weight = torch.randn(OUT_FEATURES, IN_FEATURES, dtype=torch.bfloat16)
    rows = torch.randn(ROWS, IN_FEATURES, dtype=torch.bfloat16)
    with torch.inference_mode():
        for _ in range(WARM_UP_CALLS):
            F.linear(rows, weight)
        best_s = min(_round_s(lambda: F.linear(rows, weight)) for _ in range(ROUNDS))
    return 2 * OUT_FEATURES * IN_FEATURES * ROWS / best_s


def _round_s(call: Callable[[], object]) -> float:
    """Mean seconds of a call."""
    began_at = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - began_at) / CALLS
