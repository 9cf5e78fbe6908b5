"""Clients in JavaScript against a running Laneway: each `*.test.mjs` below this folder is one test.

`make node-clients` runs this module; `make test` leaves the folder out, because it needs Node and these packages.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gateway.rules import Scope
from tests.integration.front.books import Books, bearer, chat
from tests.integration.front.front_server import CHAT, Front, running

HERE = Path(__file__).parent
FILES = sorted(str(path.relative_to(HERE)) for path in HERE.glob("*/*.test.mjs"))
IN_TIME_S = 60.0

Environ = dict[str, str]


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environ]:
    """A server, as `server.mjs` finds it, with a key for each thing that may happen to the holder of a key."""
    folder = tmp_path_factory.mktemp("front")
    with closing(Books(folder)) as books:
        keys = {
            "all": books.made().secret,
            "standardLane": books.made(lanes=["standard"], default_lane="standard").secret,
            "twoASecond": books.made("busy", rpm=120).secret,
            "rateReached": books.made("eager", rpm=1).secret,
            "budgetSpent": books.made("poor").secret,
        }
        books.accounts.set_limit(Scope("tenant", "poor"), "tokens", 1, period="day")
        with running(books.settings(), folder) as front:
            use_up(front, keys["rateReached"])
            yield {"LANEWAY_URL": front.url, "LANEWAY_KEYS": json.dumps(keys)}


def use_up(front: Front, secret: str) -> None:
    """The one request a minute that the key has."""
    with front.client(headers=bearer(secret)) as client:
        assert client.post(CHAT, json=chat()).status_code == 200


def run(*arguments: str, environ: Environ, folder: Path = HERE) -> str:
    """What Node prints; all of it is shown when it fails."""
    done = subprocess.run(
        ["node", *arguments], cwd=folder, env=os.environ | environ, capture_output=True, text=True, timeout=IN_TIME_S
    )
    if done.returncode:
        pytest.fail(done.stdout + done.stderr, pytrace=False)
    return done.stdout


@pytest.mark.parametrize("file", FILES)
def test_a_client_meets_what_it_expects(environ: Environ, file: str) -> None:
    run("--test", "--test-reporter=spec", file, environ=environ)
