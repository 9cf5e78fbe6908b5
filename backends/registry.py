"""Finds backend classes by entry point, builds the configured ones, and knows which of them serves a model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import cast

from msgspec import Struct

from backends.base import Backend, BackendContext
from backends.errors import ConfigError, ModelNotFound
from backends.options import convert
from backends.types import ModelCard

GROUP = "laneway.backends"
MEMBERS = ("Options", "create", "start", "stop", "health", "generate")  # models and capacity may be set by __init__
BACKEND_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


def backend_class(type_name: str) -> type[Backend]:
    """The class behind `type = "..."`. Raises `ConfigError` naming the known types, or the extra that is missing."""
    points = {point.name: point for point in entry_points(group=GROUP)}
    point = points.get(type_name)
    if point is None:
        known = ", ".join(sorted(points)) or "none; is the package installed?"
        raise ConfigError(f'"{type_name[:60]}" is not a backend type; known: {known}')
    try:
        loaded = point.load()
    except ImportError as error:
        raise ConfigError(_import_advice(point, error)) from error
    missing = [member for member in MEMBERS if not hasattr(loaded, member)]
    if missing:
        raise ConfigError(f'backend type "{type_name}": {point.value} is no Backend: it lacks {", ".join(missing)}')
    return cast(type[Backend], loaded)


def class_of(name: str, table: Mapping[str, object]) -> type[Backend]:
    """The class of `[backends.NAME]`. Raises `ConfigError` that starts with the path of what is wrong."""
    path = f"backends.{name}"
    if not BACKEND_NAME.fullmatch(name):
        raise ConfigError(f"{path[:90]}: a backend's name is 1 to 64 letters, digits, - or _")
    type_name = table.get("type")
    if not isinstance(type_name, str):
        raise ConfigError(f'{path}.type: missing; say which kind of backend it is, such as type = "hf"')
    try:
        return backend_class(type_name)
    except ConfigError as error:
        raise ConfigError(f"{path}.type: {error}") from error


def convert_options(cls: type[Backend], name: str, table: Mapping[str, object]) -> Struct:
    """The checked `Options` of `[backends.NAME]`; `type` is not one of them. Raises `ConfigError` naming the field."""
    return convert({key: value for key, value in table.items() if key != "type"}, cls.Options, f"backends.{name}")


class Registry:
    """The configured backends by name, and the model ids they serve."""

    def __init__(self, backends: Mapping[str, Backend]) -> None:
        self.backends = backends
        self._by_model: dict[str, Backend] = {}
        owners: dict[str, str] = {}
        for name, backend in backends.items():
            for card in backend.models:
                if card.id in owners:
                    raise ConfigError(_twice(card.id, owners[card.id], name))
                owners[card.id] = name
                self._by_model[card.id] = backend

    @classmethod
    def build(cls, tables: Mapping[str, Mapping[str, object]], run_dir: Path) -> Registry:
        """Build every `[backends.NAME]` table; opens nothing. `run_dir` is the private folder for sockets.

        Raises `ConfigError` that starts with the path of what is wrong.
        """
        return cls({name: _create(name, table, run_dir) for name, table in tables.items()})

    def resolve(self, model: str) -> Backend:
        """The backend that serves `model`. Raises `ModelNotFound`."""
        backend = self._by_model.get(model)
        if backend is None:
            raise ModelNotFound.named(model)
        return backend

    def models(self) -> list[ModelCard]:
        """Every model, in the order of the config."""
        return [card for backend in self.backends.values() for card in backend.models]

    async def start(self) -> None:
        """Start all of them. When one fails, those that had started are stopped again and its error is raised."""
        started: list[Backend] = []
        try:
            for backend in self.backends.values():
                await backend.start()
                started.append(backend)
        except BaseException:
            await asyncio.gather(*(backend.stop() for backend in started), return_exceptions=True)
            raise

    async def stop(self) -> None:
        """Stop all of them, also when one fails at it; then raise the first failure."""
        ends = await asyncio.gather(*(backend.stop() for backend in self.backends.values()), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end


def _create(name: str, table: Mapping[str, object], run_dir: Path) -> Backend:
    cls = class_of(name, table)
    return cls.create(convert_options(cls, name, table), BackendContext(name=name, run_dir=run_dir))


def _twice(model: str, first: str, second: str) -> str:
    return (
        f'backends.{second}: serves the model "{model}", which backends.{first} serves already; '
        "give one of them another served_name or list of models"
    )


def _import_advice(point: EntryPoint, error: ImportError) -> str:
    distribution = point.dist.name if point.dist is not None else "laneway"
    extra = _extra_with(point, error.name or "")
    if extra is None:
        return f'backend type "{point.name}" cannot be loaded: {error}'
    return (
        f'backend type "{point.name}" needs {error.name}, which is not installed; '
        f"run: pip install '{distribution}[{extra}]'"
    )


def _extra_with(point: EntryPoint, module: str) -> str | None:
    """The extra that brings `module`: the one whose requirements name it, else the one called like the backend type."""
    if point.dist is None or not module:
        return None
    top = _normal(module.split(".", 1)[0])
    for requirement in point.dist.requires or ():
        named = re.match(r"[A-Za-z0-9._-]+", requirement)
        extra = re.search(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
        if named and extra and _normal(named.group()) == top:
            return extra.group(1)
    if top in (_normal(package) for package in ("backends", "gateway")):
        return None
    return point.name if point.name in (point.dist.metadata.get_all("Provides-Extra") or ()) else None


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
