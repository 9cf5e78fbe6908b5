"""The TOML file, the environment and the command line → `Settings`. Nothing else in the gateway reads the environment.

Later wins: defaults, file, environment, command line. The setting `server.port` is `LANEWAY_SERVER__PORT` in the
environment. Its text is read as a TOML value, else as plain text: `LANEWAY_BACKENDS__LOCAL__MODEL=org/model`.
"""

from __future__ import annotations

import ipaddress
import math
import os
import ssl
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from backends.errors import ConfigError
from backends.options import convert
from gateway.batches import BatchOptions
from gateway.files import FileOptions
from gateway.lanes import DEFAULT_LANES, LaneOptions
from gateway.limits import LimitOptions
from gateway.openai.wire import WireOptions
from gateway.store import StoreOptions
from gateway.tenants import AuthOptions, KeyRing

BUILT_IN_MODEL = "smollm2-135m-instruct"
LOCAL = "local"
SQLITE = "sqlite:///"
PREFIX = "LANEWAY_"
TABLES = ("server", "auth", "store", "files", "batches", "limits", "wire", "lanes", "backends")
TEXT_LISTS = (("auth", "keys"), ("server", "cors_origins"))

Table: TypeAlias = dict[str, object]


class ServerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[server]`: where the front listens and what it lets in.

    `port` 0 takes a free one. `root_path` is the prefix under which a proxy publishes the server, such as `/llm`;
    with `bare_paths` what is under `/v1` is also there without it.
    `shutdown_timeout` in seconds is how long running answers may go on after SIGTERM. `tls_cert` and `tls_key` are PEM
    files and come together. `docs` serves the description of the API to anybody. `log_level` is of the front and of
    the parent.
    """

    host: Annotated[str, Meta(min_length=1, max_length=255)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    workers: Annotated[int, Meta(ge=1, le=256)] = 1
    max_body_bytes: Annotated[int, Meta(ge=1024, le=1 << 31)] = 32 * 1024 * 1024
    cors_origins: tuple[str, ...] = ()
    root_path: Annotated[str, Meta(pattern=r"^(/[^/?#\s]+)*$")] = ""
    bare_paths: bool = False
    shutdown_timeout: Annotated[int, Meta(ge=0, le=3600)] = 30
    docs: bool = True
    tls_cert: str | None = None
    tls_key: str | None = None
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach `host`."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of the configuration. `backends` stays raw: each table is checked by the backend that reads it."""

    server: ServerOptions = ServerOptions()
    auth: AuthOptions = AuthOptions()
    store: StoreOptions = StoreOptions()
    files: FileOptions = FileOptions()
    batches: BatchOptions = BatchOptions()
    limits: LimitOptions = LimitOptions()
    wire: WireOptions = WireOptions()
    lanes: dict[str, LaneOptions]
    backends: dict[str, dict[str, object]]


def load_settings(
    path: Path | None = None,
    *,
    model: str | None = None,
    server: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Read everything. `path` None means `LANEWAY_CONFIG`, or no file; `model` and `server` are the command line's.

    Raises `ConfigError` naming the field, its value and what is allowed.
    """
    environ = os.environ if environ is None else environ
    file = path or (Path(environ["LANEWAY_CONFIG"]) if environ.get("LANEWAY_CONFIG") else None)
    tables = _read_file(file) if file else {}
    for trail, value in _read_environment(environ):
        _put(tables, trail, value)
    for name, value in (server or {}).items():
        _put(tables, ("server", name), value)
    _refuse_infinite(tables, "")
    folder = Path.cwd() if file is None else file.resolve().parent
    settings = Settings(
        server=convert(_table(tables, "server"), ServerOptions, "server"),
        auth=convert(_table(tables, "auth"), AuthOptions, "auth"),
        store=_beside(convert(_table(tables, "store"), StoreOptions, "store"), folder),
        files=_files_beside(convert(_table(tables, "files"), FileOptions, "files"), folder),
        batches=convert(_table(tables, "batches"), BatchOptions, "batches"),
        limits=convert(_table(tables, "limits"), LimitOptions, "limits"),
        wire=convert(_table(tables, "wire"), WireOptions, "wire"),
        lanes=_lanes(_table(tables, "lanes")),
        backends=_backends(_table(tables, "backends"), model),
    )
    _check_server(settings.server)
    KeyRing(settings.auth, settings.lanes)  # the front makes its own; here for what it refuses
    return settings


def tiktoken_cache_dir(environ: Mapping[str, str] | None = None) -> Path | None:
    """Where tiktoken keeps vocabularies (`TIKTOKEN_CACHE_DIR`, tiktoken's own variable), if that is set."""
    folder = (os.environ if environ is None else environ).get("TIKTOKEN_CACHE_DIR")
    return Path(folder) if folder else None


def _read_file(path: Path) -> Table:
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"cannot read the config file {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    for name in tables:
        if name not in TABLES:
            raise ConfigError(f"{path}: [{name}] is not a table that Laneway knows; known: {', '.join(TABLES)}")
    return tables


def _read_environment(environ: Mapping[str, str]) -> Iterator[tuple[tuple[str, ...], object]]:
    """Settings among the variables: those with `__`.

    Others that begin alike are left alone: Kubernetes sets `LANEWAY_PORT` and more for a service called `laneway`.
    """
    for name in sorted(environ):
        if not name.startswith(PREFIX) or "__" not in name:
            continue
        trail = tuple(name.removeprefix(PREFIX).lower().split("__"))
        if trail[0] not in TABLES or not all(trail):
            raise ConfigError(f"{name} sets nothing; the tables are {', '.join(TABLES)}, as in {PREFIX}SERVER__PORT")
        yield trail, _read_text(environ[name], is_list=trail in TEXT_LISTS)


def _read_text(text: str, *, is_list: bool) -> object:
    """A TOML value, else the text itself; a list may also be written `a,b`, and then its items are always text."""
    if is_list and not text.lstrip().startswith("["):
        return [part.strip() for part in text.split(",") if part.strip()]
    try:
        read = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    value = read["value"]
    is_plain = len(read) == 1 and isinstance(value, bool | int | float | str | list | dict)
    return value if is_plain else text


def _put(tables: Table, trail: tuple[str, ...], value: object) -> None:
    """Set one value at its place; a name in the file that differs only by case or `-` is the same name."""
    here, walked = tables, ""
    for name in trail[:-1]:
        name = next((known for known in here if known.lower().replace("-", "_") == name), name)
        walked = f"{walked}.{name}" if walked else name
        below = here.setdefault(name, {})
        if not isinstance(below, dict):
            raise ConfigError(f"{walked} is not a table, so {'.'.join(trail)} cannot be set")
        here = below
    here[trail[-1]] = value


def _refuse_infinite(value: object, path: str) -> None:
    """TOML has `inf` and `nan`; JSON, in which settings reach the other processes, has not."""
    members: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        members = ((f"{path}.{name}".lstrip("."), member) for name, member in value.items())
    elif isinstance(value, list):
        members = ((f"{path}[{at}]", member) for at, member in enumerate(value))
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{path}: {value} does not fit; allowed: finite numbers")
    for place, member in members:
        _refuse_infinite(member, place)


def _table(tables: Table, name: str, path: str = "") -> Table:
    value = tables.get(name, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{path or name} must be a table: [{path or name}]")
    return value


def _beside(store: StoreOptions, folder: Path) -> StoreOptions:
    """The store with whole paths: a relative one is meant from the config file's folder, or else from here."""
    path = store.url.removeprefix(SQLITE)
    is_file = path != store.url and not path.startswith((":", "?"))
    return msgspec.structs.replace(
        store,
        url=f"{SQLITE}{folder / path}" if is_file else store.url,
        spool=str(folder / store.spool),
        pepper_file=None if store.pepper_file is None else str(folder / store.pepper_file),
    )


def _files_beside(files: FileOptions, folder: Path) -> FileOptions:
    return files if files.folder is None else msgspec.structs.replace(files, folder=str(folder / files.folder))


def _lanes(tables: Table) -> dict[str, LaneOptions]:
    """The three lanes, each with the defaults that the config does not change."""
    for name in tables:
        if name not in DEFAULT_LANES:
            raise ConfigError(f"lanes.{name}: no such lane; known: {', '.join(DEFAULT_LANES)}")
    lanes = {
        name: convert(
            msgspec.structs.asdict(lane) | _table(tables, name, f"lanes.{name}"), LaneOptions, f"lanes.{name}"
        )
        for name, lane in DEFAULT_LANES.items()
    }
    if sum(lane.floor for lane in lanes.values()) > 1:
        floors = ", ".join(f"{name} {lane.floor:g}" for name, lane in lanes.items())
        raise ConfigError(f"lanes: the floors add up to more than 1 ({floors}); lower one")
    return lanes


def _backends(tables: Table, model: str | None) -> dict[str, Table]:
    """The backends of the config. `local` is the built-in engine with the built-in model unless it says otherwise."""
    backends = {name: dict(_table(tables, name, f"backends.{name}")) for name in tables}
    if model is not None:
        kept = backends.get(LOCAL, {})
        backends[LOCAL] = (kept if kept.get("type", "hf") == "hf" else {}) | {"type": "hf", "model": model}
    if LOCAL in backends or not backends:
        local = backends.setdefault(LOCAL, {})
        if local.setdefault("type", "hf") == "hf":
            local.setdefault("model", BUILT_IN_MODEL)
    return backends


def _check_server(server: ServerOptions) -> None:
    if server.workers > 1:
        raise ConfigError(
            f"server.workers: {server.workers} front processes would each count limits for themselves; "
            "shared limits are planned, until then allowed: 1"
        )
    for name, file, other in (
        ("tls_cert", server.tls_cert, server.tls_key),
        ("tls_key", server.tls_key, server.tls_cert),
    ):
        if file is None and other is not None:
            raise ConfigError(f"server.{name}: missing; tls_cert and tls_key come together")
        if file is not None and not Path(file).is_file():
            raise ConfigError(f"server.{name}: there is no file {file}")
    if server.tls_cert is not None:
        _check_certificate(server.tls_cert, server.tls_key)


def _check_certificate(cert: str, key: str | None) -> None:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password="")  # "": never asks for one
    except OSError as error:
        raise ConfigError(
            f"server.tls_cert: {cert} and the tls_key {key} cannot be used ({error.strerror}); "
            "allowed: a certificate and its key, both PEM, the key without a password"
        ) from None
