"""What every test shares: no hub, a cache folder of their own, and a clock that only moves when told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gateway.store import Store, StoreOptions

if TYPE_CHECKING:
    from tests.stores import Postgres

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


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A running Postgres. A test that stops it may leave it stopped: the next to ask for a database starts it."""
    from tests.stores import Postgres

    server = Postgres()
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def postgres_url(postgres: Postgres) -> Iterator[str]:
    """A fresh database with the tables of the store."""
    url = postgres.create_database()
    yield url
    postgres.drop_database(url)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_options(request: pytest.FixtureRequest, tmp_path: Path) -> StoreOptions:
    """`[store]` of a fresh database: a test runs once for each that Laneway knows."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path}/laneway.db" if is_sqlite else request.getfixturevalue("postgres_url")
    return StoreOptions(url=url, spool=f"{tmp_path}/spool.db")


@pytest.fixture
def store(store_options: StoreOptions) -> Iterator[Store]:
    """A fresh store: a test runs once on SQLite and once on Postgres."""
    store = Store.open(store_options)
    yield store
    store.close()


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    """A fresh SQLite store, for tests where one database is enough."""
    store = Store.open(StoreOptions(url=f"sqlite:///{tmp_path}/laneway.db"))
    yield store
    store.close()


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
def minilm_dir(laneway_home: Path) -> Path:
    """The built-in embedding model: a folder that transformers and the engine read."""
    from backends.hf.catalog import EMBEDDING_MODEL, Catalog

    return Catalog(laneway_home).prepare(EMBEDDING_MODEL).folder


@pytest.fixture(scope="session")
def tiny_llama_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama that computes in no time, with a context long enough for answers that never end, to be served."""
    from tests import tiny_models

    return tiny_models.save("llama", tmp_path_factory.mktemp("models") / "tiny-llama", max_model_len=16384)
