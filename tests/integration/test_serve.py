"""`laneway serve` from outside: start, answer, replace what dies, end, and refuse what cannot work."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from tests.integration.served import IN_TIME_S, LANEWAY, SCRIPTED, Serve, alive, eventually

HELLO = {"model": "scripted", "messages": [{"role": "user", "content": "hello there"}]}
KEY = "sk-never-to-be-shown"


def ask(address: str, **headers: str) -> httpx.Response:
    """One short chat."""
    return httpx.post(f"{address}/v1/chat/completions", json=HELLO, headers=headers, timeout=IN_TIME_S)


def answers(address: str) -> bool:
    """Whether a chat comes through now."""
    try:
        return ask(address).status_code == 200
    except httpx.HTTPError:
        return False


def laneway(*arguments: object, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    argv = (*LANEWAY, *map(str, arguments))
    return subprocess.run(argv, env=os.environ | environ, capture_output=True, text=True, timeout=IN_TIME_S)


def test_it_answers_an_openai_client_and_ends_on_sigterm_with_nothing_left(serve: Serve) -> None:
    served = serve()
    with OpenAI(base_url=f"{served.address}/v1", api_key="any", max_retries=0) as client:
        answer = client.chat.completions.create(**HELLO)  # type: ignore[call-overload]
    children = served.descendants()
    run_dir = Path(children[0].cmdline()[children[0].cmdline().index("--run-dir") + 1])
    mode = run_dir.stat().st_mode & 0o777

    code = served.end(signal.SIGTERM)

    assert answer.choices[0].message.content == "hello there"
    assert (code, mode) == (0, 0o700)
    assert alive(children) == []
    assert not run_dir.exists()


def test_the_start_says_what_is_served_where_and_what_to_try(serve: Serve) -> None:
    served = serve()

    assert "scripted" in served.output
    assert "open, without keys" in served.output
    assert f"curl {served.address}/v1/chat/completions" in served.output


def test_the_curl_it_suggests_works(serve: Serve) -> None:
    served = serve()
    suggested = served.output[served.output.index("  curl ") :]

    run = subprocess.run(["sh", "-c", suggested], capture_output=True, text=True, timeout=IN_TIME_S)

    assert "chat.completion" in run.stdout


def test_a_running_answer_is_finished_before_the_end(serve: Serve) -> None:
    served = serve()
    script = {"tokens": [" tick"] * 10, "delay_s": 0.1}
    body = HELLO | {"stream": True, "script": script}
    with httpx.stream("POST", f"{served.address}/v1/chat/completions", json=body, timeout=IN_TIME_S) as stream:
        lines = stream.iter_lines()
        next(lines)
        served.process.send_signal(signal.SIGTERM)
        rest = list(lines)

    assert rest.count("data: [DONE]") == 1
    assert served.process.wait(IN_TIME_S) == 0


def test_a_second_interrupt_ends_everything_at_once(serve: Serve) -> None:
    served = serve()
    children = served.descendants()
    body = HELLO | {"stream": True, "script": {"tokens": ["a", "b"], "delay_s": 600}}
    with httpx.stream("POST", f"{served.address}/v1/chat/completions", json=body, timeout=IN_TIME_S) as stream:
        lines = stream.iter_lines()
        next(lines)
        served.process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            served.process.wait(0.5)

        assert served.end(signal.SIGINT) == 130

    assert alive(children) == []


def test_kill_of_the_parent_leaves_no_process_after_a_second(serve: Serve) -> None:
    served = serve()
    children = served.descendants()
    assert children

    served.end(signal.SIGKILL)

    eventually(lambda: alive(children) == [], "all children are gone", within_s=1)


def test_a_killed_front_is_replaced_on_the_same_port(serve: Serve) -> None:
    served = serve()
    front = served.child("gateway.front")

    front.kill()
    eventually(lambda: front.pid not in [child.pid for child in served.descendants()], "the front is gone")

    eventually(lambda: answers(served.address), "a new front answers")
    assert "front (pid" in served.log
    assert "ended by signal SIGKILL; start 2 follows" in served.log


def test_a_taken_port_is_said_in_one_line_with_exit_code_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = tmp_path / "laneway.toml"
        config.write_text(SCRIPTED)

        run = laneway("serve", "--config", config, "--port", port)

    assert run.returncode == 2
    assert run.stderr == (
        f"error: server.port: {port} is taken on 127.0.0.1; stop what listens there, or choose another: --port\n"
    )


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"LANEWAY_SERVER__PORT": "99999"}, "server.port: 99999"),
        ({"LANEWAY_SERVER__HOST": "0.0.0.0"}, "there is no key"),
        ({"LANEWAY_BACKENDS__TEST__CAPACITI": "1"}, "backends.test.capaciti: unknown option"),
        ({"LANEWAY_BACKENDS__TEST__TYPE": "nothing"}, "backends.test.type"),
        ({"LANEWAY_BACKENDS__OTHER__URL": "x"}, "backends.other.type: missing"),
        ({"LANEWAY_LANES__BATCH__MAX_WAIT": "inf"}, "lanes.batch.max_wait: inf does not fit; allowed: finite numbers"),
        ({"LANEWAY_BACKENDS__TEST__MODELS": "1"}, "backends.test.models"),
        ({"LANEWAY_BACKENDS__LOCAL__MAX_NUM_SEQS": "0"}, "backends.local.max_num_seqs: 0"),
    ],
)
def test_what_cannot_work_is_said_without_a_traceback_with_exit_code_2(
    tmp_path: Path, environ: dict[str, str], words: str
) -> None:
    config = tmp_path / "laneway.toml"
    config.write_text(SCRIPTED)

    run = laneway("serve", "--config", config, **environ)

    assert (run.returncode, run.stdout) == (2, "")
    assert words in run.stderr
    assert "Traceback" not in run.stderr


def test_check_reports_settings_that_are_fine_and_starts_nothing(tmp_path: Path) -> None:
    config = tmp_path / "laneway.toml"
    config.write_text(SCRIPTED)

    run = laneway("serve", "--config", config, "--check")

    assert (run.returncode, run.stdout) == (0, "The settings are fine.\n")


def test_openapi_prints_the_document_of_the_routes() -> None:
    run = laneway("openapi")

    assert run.returncode == 0
    assert run.stdout.startswith("openapi: 3.")
    assert "/v1/chat/completions:" in run.stdout


def test_a_key_is_needed_and_never_shown(serve: Serve) -> None:
    served = serve(LANEWAY_AUTH__KEYS=KEY)
    commands = [" ".join(child.cmdline()) for child in served.descendants()]

    assert ask(served.address).status_code == 401
    assert ask(served.address, Authorization=f"Bearer {KEY}").status_code == 200
    assert "access   for those with a key" in served.output
    assert [text for text in (served.output, served.log, *commands) if KEY in text] == []


PLUGIN = '''
import sys
from typing import Annotated
from msgspec import Meta, Struct
from backends.base import ProcessSpec
from backends.errors import ConfigError
from backends.scripted import ScriptedBackend, ScriptedOptions

ENGINE = """
import os, sys, time
os.set_blocking(0, False)
file, behaviour, _ = sys.argv[1:]
if behaviour == "refuse":
    sys.exit(2)
while True:
    if behaviour != "hang" or not os.path.exists(file):
        open(file, "wb").write(os.urandom(8))
    try:
        if os.read(0, 1) == b"":
            sys.exit(1)
    except BlockingIOError:
        pass
    time.sleep(0.05)
"""

class Options(ScriptedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    behaviour: str = "live"

class Fake(ScriptedBackend):
    """The scripted backend, with an engine process beside it that behaves as told."""

    Options = Options

    @classmethod
    def check(cls, options, context):
        if options.behaviour == "never":
            raise ConfigError(f"backends.{context.name}.behaviour: never works")

    @classmethod
    def process(cls, options, context):
        beat = context.run_dir / f"{context.name}.beat"
        lanes = f"lanes={context.lanes['batch'].target_itl}"
        argv = (sys.executable, "-S", "-E", "-c", ENGINE, str(beat), options.behaviour, lanes)
        return ProcessSpec(argv=argv, heartbeat=beat, hang_after_s=1.0)
'''


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[str]:
    """A backend with a process of its own, as another package would bring it: an entry point on the path."""
    (tmp_path / "laneway_fake.py").write_text(PLUGIN)
    info = tmp_path / "laneway_fake-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: laneway-fake\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[laneway.backends]\nfake = laneway_fake:Fake\n")
    yield str(tmp_path)


def fake(behaviour: str) -> str:
    """A config with that backend."""
    return SCRIPTED.replace('"scripted"\nmodels', '"fake"\nmodels') + f'behaviour = "{behaviour}"\n'


def test_an_engine_lives_beside_the_front_and_is_replaced_alone(serve: Serve, plugin: str) -> None:
    served = serve(fake("live"), PYTHONPATH=plugin)
    engine, front = served.child("test.beat"), served.child("gateway.front")

    engine.kill()
    eventually(lambda: served.log.count("engine test started") == 2, "a new engine")

    assert served.child("gateway.front").pid == front.pid
    assert answers(served.address)


def test_an_engine_that_hangs_is_replaced(serve: Serve, plugin: str) -> None:
    served = serve(fake("hang"), PYTHONPATH=plugin)

    eventually(lambda: served.log.count("engine test started") >= 2, "a new engine")

    assert "did not move any more and was killed" in served.log


def test_kill_of_the_parent_takes_engine_and_front_along(serve: Serve, plugin: str) -> None:
    served = serve(fake("live"), PYTHONPATH=plugin)
    children = served.descendants()

    served.end(signal.SIGKILL)

    assert len(children) == 2
    eventually(lambda: alive(children) == [], "all children are gone", within_s=1)


def test_an_engine_that_refuses_its_settings_stops_the_start_with_exit_code_2(serve: Serve, plugin: str) -> None:
    served = serve(fake("refuse"), ready=False, PYTHONPATH=plugin)

    assert served.process.wait(IN_TIME_S) == 2
    assert "engine test cannot start with these settings" in served.log


def test_what_a_backend_finds_wrong_early_stops_the_start_before_any_process(serve: Serve, plugin: str) -> None:
    served = serve(fake("never"), ready=False, PYTHONPATH=plugin)

    assert served.process.wait(IN_TIME_S) == 2
    assert served.log == "error: backends.test.behaviour: never works\n"


def test_what_a_killed_parent_left_is_gone_after_the_next_start(serve: Serve) -> None:
    temporary = tempfile.mkdtemp(prefix="lw-", dir="/tmp")  # short enough for sockets
    try:
        serve(TMPDIR=temporary).end(signal.SIGKILL)
        (left,) = Path(temporary).iterdir()
        serve(TMPDIR=temporary)

        assert left not in Path(temporary).iterdir()
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def test_many_clients_are_served_while_a_front_is_replaced(serve: Serve) -> None:
    """Connections made meanwhile wait in the parent's socket; only what was in the old front fails."""
    served = serve()
    served.child("gateway.front").kill()
    statuses: list[int] = []
    threads = [threading.Thread(target=lambda: statuses.append(ask(served.address).status_code)) for _ in range(5)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(IN_TIME_S)

    assert statuses == [200] * 5


def test_an_engine_is_told_the_lanes_of_the_config(serve: Serve, plugin: str) -> None:
    served = serve(fake("live"), PYTHONPATH=plugin, LANEWAY_LANES__BATCH__TARGET_ITL="1.5")

    assert "lanes=1.5" in " ".join(served.child("test.beat").cmdline())
