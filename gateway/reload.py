"""A changed configuration: what differs, what takes effect while serving, and the message that brings it to a front."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from backends.errors import ConfigError
from backends.options import is_secret
from gateway.config import Settings

# What a running front takes over. The rest needs a restart: sockets, stores, backends, and what engines were told.
LIVE = ("auth", "limits", "server.log_level")
PATIENCE_S = 10.0
LIVE_ENDINGS = (".max_queue", ".max_wait")


class Reload(Struct, frozen=True, kw_only=True):
    """From the parent to a front: the new settings, or why there are none."""

    settings: Settings | None = None
    pending: tuple[str, ...] = ()  # settings that differ in the file and take effect after a restart
    error: str | None = None


class Reloaded(Struct, frozen=True, kw_only=True):
    """What came of reading the configuration anew."""

    changed: tuple[Change, ...]
    pending: tuple[str, ...]


class Change(Struct, frozen=True, kw_only=True):
    """One setting that differs. `before` and `after` are None where it is absent; secrets are digests."""

    field: str
    before: str | None
    after: str | None
    is_live: bool


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[Change]:
    """What differs between two configurations, as `flatten` gives them."""
    return [
        Change(field=field, before=before.get(field), after=after.get(field), is_live=is_live(field))
        for field in sorted({*before, *after})
        if before.get(field) != after.get(field)
    ]


def is_live(field: str) -> bool:
    """Whether a front takes a change of this setting over without a restart."""
    return field.startswith(LIVE) or (field.startswith("lanes.") and field.endswith(LIVE_ENDINGS))


def with_live(before: Settings, after: Settings) -> Settings:
    """`before` with everything of `after` that takes effect without a restart."""
    lanes = {
        name: replace(lane, max_queue=after.lanes[name].max_queue, max_wait=after.lanes[name].max_wait)
        for name, lane in before.lanes.items()
    }
    server = replace(before.server, log_level=after.server.log_level)
    return replace(before, auth=after.auth, limits=after.limits, lanes=lanes, server=server)


def flatten(settings: Settings, pepper: bytes = b"") -> dict[str, str]:
    """Every setting by its whole name, its value as JSON. Of a secret there is a digest: enough to see a change.

    `pepper` keys the digests, so that whoever reads them cannot try words; it is needed where others may read.
    """
    flat: dict[str, str] = {}
    _flatten("", msgspec.to_builtins(settings), flat, pepper)
    return flat


def _flatten(path: str, value: Any, flat: dict[str, str], pepper: bytes) -> None:
    if isinstance(value, dict) and value:
        for name, member in value.items():
            _flatten(f"{path}.{name}".lstrip("."), member, flat, pepper)
    elif isinstance(value, list | tuple) and any(isinstance(member, dict) for member in value):
        for at, member in enumerate(value):
            _flatten(f"{path}[{at}]", member, flat, pepper)
    else:
        text = msgspec.json.encode(value).decode()
        flat[path] = f"secret:{_digest(text, pepper)}" if _hides(path, value) else text


def _digest(text: str, pepper: bytes) -> str:
    return hmac.new(pepper, text.encode(), hashlib.sha256).hexdigest()[:12]


def _hides(path: str, value: object) -> bool:
    return value not in (None, [], ()) and is_secret(path, value)


class Reloads:
    """The front's side: takes settings that the parent sends, and asks it to read them anew.

    `ask` makes the parent do that; None where there is no parent, as in a test.
    """

    def __init__(self, ask: Callable[[], None] | None = None) -> None:
        self._ask = ask
        self._apply: Callable[[Settings], list[Change]] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: list[asyncio.Future[Reloaded]] = []

    def start(self, apply: Callable[[Settings], list[Change]]) -> None:
        """From now on `apply` gets new settings, in the running loop."""
        self._loop, self._apply = asyncio.get_running_loop(), apply

    def receive(self, line: bytes) -> None:
        """A line from the parent, in any thread. What comes before `start` is dropped: the start knows it already."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._take, msgspec.json.decode(line, type=Reload))

    async def request(self) -> Reloaded:
        """Have the configuration read anew. Raises `ConfigError` for one that is wrong, or when nobody answers."""
        if self._ask is None:
            raise ConfigError("this server was not started by `laneway serve`, which alone can read the configuration")
        answer: asyncio.Future[Reloaded] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._ask()
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await answer
        except TimeoutError:
            raise ConfigError(f"the configuration was not read within {PATIENCE_S:g} s; the log may say why") from None
        finally:
            self._waiting.remove(answer)

    def _take(self, reload: Reload) -> None:
        error = None if reload.error is None else ConfigError(reload.error)
        changed: list[Change] = []
        if reload.settings is not None and self._apply is not None:
            changed = self._apply(reload.settings)
        for answer in self._waiting:
            if answer.done():  # it lost its patience in this moment
                continue
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(Reloaded(changed=tuple(changed), pending=reload.pending))
