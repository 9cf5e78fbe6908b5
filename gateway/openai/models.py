"""Models as `/v1/models` lists them."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from backends.types import ModelCard
from gateway.openai.text import to_json


class ModelObject(Struct, frozen=True, kw_only=True):
    """OpenAI's model object with vLLM's additions. `max_model_len` is in tokens, prompt and answer together."""

    id: str
    object: str = "model"
    created: int
    owned_by: str
    root: str
    parent: str | None = None
    max_model_len: int | None
    permission: tuple[()] = ()


class ModelList(Struct, frozen=True, kw_only=True):
    """The answer of `GET /v1/models`."""

    object: str = "list"
    data: tuple[ModelObject, ...]


def model_object(card: ModelCard) -> bytes:
    """The answer of `GET /v1/models/{id}`."""
    return to_json(_wire(card))


def model_list(cards: Iterable[ModelCard]) -> bytes:
    """The answer of `GET /v1/models`, in the order given."""
    return to_json(ModelList(data=tuple(_wire(card) for card in cards)))


def _wire(card: ModelCard) -> ModelObject:
    return ModelObject(
        id=card.id,
        created=card.created,
        owned_by=card.owned_by,
        root=card.root or card.id,
        max_model_len=card.max_model_len,
    )
