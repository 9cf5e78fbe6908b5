"""What is on this machine to serve: built-in models, converted GGUF files, and the Hugging Face cache. No network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from backends.errors import ConfigError
from backends.hf import hub
from backends.hf.catalog import BUILTINS, Catalog
from backends.hf.checkpoint import Checkpoint

Source: TypeAlias = Literal["built-in", "gguf", "hub"]


class LocalModel(Struct, frozen=True, kw_only=True):
    """A model here. `name` is what `remove` takes. `dtype` is what most of its weights are stored in, or None where the
    folder is not whole. `size` is in bytes on disk. `folder` is None while a built-in model waits for its first use."""

    name: str
    source: Source
    revision: str | None = None
    dtype: str | None = None
    size: int = 0
    folder: Path | None = None


def inventory(catalog: Catalog) -> list[LocalModel]:
    """All of them: built-in, then converted, then the hub's."""
    return [*_builtins(catalog), *_converted(catalog), *_hub()]


def remove(catalog: Catalog, model: LocalModel) -> None:
    """Delete it from disk. A built-in model can be converted again at any time."""
    if model.source == "hub":
        hub.remove(model.name)
    elif model.folder is not None:
        catalog.remove(model.folder)


def _builtins(catalog: Catalog) -> Iterator[LocalModel]:
    for name in BUILTINS:
        try:
            source = catalog.resolve(name)
        except ConfigError:  # its package is not installed
            continue
        if source.gguf is not None:
            yield LocalModel(name=name, source="built-in", size=source.gguf.stat().st_size)
        else:
            yield _in_folder(name, "built-in", source.folder)


def _converted(catalog: Catalog) -> Iterator[LocalModel]:
    """Conversions of files, and those of built-in models that an older version left behind."""
    current = {catalog.builtin_folder(name) for name in BUILTINS}
    yield from (_in_folder(path.name, "gguf", path) for path in catalog.converted() if path not in current)


def _hub() -> Iterator[LocalModel]:
    for cached in hub.cached():
        dtype = _dtype(cached.folder)
        yield LocalModel(
            name=cached.repo_id,
            source="hub",
            revision=cached.revision,
            dtype=dtype,
            size=cached.size,
            folder=cached.folder,
        )


def _in_folder(name: str, source: Source, folder: Path) -> LocalModel:
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return LocalModel(name=name, source=source, dtype=_dtype(folder), size=size, folder=folder)


def _dtype(folder: Path) -> str | None:
    try:
        sizes = Checkpoint.read(folder).num_bytes
    except ConfigError:
        return None
    return max(sizes, key=lambda dtype: sizes[dtype], default=None)
