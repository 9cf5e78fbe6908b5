"""GET /v1/models and GET /v1/models/{id}; they answer also while a backend is down."""

from __future__ import annotations

from litestar import HttpMethod, Request, Response, route
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler

from backends.errors import ModelNotFound
from gateway.api.exchange import Exchange
from gateway.openai.models import model_list, model_object
from gateway.routing import Routing

MODELS = "/v1/models"
JSON = "application/json"


def model_routes(routing: Routing) -> list[HTTPRouteHandler]:
    """The handlers."""

    @route(MODELS, http_method=[HttpMethod.GET, HttpMethod.HEAD], sync_to_thread=False)
    def list_models(request: Request[object, object, State]) -> Response[bytes]:
        key = Exchange.of(request.scope).key
        cards = [card for card in routing.cards() if key is None or key.may_use(card.id)]
        return Response(model_list(cards), media_type=JSON)

    @route(f"{MODELS}/{{model:path}}", http_method=[HttpMethod.GET, HttpMethod.HEAD], sync_to_thread=False)
    def read_model(request: Request[object, object, State]) -> Response[bytes]:
        # From the path itself: a `path` parameter would come as a file path. %2F was decoded by the server.
        model = request.scope["path"].partition(f"{MODELS}/")[2]
        key = Exchange.of(request.scope).key
        if key is not None and not key.may_use(model):
            raise ModelNotFound.named(model)
        return Response(model_object(routing.card(model)), media_type=JSON)

    return [list_models, read_model]
