"""The Hugging Face cache and hub: which models are here, fetch one, remove one.

Only `look` and `fetch` use the network.

Models stay in Hugging Face's own cache (`HF_HUB_CACHE`): what other tools fetched is here too. `HF_ENDPOINT` and
`HF_TOKEN` are honoured by the library, whose parts load when they are first used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
from msgspec import Struct

from backends.errors import ConfigError

COMMIT = re.compile(r"^[0-9a-f]{40}$")

# Weights as safetensors, configuration, tokenizer, template; code is text here, and runs only with trust_remote_code.
WANTED = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.txt", "*.tiktoken", "*.py")
# The same weights again, in forms for other programs.
UNWANTED = ("original/*", "metal/*", "onnx/*", "openvino/*", "consolidated*.safetensors")


class CachedModel(Struct, frozen=True, kw_only=True):
    """A repo in the cache, at one revision. `size` is in bytes."""

    repo_id: str
    revision: str
    folder: Path
    size: int


class Download(Struct, frozen=True, kw_only=True):
    """What `fetch` will bring: bytes to come, and those that are here already."""

    repo_id: str
    revision: str
    commit: str
    total_bytes: int
    missing_bytes: int

    def present_bytes(self) -> int:
        """Bytes in the cache now, unfinished files too. Grows while `fetch` runs."""
        return sum(_size(file) for file in (cache_folder(self.repo_id) / "blobs").glob("*"))


def cache_folder(repo_id: str) -> Path:
    """Where the cache keeps a repo; it need not exist."""
    return Path(huggingface_hub.constants.HF_HUB_CACHE).expanduser() / f"models--{repo_id.replace('/', '--')}"


def snapshot(repo_id: str, revision: str | None = None) -> Path | None:
    """The cached files of a repo at a branch, tag or commit (default: main), or None. It may be incomplete."""
    folder, commit = cache_folder(repo_id), revision or "main"
    if not COMMIT.match(commit):
        ref = folder / "refs" / commit
        if not ref.is_file():
            return None
        commit = ref.read_text(encoding="utf-8").strip()
    found = folder / "snapshots" / commit
    return found if found.is_dir() else None


def cached() -> list[CachedModel]:
    """Models in the cache that have weights this engine reads, by name. Datasets and other repos are left out."""
    try:
        repos = huggingface_hub.scan_cache_dir().repos
    except huggingface_hub.CacheNotFound:
        return []
    return sorted(
        (
            CachedModel(
                repo_id=repo.repo_id,
                revision=", ".join(sorted(revision.refs)) or revision.commit_hash,
                folder=revision.snapshot_path,
                size=revision.size_on_disk,
            )
            for repo in repos
            if repo.repo_type == "model"
            for revision in repo.revisions
            if any(revision.snapshot_path.glob("*.safetensors"))
        ),
        key=lambda model: (model.repo_id, model.revision),
    )


def look(repo_id: str, revision: str | None = None) -> Download:
    """Ask the hub what a repo holds. Raises `ConfigError`: no such repo, no right to it, no network, no safetensors."""
    with _words(repo_id, revision):
        files = huggingface_hub.snapshot_download(
            repo_id, revision=revision, allow_patterns=[*WANTED], ignore_patterns=[*UNWANTED], dry_run=True
        )
    if not any(file.filename == "config.json" for file in files):
        raise ConfigError(f"model: {repo_id!r} has no config.json, so it is not a model that can be served.")
    if not any(file.filename.endswith(".safetensors") for file in files):
        raise ConfigError(
            f"model: {repo_id!r} has no safetensors; other weights (pickle, GGUF) are not fetched. Look for a version"
            " of it in safetensors, or download its .gguf file and name that."
        )
    return Download(
        repo_id=repo_id,
        revision=revision or "main",
        commit=files[0].commit_hash,
        total_bytes=sum(file.file_size or 0 for file in files),
        missing_bytes=sum(file.file_size or 0 for file in files if file.will_download),
    )


def fetch(download: Download) -> Path:
    """Download what is missing; a file appears in the cache when it is whole, and is not fetched twice. Shows nothing.

    Raises `ConfigError` when the hub, the network or the disk fail; calling it again goes on file by file.
    """
    with _words(download.repo_id, download.revision):
        return Path(
            huggingface_hub.snapshot_download(
                download.repo_id,
                revision=download.revision,
                allow_patterns=[*WANTED],
                ignore_patterns=[*UNWANTED],
            )
        )


def remove(repo_id: str) -> None:
    """Delete a repo from the cache, all its revisions."""
    info = huggingface_hub.scan_cache_dir()
    commits = [
        revision.commit_hash
        for repo in info.repos
        if repo.repo_type == "model" and repo.repo_id == repo_id
        for revision in repo.revisions
    ]
    info.delete_revisions(*commits).execute()


@contextmanager
def _words(repo_id: str, revision: str | None) -> Iterator[None]:
    """The library's errors as one line each, without its bars."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    try:
        with disable_progress_bars():
            yield
    except Exception as error:  # errors of its HTTP client come through too, whichever that is
        raise ConfigError(_reason(error, repo_id, revision)) from error


def _reason(error: BaseException, repo_id: str, revision: str | None) -> str:
    """What went wrong, for people: the library wraps the error that says it in others."""
    from huggingface_hub import errors

    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    for cause in causes:
        match cause:
            case errors.GatedRepoError():
                return f"model: {repo_id!r} is gated; accept its terms on its page, and set HF_TOKEN to your token."
            case errors.RepositoryNotFoundError():
                return f"model: the hub has no {repo_id!r}, or it is private and HF_TOKEN does not open it."
            case errors.RevisionNotFoundError():
                return f"revision: {repo_id!r} has no revision {revision!r}."
            case errors.OfflineModeIsEnabled():
                return f"model: {repo_id!r} cannot be fetched while HF_HUB_OFFLINE is set."
    words = str(causes[-1]).strip() or "no words"
    return f"model: {repo_id!r} cannot be fetched: {type(causes[-1]).__name__}: {words.splitlines()[0][:200]}"


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:  # renamed meanwhile
        return 0
