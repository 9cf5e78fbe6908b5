"""The matrix rate: a number, on the threads that were asked for."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest
import torch

from backends.hf import gemm


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A few calls are enough to see that it measures; the threads of the other tests come back."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(os, "environ", dict(os.environ))  # it sets some for its own process
    monkeypatch.setattr(gemm, "WARM_UP_CALLS", 1)
    monkeypatch.setattr(gemm, "CALLS", 2)
    yield
    torch.set_num_threads(threads)


def test_the_rate_is_printed_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    gemm.gemm_rate(threads=1, json=True)

    printed = json.loads(capsys.readouterr().out)
    assert printed["threads"] == 1
    assert printed["flops_s"] > 1e6


def test_the_rate_is_printed_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    gemm.gemm_rate(threads=1, json=False)

    assert capsys.readouterr().out.endswith("GFLOP/s in bf16 on 1 threads\n")
