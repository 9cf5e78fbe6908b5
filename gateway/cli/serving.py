"""What `laneway serve` does: settings checked, port taken, engines and front run by the supervisor, progress told."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from rich.console import Console

from backends.errors import ConfigError
from backends.log import configure
from gateway import processes
from gateway.cli.screen import stdout
from gateway.config import ServerOptions, Settings, load_settings
from gateway.connections import read_url, show
from gateway.reload import Reload, changes, flatten, with_live
from gateway.run_dir import run_dir
from gateway.supervisor import Child, Supervisor
from gateway.version import own_version

log = logging.getLogger("laneway.supervisor")

POLL_S = 0.5
PROBE_S = 5.0


def serve_until_stopped(config: Path | None, model: str | None, flags: Mapping[str, object], *, check: bool) -> int:
    """Serve what `config`, `model` and `flags` (of `[server]`) say; the exit code. With `check` only look at them.

    Raises `ConfigError`.
    """

    def load() -> Settings:
        return load_settings(config, model=model, server=flags)

    settings = load()
    with run_dir(settings.backends) as folder:
        has_keys = processes.check_store(settings)
        if check:
            processes.check_backends(settings, folder)
            stdout().print("The settings are fine.")
            return 0
        processes.check_alone(settings)
        with processes.listen(settings.server) as listener:
            return _serve(settings, load, folder, listener, needs_key=has_keys)


def _serve(
    settings: Settings, load: Callable[[], Settings], folder: Path, listener: socket.socket, *, needs_key: bool
) -> int:
    configure(settings.server.log_level)
    console = stdout()
    models = [card.id for card in processes.check_backends(settings, folder).models()]
    address = _address(settings.server, listener)
    _print_start(console, settings, address, models, needs_key=needs_key)
    front = Child(processes.front(settings, folder, listener))
    supervisor = Supervisor(
        engines=[Child(spec) for spec in processes.engines(settings, folder)], fronts=[front], listener=listener
    )
    announcement = _Announcement(console, settings, address, models, listener, needs_key=needs_key)
    return asyncio.run(_run(supervisor, announcement, console, _Reloader(front, settings, load, needs_key=needs_key)))


class _Reloader:
    """Reads the configuration anew and tells the front; what needs a restart is only named."""

    def __init__(self, front: Child, settings: Settings, load: Callable[[], Settings], *, needs_key: bool) -> None:
        self._front, self._settings, self._load = front, settings, load
        self._needs_key = needs_key

    def reload(self) -> None:
        """On SIGHUP. A configuration that is wrong changes nothing."""
        try:
            settings = self._load()
            # The front that runs and the next one agree: what needs a restart stays as it was for both.
            live = with_live(self._settings, settings)
            self._check_keys(live)
        except ConfigError as error:
            log.error("the configuration is not reloaded: %s", error)
            self._front.tell(self._front.spec.first_input, processes.reload_line(Reload(error=str(error))))
            return
        differences = changes(flatten(self._settings), flatten(settings))
        for change in differences:
            log.info("%s changed%s", change.field, "" if change.is_live else "; it takes effect after a restart")
        self._settings = live
        pending = tuple(change.field for change in differences if not change.is_live)
        line = processes.reload_line(Reload(settings=self._settings, pending=pending))
        self._front.tell(processes.first_input(self._settings), line)

    def _check_keys(self, live: Settings) -> None:
        """A server that needs a key never becomes open. The store is asked only where the config has no key left: a
        leaked one can be taken out also while the store is away. Raises `ConfigError`.
        """
        if live.auth.keys or live.auth.key:
            self._needs_key = True
        elif self._needs_key and not processes.check_store(live):
            raise ConfigError(
                "auth: the last key cannot be taken out while serving, since the server would be open to everybody "
                "then; make another first (laneway keys create), or restart"
            )


async def _run(supervisor: Supervisor, announcement: _Announcement, console: Console, reloader: _Reloader) -> int:
    """The supervisor with its signals: the first asks for an end in order, a second Ctrl-C ends everything at once.

    SIGHUP reads the configuration anew.
    """

    def interrupt() -> None:
        if supervisor.is_stopping:
            supervisor.kill()
        else:
            supervisor.stop()
            console.print("stopping; running answers may end first (Ctrl-C again: now)")

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, supervisor.stop)
    loop.add_signal_handler(signal.SIGINT, interrupt)
    loop.add_signal_handler(signal.SIGHUP, reloader.reload)
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


def _print_start(console: Console, settings: Settings, address: str, models: list[str], *, needs_key: bool) -> None:
    access = "for those with a key" if needs_key else "open, without keys, to this machine only"
    console.print(f"[bold]Laneway {own_version()}[/bold]")
    console.print(f"  models   {', '.join(models) or 'as the upstreams list them'}", markup=False)
    console.print(f"  address  {address}/v1", markup=False)
    console.print(f"  access   {access}")
    console.print(f"  store    {show(read_url(settings.store.url))}", markup=False)


class _Announcement:
    """Says when answers flow, and what to try first."""

    def __init__(
        self,
        console: Console,
        settings: Settings,
        address: str,
        models: list[str],
        listener: socket.socket,
        *,
        needs_key: bool,
    ) -> None:
        self._console, self._address, self._models = console, address, models
        self._needs_key = needs_key
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
