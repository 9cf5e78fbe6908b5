"""`laneway serve`: check the settings, take the port, run engines and front under the supervisor, say what goes on."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from backends.log import configure
from gateway import processes
from gateway.cli.screen import stdout
from gateway.config import ServerOptions, Settings, load_settings
from gateway.run_dir import run_dir
from gateway.supervisor import Child, Supervisor
from gateway.version import own_version

POLL_S = 0.5
PROBE_S = 5.0


def serve(
    model: Annotated[
        str | None,
        typer.Argument(help="A Hugging Face repo id, a folder, a .gguf file or a built-in name.", show_default=False),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file; LANEWAY_CONFIG names one too.", show_default=False)
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one. [default: 8000]")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the settings and stop.")] = False,
) -> None:
    """Serve MODEL, or what the config names, on an OpenAI-compatible API.

    Without MODEL and without backends in the config it serves a small built-in chat model.
    """
    flags: dict[str, object] = {name: value for name, value in (("host", host), ("port", port)) if value is not None}
    settings = load_settings(config, model=model, server=flags)
    with run_dir(settings.backends) as folder:
        if check:
            processes.check_backends(settings, folder)
            stdout().print("The settings are fine.")
            return
        with processes.listen(settings.server) as listener:
            code = _serve(settings, folder, listener)
    raise typer.Exit(code)


def _serve(settings: Settings, folder: Path, listener: socket.socket) -> int:
    configure(settings.server.log_level)
    console = stdout()
    models = [card.id for card in processes.check_backends(settings, folder).models()]
    address = _address(settings.server, listener)
    _print_start(console, settings, address, models)
    supervisor = Supervisor(
        engines=[Child(spec) for spec in processes.engines(settings, folder)],
        fronts=[Child(processes.front(settings, folder, listener))],
        listener=listener,
    )
    return asyncio.run(_run(supervisor, _Announcement(console, settings, address, models, listener), console))


async def _run(supervisor: Supervisor, announcement: _Announcement, console: Console) -> int:
    """The supervisor with its signals: the first asks for an end in order, a second Ctrl-C ends everything at once."""

    def interrupt() -> None:
        if supervisor.is_stopping:
            supervisor.kill()
        else:
            supervisor.stop()
            console.print("stopping; running answers may end first (Ctrl-C again: now)")

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, supervisor.stop)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    announcing = asyncio.create_task(announcement.make())
    try:
        return await supervisor.run()
    finally:
        announcing.cancel()


def _address(server: ServerOptions, listener: socket.socket) -> str:
    """The URL under which people reach it; the port is the real one."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(server.host, server.host)
    scheme = "https" if server.tls_cert else "http"
    host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{listener.getsockname()[1]}{server.root_path}"


def _print_start(console: Console, settings: Settings, address: str, models: list[str]) -> None:
    keys = len(settings.auth.keys) + len(settings.auth.key)
    access = f"{keys} key{'s' * (keys != 1)}" if keys else "open, without keys, to this machine only"
    console.print(f"[bold]Laneway {own_version()}[/bold]")
    console.print(f"  models   {', '.join(models) or 'as the upstreams list them'}", markup=False)
    console.print(f"  address  {address}/v1", markup=False)
    console.print(f"  access   {access}")


class _Announcement:
    """Says when answers flow, and what to try first."""

    def __init__(
        self, console: Console, settings: Settings, address: str, models: list[str], listener: socket.socket
    ) -> None:
        self._console, self._address, self._models = console, address, models
        self._needs_key = bool(settings.auth.keys or settings.auth.key)
        self._probe_host, self._probe_port = _probe_target(listener)
        self._tls = _any_certificate() if settings.server.tls_cert else None

    async def make(self) -> None:
        """Wait for `/ready`, then print. Never raises for a server that is not there yet."""
        began_at = time.monotonic()
        self._console.print("  loading …")
        while True:
            if await self._is_ready():
                break
            await asyncio.sleep(POLL_S)
        self._console.print(f"[green]ready[/green] after {time.monotonic() - began_at:.1f} s. Try:\n")
        self._console.print(self._curl() + "\n", markup=False)

    async def _is_ready(self) -> bool:
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(PROBE_S):
                reader, writer = await asyncio.open_connection(self._probe_host, self._probe_port, ssl=self._tls)
                writer.write(b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                return b" 200 " in await reader.readline()
        except (OSError, TimeoutError):
            return False
        finally:
            if writer is not None:
                writer.close()

    def _curl(self) -> str:
        body = {
            "model": self._models[0] if self._models else "MODEL",
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
        }
        key = " -H 'authorization: Bearer YOUR_KEY'" if self._needs_key else ""
        return (
            f"  curl {self._address}/v1/chat/completions -H 'content-type: application/json'{key} \\\n"
            f"    -d '{json.dumps(body)}'"
        )


def _any_certificate() -> ssl.SSLContext:
    """The server is our own child on our own socket; its certificate names it as others see it."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _probe_target(listener: socket.socket) -> tuple[str, int]:
    """Where this process itself can reach the socket."""
    host, port = listener.getsockname()[:2]
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port
