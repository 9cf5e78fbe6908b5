"""Who may import whom: the tables below are the rule that docs/architecture.md states; changing one is a decision."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# All that the front may name of the backends: a concrete backend is found by entry point, never imported.
CONTRACT = {
    f"backends.{name}" for name in ("base", "types", "errors", "registry", "fairness", "options", "log", "parent")
}

# The policies meet in dispatch.py and do not know each other.
POLICIES = {f"gateway.{name}" for name in ("tenants", "limits", "lanes", "routing", "ledger", "metrics")}

# Library → the only modules that may import it, anywhere in the file.
OWNERS = {
    "litestar": ("gateway.api", "gateway.app"),
    **dict.fromkeys(("torch", "transformers", "tokenizers", "safetensors", "accelerate", "gguf"), ("backends.hf",)),
    "huggingface_hub": ("backends.hf",),
    "brotli": ("gateway.api.codings",),
    "zstandard": ("gateway.api.codings", "gateway.conformance"),
    "multipart": ("gateway.api.multipart",),
    **dict.fromkeys(
        ("httpx", "httpx2", "requests", "aiohttp", "urllib.request", "http.client"),
        ("backends.upstream", "gateway.conformance", "gateway.cli", "gateway.webhooks"),
    ),
}

# Files of the engine that decide or translate. They are tested without a model, and the front imports some of them.
MODEL_FREE = {
    f"backends.hf.{name}"
    for name in (
        *("sequence", "scheduler", "step", "block_pool", "step_time", "plan"),
        *("messages", "options", "threads", "engine", "loop", "server", "backend", "client"),
        *("encoder", "inputs", "embedding_engine"),
    )
}
TORCH_FREE = MODEL_FREE | {"backends.hf.tokenizer"}


def imports_of(path: Path) -> Iterator[str]:
    """Every module that a file names in an import, also inside functions and under TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; write the whole name"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def module_name(path: Path) -> str:
    """`gateway/api/chat.py` → `gateway.api.chat`; a package is named by its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def within(module: str, prefixes: str | tuple[str, ...] | set[str]) -> bool:
    """Whether `module` is one of `prefixes` or lies below one."""
    names = (prefixes,) if isinstance(prefixes, str) else prefixes
    return any(module == name or module.startswith(f"{name}.") for name in names)


IMPORTS = {
    module_name(path): sorted(set(imports_of(path)))
    for package in ("gateway", "backends")
    for path in sorted((ROOT / package).rglob("*.py"))
}
EDGES = [(module, name) for module, names in IMPORTS.items() for name in names]


def test_backends_never_import_the_gateway() -> None:
    wrong = [edge for edge in EDGES if within(edge[0], "backends") and within(edge[1], "gateway")]

    assert wrong == []


def test_the_gateway_names_only_the_contract_of_backends() -> None:
    named = [edge for edge in EDGES if within(edge[0], "gateway") and within(edge[1], "backends")]

    assert [edge for edge in named if not within(edge[1], CONTRACT)] == []


def test_policies_do_not_import_each_other() -> None:
    between = [edge for edge in EDGES if within(edge[0], POLICIES) and within(edge[1], POLICIES)]

    assert between == []


@pytest.mark.parametrize("library", OWNERS)
def test_a_library_is_imported_only_by_its_owners(library: str) -> None:
    importers = {module for module, name in EDGES if within(name, library)}

    assert {module for module in importers if not within(module, OWNERS[library])} == set()


@pytest.mark.parametrize("module", sorted(TORCH_FREE & IMPORTS.keys()))
def test_the_deciding_half_of_the_engine_does_not_import_torch(module: str) -> None:
    heavy = ("torch", "accelerate", "safetensors") + (("transformers", "tokenizers") if module in MODEL_FREE else ())

    assert [name for name in IMPORTS[module] if within(name, heavy)] == []


@pytest.mark.parametrize("module", ["gateway.app", "gateway.cli.main", "backends.scripted", "backends.hf.backend"])
def test_the_front_loads_without_torch_or_transformers(module: str) -> None:
    """The closure of what is imported, which the tables above cannot see."""
    code = f"import sys, {module}; print(sorted({{'torch', 'transformers'}} & sys.modules.keys()))"

    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)

    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr
