"""A front process, `python -m gateway.front`: `laneway serve` gives it a socket, a folder, and settings on stdin."""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from backends.errors import ConfigError
from backends.log import configure
from backends.parent import end_with_input, end_with_parent
from gateway.app import create_app
from gateway.config import ServerOptions, Settings
from gateway.protocol import FrontProtocol
from gateway.reload import Reloads
from gateway.supervisor import EXIT_CONFIG

SETTLING_BEATS = 30  # seconds in which code and tokenizers are loaded
KEEP_ALIVE_S = 75  # longer than clients and proxies keep idle connections: whoever closes first loses requests


def main(create: Callable[[Settings, Path, Reloads], Any] = create_app) -> None:
    """Serve what `create` makes, until SIGTERM or until the parent is gone."""
    arguments = _arguments()
    end_with_parent()
    settings = msgspec.json.decode(_first_line(), type=Settings)
    reloads = Reloads(_ask_parent)
    end_with_input(reloads.receive)
    configure(settings.server.log_level)
    try:
        app = create(settings, arguments.run_dir, reloads)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(EXIT_CONFIG)
    listener = socket.socket(fileno=arguments.fd)
    uvicorn.Server(server_config(app, settings.server, arguments.run_dir / "front.beat")).run(sockets=[listener])


def _ask_parent() -> None:
    """`laneway serve` reads its configuration anew on this signal, and sends what it reads."""
    os.kill(os.getppid(), signal.SIGHUP)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gateway.front", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the listening socket")
    parser.add_argument("--run-dir", type=Path, required=True, help="the parent's private folder")
    return parser.parse_args()


def _first_line() -> bytes:
    """Read with `os.read` alone: the rest of standard input is watched the same way."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            sys.exit("the settings did not arrive: start this with `laneway serve`")
        line += piece
    return line


def server_config(app: Any, server: ServerOptions, heartbeat: Path) -> uvicorn.Config:
    """uvicorn for `app`, which writes `heartbeat` every second from its main loop."""
    file = os.open(heartbeat, os.O_WRONLY | os.O_CREAT, 0o600)
    beats = itertools.count()

    async def beat() -> None:
        """Written in place: a disk that is full by then stops no beat, and so no front."""
        os.pwrite(file, struct.pack("<d", time.monotonic()), 0)
        if next(beats) < SETTLING_BEATS:
            settle()

    return uvicorn.Config(
        app,
        loop="uvloop",
        http=FrontProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=server.shutdown_timeout,
        ssl_certfile=server.tls_cert,
        ssl_keyfile=server.tls_key,
        callback_notify=beat,
        timeout_notify=1,
    )


def settle() -> None:
    """What is loaded by now stays: no later collection walks it, which would hold up every stream for tens of ms."""
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    main()
