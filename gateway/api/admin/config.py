"""The configuration that holds, without its secrets, and reading it again."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from backends.errors import ConfigError
from backends.options import is_secret
from gateway.accounts.change import Change
from gateway.api.admin.deps import AdminDeps
from gateway.api.admin.endpoint import Call, Endpoint, Workers
from gateway.errors import Conflict
from gateway.tenants import VirtualKey

HIDDEN = "(not shown)"
SECRET_WORDS = ("authorization", "cookie", "credential", "headers", "passphrase", "passwd", "pepper")
PATHS = ("tls_key", "pepper_file")  # names that sound secret, of files that are

_INDEX = re.compile(r"\[[0-9]+\]")


class Setting(Struct, frozen=True, kw_only=True):
    """One setting that differs; values as JSON text, null where absent. A live one took effect without a restart."""

    field: str
    before: str | None
    after: str | None
    is_live: bool


class Reloaded(Struct, frozen=True, kw_only=True):
    """What came of reading the configuration again; `pending` takes effect at the next start."""

    changed: list[Setting]
    pending: list[str]


READ = Endpoint(
    method="GET",
    path="/config",
    name="readConfig",
    summary="The settings that hold now. Secrets are not shown.",
    answer=dict[str, Any],
)
RELOAD = Endpoint(
    method="POST",
    path="/config/reload",
    name="reloadConfig",
    summary="Read the configuration again, and take over what can change while serving.",
    answer=Reloaded,
)


class Config:
    """The handlers."""

    def __init__(self, deps: AdminDeps, workers: Workers) -> None:
        self._deps = deps
        self._workers = workers
        self.acts = ((READ, self.read_config), (RELOAD, self.reload_config))

    async def read_config(self, _: Call[None, None]) -> dict[str, Any]:
        """By table."""
        return without_secrets(msgspec.to_builtins(self._deps.settings()))

    async def reload_config(self, call: Call[None, None]) -> Reloaded:
        """Raises `Conflict` with what is wrong in the configuration; then nothing has changed."""
        await self._workers.run(lambda: self._note(call.caller))
        try:
            reloaded = msgspec.convert(await self._deps.reload(), Reloaded)
        except ConfigError as error:
            raise Conflict(str(error), code="invalid_config") from None
        return msgspec.structs.replace(reloaded, changed=[_without_secret(setting) for setting in reloaded.changed])

    def _note(self, caller: VirtualKey) -> None:
        """For the audit log, before it is done: nothing takes effect that nobody could trace."""
        with self._deps.store.changing() as connection:
            Change(connection, 0, caller.id, int(self._deps.clock())).note("config.reload", "config")


def without_secrets(settings: dict[str, Any]) -> dict[str, Any]:
    """`settings` with `HIDDEN` for every value that is secret by a name above it, and for secrets in addresses."""
    return {name: _shown(name, value) for name, value in settings.items()}


def _shown(path: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _shown(f"{path}.{name}", member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(path, member) for member in value]
    if value is None or isinstance(value, bool):
        return value
    if _is_hidden(path, value):
        return HIDDEN
    # The query of an address may hold a secret by any name.
    return value.split("?", 1)[0] if isinstance(value, str) and "://" in value else value


def _is_hidden(path: str, value: object) -> bool:
    """Judged by every name of the path, apart from those that people choose and the tables `[[auth.key]]`."""
    first, *names = _INDEX.sub("", path).lower().split(".")
    if first == "backends" or (first, *names[:1]) == ("auth", "key"):
        names = names[1:]
    if names[-1:] and names[-1] in PATHS:
        return False
    return any(is_secret(name, value) or any(word in name for word in SECRET_WORDS) for name in names)


def _without_secret(setting: Setting) -> Setting:
    return msgspec.structs.replace(
        setting, before=_text(setting.field, setting.before), after=_text(setting.field, setting.after)
    )


def _text(field: str, text: str | None) -> str | None:
    """A value as JSON text, which for a secret is its digest; neither is shown."""
    if text is None:
        return None
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        value = HIDDEN
    return msgspec.json.encode(_shown(field, value)).decode()
