"""Clients in JavaScript against a running Laneway: each `*.test.mjs` below this folder is one test, and each example.

`make node-clients` runs this module; `make test` leaves the folder out, because it needs Node and these packages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from shutil import copy
from subprocess import PIPE, STDOUT
from typing import Any

import pytest

from gateway.config import ServerOptions
from gateway.rules import Scope
from tests.integration.front.books import Books, bearer, chat, says
from tests.integration.front.front_server import CHAT, Front, running

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples" / "node"
FILES = sorted(str(path.relative_to(HERE)) for path in HERE.glob("*/*.test.mjs"))
IN_TIME_S = 60.0

Environ = dict[str, str]


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Books]:
    with closing(Books(tmp_path_factory.mktemp("books"))) as books:
        yield books


@pytest.fixture(scope="module")
def front(books: Books, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    settings = books.settings(server=ServerOptions(max_body_bytes=1 << 20))
    with running(settings, tmp_path_factory.mktemp("front")) as front:
        yield front


@pytest.fixture
def environ(front: Front, books: Books) -> Environ:
    """Where `server.mjs` finds the server, and a key for each thing that may happen to the holder of one.

    They are made anew for each file, since the rate that is reached has room again after a minute.
    """
    poor = books.made()
    books.accounts.set_limit(Scope("key", poor.row.id), "tokens", 20, period="prepaid")
    keys = {
        "all": books.made().secret,
        "standardLane": books.made(lanes=["standard"], default_lane="standard").secret,
        "twoASecond": books.made(rpm=120).secret,
        "rateReached": books.made(rpm=1).secret,
        "creditExhausted": poor.secret,
    }
    use_up(front, keys["rateReached"])
    use_up(front, keys["creditExhausted"], max_tokens=19, script=says(19))
    return {"LANEWAY_URL": front.url, "LANEWAY_KEYS": json.dumps(keys)}


def use_up(front: Front, secret: str, **fields: Any) -> None:
    """The one request that the key has."""
    with front.client(headers=bearer(secret)) as client:
        assert client.post(CHAT, json=chat(**fields)).status_code == 200


def run(*arguments: str, environ: Environ, folder: Path = HERE) -> str:
    """What Node prints; all of it is shown when it fails or does not end."""
    argv = ["node", *arguments]
    try:
        done = subprocess.run(
            argv, cwd=folder, env=os.environ | environ, stdout=PIPE, stderr=STDOUT, text=True, timeout=IN_TIME_S
        )
    except subprocess.TimeoutExpired as late:
        pytest.fail(f"not within {IN_TIME_S:g} s: {' '.join(argv)}\n{_text(late.stdout)}", pytrace=False)
    if done.returncode:
        pytest.fail(done.stdout, pytrace=False)
    return done.stdout


def _text(printed: str | bytes | None) -> str:
    """What was printed by a process that was ended is in bytes, whatever was asked for."""
    return printed.decode() if isinstance(printed, bytes) else printed or ""


def run_example(name: str, *arguments: str, front: Front, books: Books, folder: Path) -> str:
    """What it prints where a user would have it, beside its packages."""
    (folder / "node_modules").symlink_to(HERE / "node_modules")
    copy(EXAMPLES / name, folder)
    environ = {"OPENAI_BASE_URL": f"{front.url}/v1", "OPENAI_API_KEY": books.made().secret, "OPENAI_MODEL": ""}
    return run(name, *arguments, environ=environ, folder=folder)


@pytest.mark.parametrize("file", FILES)
def test_a_client_meets_what_it_expects(environ: Environ, file: str) -> None:
    run("--test-reporter=spec", file, environ=environ)


def test_the_example_of_the_openai_sdk_prints_the_answer_and_its_counts(
    front: Front, books: Books, tmp_path: Path
) -> None:
    printed = run_example("openai.mjs", "one two three", front=front, books=books, folder=tmp_path)

    assert printed == "one two three\n[3 prompt tokens, 4 completion tokens]\n"


def test_the_example_of_vercels_sdk_prints_its_answers_and_passes_the_history_on(
    front: Front, books: Books, tmp_path: Path
) -> None:
    printed = run_example("vercel.mjs", "one two three", front=front, books=books, folder=tmp_path)

    assert printed.startswith("one two three\n[3 input tokens, 4 output tokens]\none two three")
    assert printed.endswith("\n[9 input tokens, 10 output tokens]\n")


def test_the_packages_are_exact_and_come_from_the_public_registry_alone() -> None:
    asked = json.loads((HERE / "package.json").read_text(encoding="utf-8"))["dependencies"]
    lock = (HERE / "package-lock.json").read_text(encoding="utf-8")

    assert [version for version in asked.values() if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []
    assert set(re.findall(r'"resolved": "(https?://[^/]+/)', lock)) <= {"https://registry.npmjs.org/"}
