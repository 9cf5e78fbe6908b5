"""A front that stops: what runs may end in time, and what does not is told so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.config import Settings
from gateway.lanes import DEFAULT_LANES
from tests.integration.front.front_server import connect, eventually, read_until, running

SETTINGS = Settings(lanes=dict(DEFAULT_LANES), backends={"test": {"type": "scripted"}})


def test_a_running_answer_is_finished(tmp_path: Path) -> None:
    with running(SETTINGS, tmp_path) as front:
        client = connect(front, stream=True, tokens=["a", "b"], delay_s=0.2)
        read_until(client, b'"a"')

        front.server.should_exit = True

        assert b'"b"' in read_until(client, b"data: [DONE]")
    client.close()


@pytest.mark.parametrize("begun", [True, False])
def test_an_answer_that_takes_too_long_ends_with_an_error(tmp_path: Path, begun: bool) -> None:
    with running(SETTINGS, tmp_path, shutdown_timeout=1) as front:
        client = connect(front, stream=True, tokens=["a", "b"], fail={"after_tokens": int(begun), "kind": "hang"})
        eventually(lambda: front.count("running") == 1, "it runs")
        if begun:
            read_until(client, b'"a"')

        front.server.should_exit = True

        got = read_until(client, b"server_stopping")
    if begun:
        assert b"[DONE]" in got + client.recv(4096)
    else:
        assert got.startswith(b"HTTP/1.1 503")
        assert json.loads(got.partition(b"\r\n\r\n")[2])["error"]["type"] == "service_unavailable"
    client.close()
