"""The command group: our own commands, and those that backends add."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, version
from pathlib import Path
from typing import Any

import pytest
import typer

from gateway.cli import main as cli


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of `laneway ARGUMENTS`."""
    monkeypatch.setattr(sys, "argv", ["laneway", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return int(ended.value.code or 0)


def point(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """Let an installed package add the command `added`."""
    added = EntryPoint("added", value, cli.GROUP)
    monkeypatch.setattr(cli, "entry_points", lambda group: (added,))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module named `added_command`, to be written."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "added_command", raising=False)
    return tmp_path / "added_command.py"


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_the_version_is_that_of_the_package(
    argument: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, argument) == 0
    assert capsys.readouterr().out == version("laneway") + "\n"


def test_a_function_of_a_backend_becomes_a_command(
    module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module.write_text("def hello(name: str = 'you') -> None:\n    print('hello', name)\n")
    point(monkeypatch, "added_command:hello")

    assert run(monkeypatch, "added", "--name", "all") == 0
    assert capsys.readouterr().out == "hello all\n"


def test_a_typer_app_of_a_backend_becomes_a_group(
    module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module.write_text(
        "import typer\napp = typer.Typer()\n"
        "@app.command()\ndef pull(): print('pulled')\n"
        "@app.command()\ndef remove(): print('removed')\n"
    )
    point(monkeypatch, "added_command:app")

    assert run(monkeypatch, "added", "remove") == 0
    assert capsys.readouterr().out == "removed\n"


def test_a_command_whose_extra_is_missing_says_which(
    module: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    point(monkeypatch, "backends.hf.gemm:gemm_rate")
    monkeypatch.delitem(sys.modules, "backends.hf.gemm", raising=False)

    code = run(monkeypatch, "added", "list", "--all")

    assert code == 2
    assert "needs the extra hf (torch is not installed); run: pip install 'laneway[hf]'" in capsys.readouterr().err


def test_help_lists_a_command_that_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point(monkeypatch, "no_such_module_here:command")

    assert run(monkeypatch, "--help") == 0
    assert "added" in capsys.readouterr().out


def leaves(group: Any, *words: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that is ours, with the words that call it."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from leaves(command, *words, name)
        elif name != "bench":
            yield (*words, name), command


def test_help_shows_every_default_that_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    told = []
    for words, command in leaves(typer.main.get_command(cli.app)):
        defaults = [found for option in command.params for found in re.findall(r"\[default: .+\]", option.help or "")]
        if defaults:
            assert run(monkeypatch, *words, "--help") == 0
            shown = capsys.readouterr().out
            assert [default for default in defaults if default not in shown] == []
            told += defaults
    sources = Path(cli.__file__).parent.glob("*.py")
    assert len(told) == sum(source.read_text().count("[default: ") for source in sources)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("serve", "--config", "nowhere.toml"), 2, "error: cannot read the config file nowhere.toml"),
        (("bench", "--scenario", "speed"), 1, "error: --scenario speed: choose from throughput, hol, prefix"),
        (("bench", "--concurrency", "0,x"), 1, "error: --concurrency 0,x: whole numbers from 1"),
        (("bench", "--json", "/no/such/folder/x.json"), 1, "error: --json: there is no folder /no/such/folder"),
        (("bench", "--prompt-min", "9", "--prompt-max", "8"), 1, "error: --prompt-min 9 is more than --prompt-max 8"),
        (("bench", "127.0.0.1:1"), 1, "error: no OpenAI-compatible server answers at 127.0.0.1:1"),
    ],
)
def test_what_cannot_work_is_one_line_without_a_traceback(
    arguments: tuple[str, ...],
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(monkeypatch, *arguments) == code

    error = capsys.readouterr().err
    assert error.startswith(words)
    assert error.count("\n") == 1
