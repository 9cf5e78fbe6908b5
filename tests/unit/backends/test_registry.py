"""Backends by entry point, built from their tables, and found by model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backends import registry
from backends.base import BackendContext
from backends.errors import ConfigError, ModelNotFound, Unavailable
from backends.registry import Registry, backend_class, convert_options
from backends.scripted import ScriptedBackend, ScriptedOptions


def _build(tmp_path: Path, **tables: dict[str, Any]) -> Registry:
    return Registry.build(tables, tmp_path)


def _problem(tmp_path: Path, **tables: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        _build(tmp_path, **tables)
    return str(caught.value)


def test_a_type_is_found_by_its_entry_point() -> None:
    assert backend_class("scripted") is ScriptedBackend


def test_an_unknown_type_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r'"nope" is not a backend type; known: .*hf, .*scripted'):
        backend_class("nope")


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution of somebody else, `acme-laneway`, with a backend type `acme`; returns its module."""
    info = tmp_path / "acme_laneway-1.0.dist-info"
    info.mkdir()
    extras = 'Provides-Extra: fast\nRequires-Dist: Acme.Speed>=2; extra == "fast"\nProvides-Extra: acme\n'
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-laneway\nVersion: 1.0\n{extras}")
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\nacme = acme_{tmp_path.name}:AcmeBackend\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / f"acme_{tmp_path.name}.py"


def test_a_backend_of_another_package_is_found(plugin: Path) -> None:
    plugin.write_text("from backends.scripted import ScriptedBackend as AcmeBackend\n")

    assert backend_class("acme") is ScriptedBackend


@pytest.mark.parametrize(
    ("module", "extra"), [("acme_speed.fast", "fast"), ("something_else", "acme")], ids=["by need", "by type"]
)
def test_a_missing_extra_is_named(plugin: Path, module: str, extra: str) -> None:
    plugin.write_text(f"import {module}\n")

    with pytest.raises(ConfigError, match=rf"which is not installed; run: pip install 'acme-laneway\[{extra}\]'"):
        backend_class("acme")


def test_a_backend_that_is_broken_is_not_blamed_on_an_extra(plugin: Path) -> None:
    plugin.write_text("from backends.base import NoSuchThing\n")

    with pytest.raises(ConfigError, match="cannot be loaded: cannot import name 'NoSuchThing'"):
        backend_class("acme")


def test_an_entry_point_must_name_a_backend(plugin: Path) -> None:
    plugin.write_text("class AcmeBackend: pass\n")

    with pytest.raises(ConfigError, match="is no Backend: it lacks Options, create"):
        backend_class("acme")


def test_options_are_checked_under_the_name_of_their_table() -> None:
    options = convert_options(ScriptedBackend, "test", {"type": "scripted", "models": ["a"], "capacity": 2})

    assert options == ScriptedOptions(models=("a",), capacity=2)
    with pytest.raises(ConfigError, match=r"^backends\.test\.capacity: 0 is out of range; allowed: >= 1"):
        convert_options(ScriptedBackend, "test", {"type": "scripted", "capacity": 0})


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({}, "backends.local.type: missing"),
        ({"type": "nope"}, 'backends.local.type: "nope" is not a backend type'),
        ({"type": "scripted", "speed": 3}, "backends.local.speed: unknown option"),
    ],
)
def test_a_table_that_cannot_work_is_refused_by_path(tmp_path: Path, table: dict[str, Any], problem: str) -> None:
    assert _problem(tmp_path, local=table).startswith(problem)


def test_a_name_that_could_not_be_a_file_is_refused(tmp_path: Path) -> None:
    assert "a backend's name" in _problem(tmp_path, **{"../up": {"type": "scripted"}})


def test_two_backends_cannot_serve_one_model(tmp_path: Path) -> None:
    problem = _problem(tmp_path, a={"type": "scripted", "models": ["m"]}, b={"type": "scripted", "models": ["n", "m"]})

    assert problem.startswith('backends.b: serves the model "m", which backends.a serves already')


def test_a_model_is_resolved_to_its_backend(tmp_path: Path) -> None:
    built = _build(tmp_path, a={"type": "scripted", "models": ["m", "org/n"]}, b={"type": "scripted", "models": ["o"]})

    assert built.resolve("org/n") is built.backends["a"]
    assert built.resolve("o") is built.backends["b"]
    assert [card.id for card in built.models()] == ["m", "org/n", "o"]
    with pytest.raises(ModelNotFound, match="The model 'zzz' does not exist"):
        built.resolve("zzz")


async def test_all_start_and_all_stop(tmp_path: Path) -> None:
    built = _build(tmp_path, a={"type": "scripted", "models": ["m"]}, b={"type": "scripted", "models": ["n"]})

    await built.start()
    assert all(backend.health().ready for backend in built.backends.values())

    await built.stop()
    assert not any(backend.health().ready for backend in built.backends.values())


class _Unstartable(ScriptedBackend):
    async def start(self) -> None:
        raise Unavailable("no")

    async def stop(self) -> None:
        raise Unavailable("nor this")


async def test_when_one_cannot_start_the_others_are_stopped_again(tmp_path: Path) -> None:
    context = BackendContext(name="x", run_dir=tmp_path)
    good = ScriptedBackend.create(ScriptedOptions(models=("m",)), context)
    built = Registry({"good": good, "bad": _Unstartable.create(ScriptedOptions(models=("n",)), context)})

    with pytest.raises(Unavailable, match="no"):
        await built.start()

    assert not good.health().ready


async def test_when_one_cannot_stop_the_others_still_do(tmp_path: Path) -> None:
    context = BackendContext(name="x", run_dir=tmp_path)
    good = ScriptedBackend.create(ScriptedOptions(models=("m",)), context)
    built = Registry({"bad": _Unstartable.create(ScriptedOptions(models=("n",)), context), "good": good})
    await good.start()

    with pytest.raises(Unavailable, match="nor this"):
        await built.stop()

    assert not good.health().ready
