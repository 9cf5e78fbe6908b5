"""POST /v1/responses, and the routes of stored responses, of which there are none."""

from __future__ import annotations

import functools

from litestar import HttpMethod, Request, Response, route
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler

from gateway.api.generating import Dialect
from gateway.errors import ResponseNotFound
from gateway.openai.responses import decode_response, in_words_of_responses
from gateway.openai.wire import WireOptions

PATH = "/v1/responses"


def responses_dialect(options: WireOptions) -> Dialect:
    """The dialect of responses, as strict as `options` say."""
    decode = functools.partial(decode_response, options=options)
    return Dialect("responses", PATH, decode, "input", options, in_words_of_responses)


def stored_response_route() -> HTTPRouteHandler:
    """The handler: every id is told as unknown, whatever is wanted of it, and so is `compact`."""

    @route(
        [f"{PATH}/{{response_id:str}}", *(f"{PATH}/{{response_id:str}}/{what}" for what in ("cancel", "input_items"))],
        http_method=[HttpMethod.GET, HttpMethod.POST, HttpMethod.DELETE],
        sync_to_thread=False,
    )
    def stored(request: Request[object, object, State]) -> Response[bytes]:
        wanted = str(request.path_params["response_id"])[:200]
        raise ResponseNotFound(f"Response with id '{wanted}' not found. Responses are not stored here.")

    return stored
