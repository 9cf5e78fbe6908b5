"""How much of the machine's matrix rate a run used: the FLOPs its tokens need, against what a GEMM alone reaches."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points

import msgspec
from msgspec import Struct

from gateway.cli.screen import CommandFailed

COMMAND = "gemm-rate"  # in the entry point group laneway.commands: torch is imported there, in a process of its own
WITHIN_S = 120.0


class Roofline(Struct, frozen=True, kw_only=True):
    """A machine's GEMM rate, and a model's size: parameters every token passes, and those only a sampled one does."""

    flops_s: float
    threads: int
    body_params: float
    head_params: float

    def share(self, tokens: int, sampled_tokens: int, wall_s: float) -> float:
        """Needed FLOPs over possible ones. `tokens` are prompt and output together."""
        needed = 2 * self.body_params * tokens + 2 * self.head_params * sampled_tokens
        return needed / (self.flops_s * wall_s)


class GemmRate(Struct, frozen=True):
    """What the command prints."""

    flops_s: float
    threads: int


def measure_gemm_rate(threads: int) -> GemmRate:
    """Run `laneway gemm-rate`; the machine should be idle. Raises `CommandFailed`, saying what is missing."""
    if not any(point.name == COMMAND for point in entry_points(group="laneway.commands")):
        raise CommandFailed("--roofline needs the extra hf: pip install 'laneway[hf]'")
    argv = [sys.executable, "-P", "-m", "gateway.cli.main", COMMAND, "--json", "--threads", str(threads)]
    try:
        run = subprocess.run(argv, capture_output=True, timeout=WITHIN_S, check=True)
        return msgspec.json.decode(run.stdout, type=GemmRate)
    except subprocess.CalledProcessError as error:
        reason = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    except (subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        reason = str(error)
    raise CommandFailed(f"--roofline: the matrix rate could not be measured: {reason}")
