"""Model name → the backend that should answer. Choice only: calling it, and what happens then, is dispatch's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from backends.base import Backend, Tokenizing
from backends.errors import InvalidRequest, ModelNotFound, UnsupportedParameter
from backends.types import ModelCard


class Models(Protocol):
    """What routing needs of `backends.registry.Registry`."""

    @property
    def backends(self) -> Mapping[str, Backend]: ...

    def resolve(self, model: str) -> Backend: ...

    def models(self) -> list[ModelCard]: ...


class Target(Struct, frozen=True):
    """A backend by its name in the config."""

    name: str
    backend: Backend


class Routing:
    """Knows which backend serves which model."""

    def __init__(self, registry: Models) -> None:
        self._registry = registry
        self._names = {id(backend): name for name, backend in registry.backends.items()}

    def choose(self, model: str) -> Target:
        """Where a request for `model` goes. Raises `ModelNotFound`."""
        backend = self._registry.resolve(model)
        return Target(self._names[id(backend)], backend)

    def knows(self, model: str) -> bool:
        """Whether some backend serves `model`."""
        try:
            self._registry.resolve(model)
        except ModelNotFound:
            return False
        return True

    def cards(self) -> list[ModelCard]:
        """Every model that can be asked for, in the order of the config; also while its backend is down."""
        return self._registry.models()

    def card(self, model: str) -> ModelCard:
        """The card of `model`. Raises `ModelNotFound`."""
        self._registry.resolve(model)
        return next(card for card in self.cards() if card.id == model)

    def tokenizer(self, model: str) -> tuple[str, Tokenizing]:
        """The model and the backend that tokenizes for it; "" stands for the only one there is.

        Raises `ModelNotFound`; `UnsupportedParameter` for a backend without a tokenizer; `InvalidRequest` for "" where
        several backends have one.
        """
        if model:
            backend = self._registry.resolve(model)
            if isinstance(backend, Tokenizing):
                return model, backend
            raise UnsupportedParameter(f"The model '{model[:200]}' cannot tokenize here.", param="model")
        able = [backend for backend in self._registry.backends.values() if isinstance(backend, Tokenizing)]
        for backend in able if len(able) == 1 else ():
            if backend.models:
                return backend.models[0].id, backend
        raise InvalidRequest("you must provide a model parameter")
