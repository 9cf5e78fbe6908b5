"""The control socket: questions to a running server from the same machine."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from backends.errors import ConfigError
from gateway.control import SOCKET, Control, NotRunning, Operation, ask
from gateway.errors import NotFound
from gateway.store import Store


async def echo(word: str = "") -> dict[str, str]:
    return {"said": word}


async def missing() -> None:
    raise NotFound("there is no such thing")


async def breaks() -> None:
    raise RuntimeError("/root/secret")


OPERATIONS: dict[str, Operation] = {"echo": echo, "missing": missing, "breaks": breaks}


@asynccontextmanager
async def serving(store: Store, folder: Path) -> AsyncIterator[Path]:
    path = folder / SOCKET
    control = Control(path, OPERATIONS)
    await control.start()
    try:
        with store.hold("run", path):
            yield path
    finally:
        await control.stop()


async def test_a_question_is_answered(store: Store, tmp_path: Path) -> None:
    async with serving(store, tmp_path):
        assert await asyncio.to_thread(ask, store, "echo", dict[str, str], word="hello") == {"said": "hello"}


async def test_only_its_own_user_may_ask(sqlite_store: Store, tmp_path: Path) -> None:
    async with serving(sqlite_store, tmp_path) as path:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("op", "arguments", "said"),
    [
        ("missing", {}, "no such thing"),
        ("unheard-of", {}, "does not know this question"),
        ("breaks", {}, "its log says more"),
        ("echo", {"nonsense": 1}, "its log says more"),
    ],
)
async def test_what_goes_wrong_is_told_without_details(
    sqlite_store: Store, tmp_path: Path, op: str, arguments: dict[str, object], said: str
) -> None:
    async with serving(sqlite_store, tmp_path):
        with pytest.raises(ConfigError, match=said) as caught:
            await asyncio.to_thread(lambda: ask(sqlite_store, op, dict[str, str], **arguments))
    assert "/root" not in str(caught.value)


async def test_garbage_and_hang_ups_harm_nobody(sqlite_store: Store, tmp_path: Path) -> None:
    def send(data: bytes, path: Path) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(4096)

    async with serving(sqlite_store, tmp_path) as path:
        assert b"does not know" in await asyncio.to_thread(send, b"garbage\n", path)
        assert b"does not know" in await asyncio.to_thread(send, b"", path)
        assert await asyncio.to_thread(ask, sqlite_store, "echo", dict[str, str]) == {"said": ""}


def test_without_a_server_nobody_answers(sqlite_store: Store) -> None:
    with pytest.raises(NotRunning):
        ask(sqlite_store, "echo", dict[str, str])


def test_a_server_that_just_ended_does_not_answer(sqlite_store: Store, tmp_path: Path) -> None:
    with sqlite_store.hold("run", tmp_path / "gone.sock"), pytest.raises(NotRunning):
        ask(sqlite_store, "echo", dict[str, str])
