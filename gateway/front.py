"""A front process, `python -m gateway.front`: `laneway serve` gives it a socket, a folder, and settings on stdin."""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import socket
import struct
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from backends.errors import ConfigError
from gateway import log
from gateway.app import create_app
from gateway.config import ServerOptions, Settings
from gateway.supervisor import EXIT_CONFIG

PR_SET_PDEATHSIG = 1
KEEP_ALIVE_S = 75  # longer than clients and proxies keep idle connections: whoever closes first loses requests


def main() -> None:
    """Serve until SIGTERM, or until the parent is gone."""
    arguments = _arguments()
    follow_parent()
    log.configure()
    settings = msgspec.json.decode(_first_line(), type=Settings)
    threading.Thread(target=_end_with_input, name="parent-watch", daemon=True).start()
    try:
        app = create_app(settings, arguments.run_dir)
    except ConfigError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(EXIT_CONFIG)
    listener = socket.socket(fileno=arguments.fd)
    uvicorn.Server(_server_config(app, settings.server, arguments.run_dir / "front.beat")).run(sockets=[listener])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m gateway.front", description=__doc__)
    parser.add_argument("--fd", type=int, required=True, help="the listening socket")
    parser.add_argument("--run-dir", type=Path, required=True, help="the parent's private folder")
    return parser.parse_args()


def follow_parent() -> None:
    """Ask the kernel (Linux) to end this process together with the thread that spawned it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _first_line() -> bytes:
    """Read with `os.read` alone: a thread that sits in a buffered reader breaks the interpreter's shutdown."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            sys.exit("the settings did not arrive: start this with `laneway serve`")
        line += piece
    return line


def _end_with_input() -> None:
    """The parent never closes the pipe; its end means that the parent is gone."""
    while os.read(0, 1024):
        pass
    os._exit(1)


def _server_config(app: Any, server: ServerOptions, heartbeat: Path) -> uvicorn.Config:
    def write_beat() -> None:
        heartbeat.write_bytes(struct.pack("<d", time.monotonic()))

    async def beat() -> None:
        write_beat()

    return uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
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


if __name__ == "__main__":
    main()
