"""What every test shares: no hub, a cache folder of their own, and a clock that only moves when told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Read by huggingface_hub and torch when they are first imported, here and in every process a test starts.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")


class FakeClock:
    """Instants in seconds that move only through `advance`; call it where code wants a `Callable[[], float]`."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(scope="session", autouse=True)
def laneway_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`LANEWAY_HOME` of this run, so that no test reads or fills the user's. Converted models stay in it."""
    home = tmp_path_factory.mktemp("laneway-home")
    before = os.environ.get("LANEWAY_HOME")
    os.environ["LANEWAY_HOME"] = str(home)
    yield home
    if before is None:
        del os.environ["LANEWAY_HOME"]
    else:
        os.environ["LANEWAY_HOME"] = before


@pytest.fixture(scope="session")
def smollm2_dir(laneway_home: Path) -> Path:
    """The built-in model, converted once a run: a folder that transformers and the engine read."""
    from backends.hf.catalog import DEFAULT_MODEL, Catalog

    return Catalog(laneway_home).prepare(DEFAULT_MODEL).folder


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama that computes in no time, with a context long enough for answers that never end, to be served."""
    from tests import tiny_models

    return tiny_models.save("llama", tmp_path_factory.mktemp("models") / "tiny-llama", max_model_len=16384)
