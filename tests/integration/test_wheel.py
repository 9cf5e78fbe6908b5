"""The built wheel in an empty environment with its base dependencies: no torch, and the scripted backend serves."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]
SOURCES = ("pyproject.toml", "README.md", "LICENSE", "gateway", "backends")
STARTS_WITHIN_S = 60
STOPS_WITHIN_S = 30


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that what an earlier build left in the tree cannot slip in."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(copy))
    return next(out.glob("laneway-*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment that holds the wheel and its base dependencies."""
    venv = tmp_path_factory.mktemp("clean") / "venv"
    run(sys.executable, "-m", "venv", str(venv))
    run(str(venv / "bin" / "pip"), "install", "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    return venv / "bin"


def run(*command: str, code: int = 0) -> str:
    """Run away from the source tree; its output is the failure's text when it ends otherwise than with `code`."""
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_QUIET": "1"}
    done = subprocess.run(command, cwd="/", env=os.environ | quiet, capture_output=True, text=True, timeout=400)
    assert done.returncode == code, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


@contextmanager
def serving(binary: Path, folder: Path) -> Iterator[str]:
    """`laneway serve` with the scripted backend on a free port of loopback; gives its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = folder / "laneway.toml"
    config.write_text(f'[server]\nport = {port}\n[backends.test]\ntype = "scripted"\n', encoding="utf-8")
    with (folder / "log").open("w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            [str(binary), "serve", "--config", str(config)], cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            wait_until_ready(f"http://127.0.0.1:{port}/ready", process, folder / "log")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            try:
                process.wait(STOPS_WITHIN_S)
            finally:
                process.kill()
    assert process.returncode == 0, (folder / "log").read_text(encoding="utf-8")


def wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    give_up_at = time.monotonic() + STARTS_WITHIN_S
    while process.poll() is None and time.monotonic() < give_up_at:
        try:
            if httpx.get(url, timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    pytest.fail(f"not ready; it said:\n{log.read_text(encoding='utf-8')}")


def test_the_wheel_holds_both_packages_their_type_marks_and_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert {"gateway/py.typed", "backends/py.typed", "gateway/cli/main.py", "backends/hf/engine.py"} <= set(names)
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"gateway", "backends"}


def test_the_scripted_backend_answers_without_torch(installed: Path, tmp_path: Path) -> None:
    run(str(installed / "python"), "-c", "import torch", code=1)

    with serving(installed / "laneway", tmp_path) as base_url:
        chat = {"model": "scripted", "messages": [{"role": "user", "content": "one two"}]}
        answer = httpx.post(f"{base_url}/chat/completions", json=chat, timeout=30)

    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "one two"


def test_a_model_without_the_engine_names_the_missing_extra(installed: Path) -> None:
    said = " ".join(run(str(installed / "laneway"), "serve", "--port", "0", code=2).split())

    assert "laneway[hf]" in said
    assert "Traceback" not in said


def test_a_command_of_the_engine_names_the_missing_extra(installed: Path) -> None:
    said = " ".join(run(str(installed / "laneway"), "models", "list", code=2).split())

    assert "laneway[hf]" in said
    assert "Traceback" not in said
