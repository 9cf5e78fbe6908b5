"""Which processes a configuration needs: its listening socket, its engines, its front. Starts none of them."""

from __future__ import annotations

import errno
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from sqlalchemy import select

from backends.base import BackendContext, LaneRule, Supervised
from backends.errors import ConfigError
from backends.registry import Registry, class_of, convert_options
from gateway.config import ServerOptions, Settings
from gateway.connections import read_url, show
from gateway.reload import Reload
from gateway.store import Store
from gateway.supervisor import KILL_AFTER_S, ChildSpec
from gateway.tables import keys

BACKLOG = 2048
FRONT_HANGS_AFTER_S = 60.0
ENDING_S = 2.0  # for a server before this one, which is just ending
LEDGER_S = 12.0  # for what the ledger has still to write, when its store is slow


def listen(server: ServerOptions) -> socket.socket:
    """The listening socket, bound before anything is loaded; it stays open while a front is replaced.

    Raises `ConfigError` when the address is taken or not ours.
    """
    try:
        found = socket.getaddrinfo(server.host, server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError):
        raise ConfigError(
            f'server.host: "{server.host[:60]}" is no address of this machine and no known name'
        ) from None
    family, kind, proto, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(_cannot_listen(server, error)) from None
    listener.setblocking(False)
    return listener


def _cannot_listen(server: ServerOptions, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"server.port: {server.port} is taken on {server.host}; stop what listens there, or choose another: --port"
        )
    if error.errno == errno.EACCES:
        return f"server.port: {server.port} needs privileges that this user does not have; choose one above 1023"
    return f"server.host: cannot listen on {server.host}, port {server.port}: {error.strerror}"


def check_backends(settings: Settings, run_dir: Path) -> Registry:
    """Build every backend once, as the front will, so that what can never work is known before a process is started.

    Raises `ConfigError`. The result is not started.
    """
    for cls, options, context in _supervised(settings, run_dir):
        cls.check(options, context)
    return Registry.build(settings.backends, run_dir)


def engines(settings: Settings, run_dir: Path) -> list[ChildSpec]:
    """The processes of the backends that live in one of their own, in the order of the config."""
    specs = []
    for cls, options, context in _supervised(settings, run_dir):
        process = cls.process(options, context)
        specs.append(
            ChildSpec(
                name=f"engine {context.name}",
                argv=process.argv,
                heartbeat=process.heartbeat,
                hang_after_s=process.hang_after_s,
            )
        )
    return specs


def _supervised(settings: Settings, run_dir: Path) -> Iterator[tuple[type[Supervised], msgspec.Struct, BackendContext]]:
    lanes = {
        name: LaneRule(priority=lane.priority, floor=lane.floor, target_itl=lane.target_itl)
        for name, lane in settings.lanes.items()
    }
    for name, table in settings.backends.items():
        cls = class_of(name, table)
        if issubclass(cls, Supervised):
            context = BackendContext(name=name, run_dir=run_dir, lanes=lanes)
            yield cls, convert_options(cls, name, table), context


def front(settings: Settings, run_dir: Path, listener: socket.socket) -> ChildSpec:
    """A front process on the parent's socket. It reads its settings from standard input: argv is for all to see.

    `-P`: a folder called `gateway` where the user happens to be must not be what is imported.
    """
    drain_s = float(settings.server.shutdown_timeout)
    fd = listener.fileno()
    return ChildSpec(
        name="front",
        argv=(sys.executable, "-P", "-m", "gateway.front", "--fd", str(fd), "--run-dir", str(run_dir)),
        first_input=first_input(settings),
        pass_fds=(fd,),
        heartbeat=run_dir / "front.beat",
        hang_after_s=FRONT_HANGS_AFTER_S + drain_s,
        stop_within_s=drain_s + LEDGER_S + KILL_AFTER_S,
    )


def first_input(settings: Settings) -> bytes:
    """What a front reads first."""
    return msgspec.json.encode(settings) + b"\n"


def reload_line(reload: Reload) -> bytes:
    """What a front is told while it runs."""
    return msgspec.json.encode(reload) + b"\n"


def check_store(settings: Settings) -> bool:
    """Make or migrate the store, and see that a server that others reach needs keys. Whether this one does.

    Raises `ConfigError`.
    """
    store = Store.open(settings.store)
    try:
        needs_key = bool(settings.auth.keys or settings.auth.key) or _has_held_keys(store)
    finally:
        store.close()
    if not settings.server.is_loopback and not needs_key:
        raise ConfigError(
            f'server.host = "{settings.server.host}" can be reached from other machines, and there is no key; make one '
            "(laneway keys create), set one ([auth] keys = [...] in the config, or LANEWAY_AUTH__KEYS), "
            "or listen on 127.0.0.1"
        )
    return needs_key


def check_alone(settings: Settings) -> None:
    """See that no server runs on the store yet: each would count limits for itself, and none would keep them.

    Raises `ConfigError` naming it.
    """
    store = Store.open(settings.store)
    until = time.monotonic() + ENDING_S
    try:
        while store.living_servers() and time.monotonic() < until:
            time.sleep(0.05)
        for server in store.living_servers():
            raise ConfigError(
                f"store.url: {show(read_url(settings.store.url))} is in use by another server (pid {server.pid} on "
                f"{server.host.split()[0]}); stop that one, or give this one a store of its own"
            )
    finally:
        store.close()


def _has_held_keys(store: Store) -> bool:
    """Revoked and expired ones count: once there was a key, nobody without one comes in."""
    with store.reading() as connection:
        return connection.execute(select(keys.c.id).limit(1)).first() is not None
