"""The engine that the contract's tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.tiny_engine import TinyEngine


@pytest.fixture(scope="session")
def tiny_engine(tiny_llama_dir: Path) -> Iterator[TinyEngine]:
    """Started once a run."""
    engine = TinyEngine(tiny_llama_dir)
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def minilm_engine(minilm_dir: Path) -> Iterator[TinyEngine]:
    """The built-in embedding model, started once a run."""
    engine = TinyEngine(minilm_dir)
    yield engine
    engine.stop()
