"""Runs an example as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.integration.served import IN_TIME_S

EXAMPLES = Path(__file__).parents[2] / "examples"


def run_example(
    name: str, *arguments: str, address: str = "", model: str = "", python: Path = Path(sys.executable)
) -> str:
    """What it prints. Without `model` it finds one itself; `laneway` is the one that is being tested."""
    program = "sh" if name.endswith(".sh") else str(python)
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environ = {"OPENAI_BASE_URL": f"{address}/v1", "OPENAI_API_KEY": "any", "OPENAI_MODEL": model, "PATH": path}
    environ |= {"ANTHROPIC_BASE_URL": address, "ANTHROPIC_API_KEY": "any", "ANTHROPIC_MODEL": model}
    argv = [program, str(EXAMPLES / name), *arguments]
    done = subprocess.run(argv, env=os.environ | environ, capture_output=True, text=True, timeout=IN_TIME_S)
    assert done.returncode == 0, done.stderr
    return done.stdout
