"""`laneway models` in a process of its own, against a hub on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from backends.hf.checkpoint import Checkpoint
from backends.hf.progress import download, stages
from tests import tiny_gguf, tiny_models
from tests.unit.backends.hf.stand_in_hub import COMMIT, StandInHub

Result: TypeAlias = "subprocess.CompletedProcess[str]"
Laneway: TypeAlias = Callable[..., Result]

SHARDS = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_models.save("llama", tmp_path_factory.mktemp("hub") / "tiny", max_shard_size="200KB")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "README.md").write_text("hello")
    return folder


@pytest.fixture
def hub(repo: Path) -> StandInHub:
    return StandInHub({"org/tiny": repo})


@pytest.fixture
def url(hub: StandInHub) -> Iterator[str]:
    with hub.running() as address:
        yield address


@pytest.fixture
def laneway(tmp_path: Path, url: str) -> Laneway:
    """Runs `laneway models …` with a cache of its own."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environ |= {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "LANEWAY_HOME": str(tmp_path / "home")}
    environ |= {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "COLUMNS": "200"}

    def run(*arguments: str, answer: str = "", **more: str) -> Result:
        return subprocess.run(
            [sys.executable, "-m", "gateway.cli.main", "models", *arguments],
            env=environ | more,
            input=answer,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return run


def listed(laneway: Laneway) -> dict[str, dict[str, object]]:
    return {model["name"]: model for model in json.loads(laneway("list", "--json").stdout)}


def test_a_pulled_repo_is_whole_listed_and_removed(laneway: Laneway, hub: StandInHub, tmp_path: Path) -> None:
    pulled = laneway("pull", "org/tiny")

    folder = tmp_path / "hf/hub/models--org--tiny/snapshots" / COMMIT
    assert (pulled.returncode, pulled.stdout) == (0, f"org/tiny is in {folder}\n"), pulled.stderr
    assert len(Checkpoint.read(folder).shards) == 3
    assert not (folder / "pytorch_model.bin").exists()
    assert "README.md" not in hub.fetched
    row = listed(laneway)["org/tiny"]
    assert (row["source"], row["revision"], row["dtype"], row["path"]) == ("hub", "main", "F32", str(folder))
    assert "org/tiny" in laneway("list").stdout

    removed = laneway("remove", "org/tiny", "--yes")

    assert removed.returncode == 0
    assert "org/tiny" not in listed(laneway)
    assert not folder.exists()


def test_pulling_again_fetches_nothing(laneway: Laneway, hub: StandInHub) -> None:
    laneway("pull", "org/tiny")
    hub.fetched.clear()

    assert laneway("pull", "org/tiny").returncode == 0
    assert hub.fetched == []


def test_a_pull_that_broke_off_goes_on_with_the_files_that_are_missing(laneway: Laneway, hub: StandInHub) -> None:
    hub.broken = {SHARDS[1]}
    broken = laneway("pull", "org/tiny")
    assert broken.returncode == 2
    assert broken.stderr.startswith("error: model: 'org/tiny' cannot be fetched: ")
    assert listed(laneway).get("org/tiny", {}).get("dtype") is None
    hub.broken = set()
    done = set(hub.fetched)
    hub.fetched.clear()

    assert laneway("pull", "org/tiny").returncode == 0

    assert SHARDS[1] in hub.fetched
    assert done.isdisjoint(hub.fetched)
    assert listed(laneway)["org/tiny"]["dtype"] == "F32"


def test_a_connection_that_breaks_is_taken_up_in_the_middle_of_the_file(tmp_path: Path) -> None:
    folder = tiny_models.save("llama", tmp_path / "repo")
    (folder / "notes.txt").write_bytes(bytes(11_000_000))  # the client keeps what it has in steps of 10 MiB
    hub = StandInHub({"org/tiny": folder})
    hub.cut_at = 10_900_000
    with hub.running() as url:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environ |= {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-m", "gateway.cli.main", "models", "pull", "org/tiny"]
        run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)

    assert run.returncode == 0, run.stderr
    assert hub.ranges == ["notes.txt"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("org/none",), "model: the hub has no 'org/none', or it is private"),
        (("org/gated",), "model: 'org/gated' is gated; accept its terms on its page, and set HF_TOKEN"),
        (("org/tiny", "--revision", "nope"), "revision: 'org/tiny' has no revision 'nope'."),
        (("org/pickles",), "model: 'org/pickles' has no safetensors"),
        (("org/text",), "model: 'org/text' has no config.json"),
        (("./nowhere",), "model: there is no folder './nowhere'"),
    ],
)
def test_what_cannot_be_pulled_is_said_in_one_line_with_exit_code_2(
    laneway: Laneway, hub: StandInHub, repo: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    for name, files in (("pickles", ("config.json", "pytorch_model.bin")), ("text", ("README.md", "tokenizer.json"))):
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).write_bytes((repo / file).read_bytes())
        hub.repos[f"org/{name}"] = tmp_path / name
    hub.repos["org/gated"] = repo
    hub.gated.add("org/gated")

    run = laneway("pull", *arguments)

    assert run.returncode == 2
    assert run.stderr.startswith(f"error: {words}")
    assert run.stderr.count("\n") == 1


def test_a_token_opens_a_gated_repo(laneway: Laneway, hub: StandInHub) -> None:
    hub.gated.add("org/tiny")

    assert laneway("pull", "org/tiny", HF_TOKEN=hub.token).returncode == 0


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"HF_HUB_OFFLINE": "1"}, "cannot be fetched while HF_HUB_OFFLINE is set"),
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "cannot be fetched: ConnectError"),
    ],
)
def test_no_network_is_said_in_one_line(laneway: Laneway, environ: dict[str, str], words: str) -> None:
    run = laneway("pull", "org/tiny", **environ)

    assert run.returncode == 2
    assert words in run.stderr
    assert run.stderr.count("\n") == 1


def test_a_model_that_cannot_chat_is_pulled_with_a_warning(laneway: Laneway, hub: StandInHub, tmp_path: Path) -> None:
    hub.repos["org/base"] = tiny_models.save("llama", tmp_path / "base")
    (tmp_path / "base" / "chat_template.jinja").unlink()

    run = laneway("pull", "org/base")

    assert run.returncode == 0
    assert "warning: it cannot be served yet" in run.stderr
    assert "no chat template" in run.stderr


def test_a_gguf_file_is_converted_listed_and_removed(laneway: Laneway, tmp_path: Path) -> None:
    file = tiny_gguf.write(tmp_path / "tiny.gguf")

    pulled = laneway("pull", str(file))

    assert pulled.returncode == 0, pulled.stderr
    assert f"Converting {file}: reading the weights" in pulled.stderr
    (name,) = (name for name, row in listed(laneway).items() if row["source"] == "gguf")
    assert name.startswith("tiny-")
    assert laneway("remove", str(file), "--yes").returncode == 0
    assert name not in listed(laneway)
    assert file.exists()
    assert [path.suffix for path in (tmp_path / "home/models").iterdir()] == [".lock"]


def test_removing_asks_first(laneway: Laneway) -> None:
    laneway("pull", "org/tiny")

    refused = laneway("remove", "org/tiny", answer="n\n")
    assert refused.returncode == 1
    assert "org/tiny" in listed(laneway)

    assert laneway("remove", "org/tiny", answer="y\n").returncode == 0
    assert "org/tiny" not in listed(laneway)


def test_only_what_is_here_can_be_removed(laneway: Laneway, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()

    for name in ("org/none", str(tmp_path / "mine")):
        run = laneway("remove", name, "--yes")
        assert (run.returncode, "to remove" in run.stderr) == (2, True)
    assert (tmp_path / "mine").is_dir()


def test_a_folder_needs_no_pull(laneway: Laneway, tmp_path: Path) -> None:
    run = laneway("pull", str(tmp_path))

    assert (run.returncode, "can be served as it is" in run.stderr) == (2, True)


def test_a_built_in_model_is_listed_before_its_first_use(laneway: Laneway) -> None:
    row = listed(laneway)["smollm2-135m-instruct"]

    assert (row["source"], row["path"]) == ("built-in", None)
    assert "not converted yet" in laneway("list").stdout


def test_a_built_in_model_that_is_a_folder_of_its_package_is_listed_and_left_to_pip(laneway: Laneway) -> None:
    found = listed(laneway)["all-minilm-l6-v2"]
    pulled = laneway("pull", "all-minilm-l6-v2")
    removed = laneway("remove", "all-minilm-l6-v2", "--yes")

    assert (found["source"], found["dtype"]) == ("built-in", "F32")
    assert str(found["path"]) in pulled.stdout and "warning" not in pulled.stderr
    assert removed.returncode == 2
    assert "pip uninstall" in removed.stderr
    assert Checkpoint.read(Path(str(found["path"]))).encoder is not None


def test_bars_follow_the_bytes_and_the_stages() -> None:
    from io import StringIO

    from rich.console import Console

    console = Console(file=StringIO(), force_terminal=True, width=100)
    with download("Fetching", 100, lambda: 50, console):
        pass
    with stages("Converting", console) as report:
        report(0.5, "half way")

    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "100/100 bytes" in shown
    assert "half way" in shown
