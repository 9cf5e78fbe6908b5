from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from backends.errors import ConfigError
from backends.hf import machine
from backends.hf.machine import Gpu, Machine, allowed_cores, available_memory, cpu_flags, parse_gpus, physical_cores

Root: TypeAlias = Callable[[dict[str, str]], Path]
GB = 1 << 30

H200 = Gpu("NVIDIA H200", 140 * GB, 139 * GB, (9, 0))
OLD = Gpu("Tesla T4", 16 * GB, 15 * GB, (7, 5))
PLAIN = Machine(cpu_flags=frozenset({"avx2"}), physical_cores=2, available_memory=GB)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    def make(files: dict[str, str]) -> Path:
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return tmp_path

    return make


@pytest.fixture
def cuda_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_torch_is_cpu_only", lambda: False)


def with_gpus(*gpus: Gpu) -> Machine:
    return Machine(cpu_flags=frozenset(), physical_cores=2, available_memory=GB, gpus=gpus)


def cpuinfo(*cores: tuple[int, int, int]) -> str:
    """Blocks for (processor, socket, core)."""
    return "\n".join(
        f"processor\t: {number}\nphysical id\t: {socket}\ncore id\t\t: {core}\nflags\t\t: fpu avx2 avx512_bf16\n"
        for number, socket, core in cores
    )


def test_the_machine_under_the_tests_can_be_probed() -> None:
    found = Machine.probe()

    assert 1 <= found.physical_cores <= (os.cpu_count() or 1)
    assert found.available_memory > 0


def test_cpu_flags_are_read(root: Root) -> None:
    assert cpu_flags(root({"proc/cpuinfo": cpuinfo((0, 0, 0))})) == {"fpu", "avx2", "avx512_bf16"}


def test_hyperthreads_of_one_core_count_once(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    folder = root({"proc/cpuinfo": cpuinfo((0, 0, 0), (1, 0, 0), (2, 1, 0), (3, 1, 0), (4, 1, 1))})

    assert physical_cores(folder) == 2


def test_cores_without_topology_are_counted_as_they_are(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})

    assert physical_cores(root({"proc/cpuinfo": "processor\t: 0\n\nprocessor\t: 1\n\nprocessor\t: 2\n"})) == 2


@pytest.mark.parametrize(
    "files",
    [
        {"proc/self/cgroup": "0::/pod\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"},
        {
            "proc/self/cgroup": "2:cpu,cpuacct:/pod\n",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "150000\n",
            "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
        },
    ],
    ids=["v2", "v1"],
)
def test_a_cpu_quota_bounds_the_cores(root: Root, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    blocks = cpuinfo(*((number, 0, number) for number in range(4)))

    machine = root({"proc/cpuinfo": blocks, **files})
    assert physical_cores(machine) == 2
    assert allowed_cores(machine) == 4, "a quota of time leaves no core out"


MEMINFO = "MemTotal:       8388608 kB\nMemFree:        1048576 kB\nMemAvailable:   6291456 kB\n"


def test_available_memory_is_what_the_kernel_could_give(root: Root) -> None:
    assert available_memory(root({"proc/meminfo": MEMINFO})) == 6 * GB


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "sys/fs/cgroup/pod/memory.max": str(4 * GB),
            "sys/fs/cgroup/pod/memory.current": str(3 * GB),
            "sys/fs/cgroup/pod/memory.stat": f"anon 1\ninactive_file {2 * GB}\n",
            "sys/fs/cgroup/pod/box/memory.max": "max\n",
            "sys/fs/cgroup/pod/box/memory.current": str(3 * GB),
        },
        {
            "proc/self/cgroup": "4:memory:/pod\n0::/\n",
            "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": str(4 * GB),
            "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": str(3 * GB),
            "sys/fs/cgroup/memory/pod/memory.stat": f"inactive_file 0\ntotal_inactive_file {2 * GB}\n",
        },
    ],
    ids=["v2", "v1"],
)
def test_available_memory_respects_the_cgroup_and_counts_droppable_pages_as_free(
    root: Root, files: dict[str, str]
) -> None:
    assert available_memory(root({"proc/meminfo": MEMINFO, **files})) == 3 * GB


def test_gpus_are_read_from_nvidia_smi() -> None:
    answer = "NVIDIA H200, 143360, 142336, 9.0\nBroken, [N/A], [N/A], [N/A]\nTesla T4, 16384, 15360, 7.5\n"

    assert parse_gpus(answer) == [H200, OLD]


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ["A", "B"]), ("1", ["B"]), ("1,0", ["B", "A"]), ("", []), ("-1", []), ("GPU-uuid", ["A", "B"])],
)
def test_hidden_gpus_are_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, names: list[str]
) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'A, 10, 9, 8.0'\necho 'B, 10, 9, 8.0'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))

    found = Machine.probe(environ={} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})

    assert [gpu.name for gpu in found.gpus] == names


@pytest.mark.parametrize("flag", ["avx512_bf16", "amx_bf16"])
def test_auto_dtype_is_bf16_where_the_cpu_has_it(flag: str) -> None:
    fast = Machine(cpu_flags=frozenset({flag}), physical_cores=2, available_memory=GB)

    assert fast.dtype("auto", "cpu") == "bfloat16"
    assert PLAIN.dtype("auto", "cpu") == "float32"


def test_auto_dtype_follows_the_gpu_that_is_used() -> None:
    both = with_gpus(H200, OLD)

    assert both.dtype("auto", "cuda") == "bfloat16"
    assert both.dtype("auto", "cuda:1") == "float32"


def test_a_named_dtype_is_taken_where_it_can_work() -> None:
    assert PLAIN.dtype("bfloat16", "cpu") == "bfloat16"
    assert with_gpus(OLD).dtype("float16", "cuda") == "float16"
    with pytest.raises(ConfigError, match="float16 needs a GPU"):
        PLAIN.dtype("float16", "cpu")


@pytest.mark.usefixtures("cuda_torch")
def test_auto_device_is_a_gpu_where_there_is_one() -> None:
    assert with_gpus(H200).device("auto") == "cuda"
    assert PLAIN.device("auto") == "cpu"


@pytest.mark.usefixtures("cuda_torch")
def test_a_gpu_that_is_not_there_is_refused() -> None:
    assert with_gpus(H200).device("cuda:0") == "cuda:0"
    with pytest.raises(ConfigError, match=r"device: 'cuda:1' is not there; this process sees 1 NVIDIA GPU\."):
        with_gpus(H200).device("cuda:1")


def test_a_torch_without_cuda_uses_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_torch_is_cpu_only", lambda: True)

    assert with_gpus(H200).device("auto") == "cpu"
    with pytest.raises(ConfigError, match="needs a torch built for CUDA"):
        with_gpus(H200).device("cuda")


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="device: 'tpu' is not one of"):
        PLAIN.device("tpu")
