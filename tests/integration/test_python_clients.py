"""The clients of other projects, in their own environment, against a real server: tests/clients, a file a client."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config import Settings
from gateway.lanes import DEFAULT_LANES
from gateway.store import StoreOptions
from tests.integration.example import run_example
from tests.integration.front.front_server import Front, running

CLIENTS = Path(__file__).parents[1] / "clients"
ROOT = CLIENTS.parents[1]
PYTHON = Path(sys.prefix) / "clients" / "bin" / "python"
NAMES = ["scripted", "gpt-4o", "text-embedding-3-small"]  # some clients know OpenAI's models by name alone
IN_TIME_S = 120


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("front")
    settings = Settings(
        store=StoreOptions(url=f"sqlite:///{folder}/laneway.db"),
        lanes=dict(DEFAULT_LANES),
        backends={"test": {"type": "scripted", "models": NAMES, "matryoshka": True}},
    )
    with running(settings, folder) as front:
        yield front


@pytest.mark.timeout(IN_TIME_S + 30)
@pytest.mark.parametrize("file", sorted(path.name for path in CLIENTS.glob("test_*.py")))
def test_the_tests_of_a_client_pass(front: Front, file: str) -> None:
    assert PYTHON.exists(), f"there is no {PYTHON}; `make clients` makes this environment"
    environ = {"LANEWAY_URL": front.url, "PYTHONPATH": str(ROOT)}
    argv = [PYTHON, "-m", "pytest", "-q", "-c", CLIENTS / "pytest.ini", "--rootdir", CLIENTS, CLIENTS / file]
    done = subprocess.run(
        [str(each) for each in argv], env=os.environ | environ, capture_output=True, text=True, timeout=IN_TIME_S
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "asked", "printed"),
    [
        ("langchain_chat.py", "one two three", "one two three\n[3 prompt tokens, 4 completion tokens]\n"),
        ("llama_index_chat.py", "one two three", "one two three\n"),
        ("instructor_extract.py", '{"name": "Ada", "age": 36}', "Ada is 36\n"),
    ],
)
def test_an_example_prints_the_answer(front: Front, name: str, asked: str, printed: str) -> None:
    assert run_example(name, asked, address=front.url, model="scripted", python=PYTHON) == printed
