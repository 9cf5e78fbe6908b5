"""Which backend serves which model, and which tokenizes."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from backends.base import Backend
from backends.errors import InvalidRequest, ModelNotFound, UnsupportedParameter
from backends.registry import Registry
from backends.types import ModelCard
from gateway.routing import Routing


class Mute:
    """A backend without a tokenizer."""

    models = (ModelCard(id="mute", created=0),)


def routing(tmp_path: Path, *models: str, mute: bool = False) -> Routing:
    tables = {f"b{at}": {"type": "scripted", "models": [model]} for at, model in enumerate(models)}
    built = dict(Registry.build(tables, tmp_path).backends)
    return Routing(Registry({**built, "mute": cast(Backend, Mute())} if mute else built))


def test_a_model_leads_to_its_backend_by_name(tmp_path: Path) -> None:
    routes = routing(tmp_path, "one", "org/two")

    assert routes.choose("org/two").name == "b1"
    assert (routes.knows("one"), routes.knows("One")) == (True, False)
    with pytest.raises(ModelNotFound):
        routes.choose("")


def test_cards_keep_the_order_of_the_config(tmp_path: Path) -> None:
    routes = routing(tmp_path, "b", "a")

    assert [card.id for card in routes.cards()] == ["b", "a"]
    assert routes.card("a").id == "a"


def test_the_only_tokenizer_needs_no_model(tmp_path: Path) -> None:
    assert routing(tmp_path, "one", mute=True).tokenizer("")[0] == "one"
    with pytest.raises(InvalidRequest, match="model"):
        routing(tmp_path, "one", "two").tokenizer("")
    with pytest.raises(InvalidRequest, match="model"):
        routing(tmp_path, mute=True).tokenizer("")


def test_a_backend_without_a_tokenizer_says_so(tmp_path: Path) -> None:
    routes = routing(tmp_path, "one", mute=True)

    with pytest.raises(UnsupportedParameter) as caught:
        routes.tokenizer("mute")
    with pytest.raises(ModelNotFound):
        routes.tokenizer("nope")
    assert caught.value.param == "model"
