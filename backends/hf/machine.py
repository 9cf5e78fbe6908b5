"""What this machine has: CPU features, cores, memory, GPUs; and which dtype and device `auto` means on it. No torch."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from backends.errors import ConfigError

# Native bf16 products; without them oneDNN converts every weight on every call and fp32 is faster.
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
BF16_CAPABILITY = (8, 0)
DEVICES = re.compile(r"^(cpu|mps|cuda(:\d+)?|xpu(:\d+)?)$")
QUERY = ("--query-gpu=name,memory.total,memory.free,compute_cap", "--format=csv,noheader,nounits")
NO_LIMIT = 1 << 60


class Gpu(Struct, frozen=True):
    """An NVIDIA GPU. Memory in bytes; `capability` as in (9, 0)."""

    name: str
    total_memory: int
    free_memory: int
    capability: tuple[int, int]


class Machine(Struct, frozen=True, kw_only=True):
    """This machine as its process may use it: within its cgroup, its CPU set and `CUDA_VISIBLE_DEVICES`. Bytes."""

    cpu_flags: frozenset[str]
    physical_cores: int
    available_memory: int
    gpus: tuple[Gpu, ...] = ()

    @classmethod
    def probe(cls, root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Machine:
        """Look, now. `root` is where `proc` and `sys` are."""
        return cls(
            cpu_flags=cpu_flags(root),
            physical_cores=physical_cores(root),
            available_memory=available_memory(root),
            gpus=_gpus(environ),
        )

    @property
    def cpu_has_bf16(self) -> bool:
        """Whether bf16 is faster than fp32 on the CPU."""
        return not BF16_FLAGS.isdisjoint(self.cpu_flags)

    def device(self, wish: str) -> str:
        """`auto`: the first GPU where there is one and torch can use it, else the CPU. Raises `ConfigError`.

        `mps` and `xpu` are taken when named, never by `auto`: nothing here has been tried on them.
        """
        if wish == "auto":
            return "cuda" if self.gpus and not _torch_is_cpu_only() else "cpu"
        if not DEVICES.match(wish):
            raise ConfigError(f"device: {wish[:40]!r} is not one of auto, cpu, cuda, cuda:N, mps, xpu, xpu:N.")
        if wish.startswith("cuda"):
            self._check_cuda(wish)
        return wish

    def dtype(self, wish: str, device: str) -> str:
        """`auto`: bfloat16 where `device` computes it natively, else float32. Raises `ConfigError`.

        float16 is refused on a CPU: it is slower than float32 there, and activations of many models overflow it.
        """
        if wish == "auto":
            return "bfloat16" if self._has_bf16(device) else "float32"
        if wish == "float16" and device == "cpu":
            raise ConfigError("dtype: float16 needs a GPU; on a CPU choose bfloat16, float32 or auto.")
        return wish

    def gpu(self, device: str) -> Gpu | None:
        """The GPU that a device string names, where it is one we can look at."""
        kind, _, index = device.partition(":")
        number = int(index or 0)
        return self.gpus[number] if kind == "cuda" and number < len(self.gpus) else None

    def _has_bf16(self, device: str) -> bool:
        if device == "cpu":
            return self.cpu_has_bf16
        gpu = self.gpu(device)
        return gpu is not None and gpu.capability >= BF16_CAPABILITY

    def _check_cuda(self, wish: str) -> None:
        if _torch_is_cpu_only():
            raise ConfigError(
                f"device: {wish!r} needs a torch built for CUDA, and the installed one is for CPUs only; choose cpu or"
                " install the other torch."
            )
        if self.gpu(wish) is None:
            seen = f"{len(self.gpus)} NVIDIA GPU{'s' * (len(self.gpus) != 1)}"
            raise ConfigError(f"device: {wish!r} is not there; this process sees {seen}. Choose cpu or auto.")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """Features of the CPU in the kernel's spelling; empty where the kernel does not say."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", _read(root / "proc/cpuinfo"), re.MULTILINE)
    return frozenset(found[1].split() if found else ())


def physical_cores(root: Path = Path("/")) -> int:
    """Cores this process may use, hyperthreads of one counted once, within the cgroup's quota."""
    return max(1, min(allowed_cores(root), _quota(root)))


def allowed_cores(root: Path = Path("/")) -> int:
    """Cores this thread may run on, hyperthreads of one counted once; a quota of their time does not count here."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for block in _read(root / "proc/cpuinfo").split("\n\n"):
        facts = dict(re.findall(r"^([\w ]+?)\s*:\s*(.*)$", block, re.MULTILINE))
        number = facts.get("processor", "")
        if number.isdigit() and int(number) in allowed:
            cores.add((facts.get("physical id"), facts["core id"]) if "core id" in facts else (None, number))
    return len(cores) or len(allowed)


def _quota(root: Path) -> int:
    """CPUs that the cgroup grants, rounded up; a large number when it does not say."""
    least = NO_LIMIT
    for folder in _cgroups(root, "cpu"):
        quota, _, period = _read(folder / "cpu.max").strip().partition(" ")
        quota = quota or _read(folder / "cpu.cfs_quota_us").strip()
        period = period or _read(folder / "cpu.cfs_period_us").strip()
        if quota.isdigit() and period.isdigit():
            least = min(least, -(-int(quota) // int(period)))
    return least


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that could still be used now, within the cgroup's limits."""
    facts = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE))
    if "MemAvailable" in facts:
        available = int(facts["MemAvailable"]) * 1024
    else:  # not Linux: nothing tells what is free
        available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder in _cgroups(root, "memory"):
        limit, used = _cgroup_memory(folder)
        available = min(available, max(0, limit - used))
    return available


def _cgroup_memory(folder: Path) -> tuple[int, int]:
    """Limit and use of one cgroup, version 2 or 1. File pages the kernel can drop do not count as used."""
    limit = _read(folder / "memory.max").strip() or _read(folder / "memory.limit_in_bytes").strip()
    used = _read(folder / "memory.current").strip() or _read(folder / "memory.usage_in_bytes").strip()
    pages: dict[str, str] = dict(re.findall(r"^(\w+) (\d+)$", _read(folder / "memory.stat"), re.MULTILINE))
    droppable = int(pages.get("total_inactive_file", pages.get("inactive_file", "0")))
    if not limit.isdigit() or not used.isdigit():
        return NO_LIMIT, 0
    return int(limit), max(0, int(used) - droppable)


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup and of those around it; a limit on any of them binds."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        folder = top / path.lstrip("/")
        yield folder
        yield from (parent for parent in folder.parents if parent.is_relative_to(top))


def _gpus(environ: Mapping[str, str]) -> tuple[Gpu, ...]:
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    tool = shutil.which("nvidia-smi")
    if tool is None or (visible is not None and visible.strip() in ("", "-1")):
        return ()
    try:
        answer = subprocess.run([tool, *QUERY], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    gpus = parse_gpus(answer)
    wanted = (visible or "").split(",")
    if all(index.strip().isdigit() for index in wanted):
        return tuple(gpus[int(index)] for index in wanted if int(index) < len(gpus))
    return tuple(gpus)


def parse_gpus(answer: str) -> list[Gpu]:
    """Lines of `nvidia-smi`: name, total and free MiB, capability. Lines that say `[N/A]` somewhere are left out."""
    gpus = []
    for line in answer.splitlines():
        found = re.match(r"^(.*), (\d+), (\d+), (\d+)\.(\d+)$", line.strip())
        if found:
            total, free, major, minor = (int(number) for number in found.groups()[1:])
            gpus.append(Gpu(found[1], total << 20, free << 20, (major, minor)))
    return gpus


def _torch_is_cpu_only() -> bool:
    try:
        return importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        return True
