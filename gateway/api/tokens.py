"""POST /tokenize, /detokenize and /v1/responses/input_tokens, for backends that can."""

from __future__ import annotations

import msgspec
from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler

from backends.base import Tokenizing
from backends.errors import InvalidRequest, ModelNotFound
from gateway.api.body import off_loop_if_long, read_body
from gateway.api.exchange import Exchange
from gateway.openai.responses import decode_input_tokens, in_words_of_responses, input_tokens_body
from gateway.openai.tokens import decode_detokenize, decode_tokenize, detokenize_body, tokenize_body
from gateway.routing import Routing

JSON = "application/json"


def token_routes(routing: Routing, max_body_bytes: int) -> list[HTTPRouteHandler]:
    """The handlers."""

    async def body_of(request: Request[object, object, State]) -> bytes:
        return await read_body(Exchange.of(request.scope), request.receive, max_body_bytes)

    @post("/tokenize", status_code=200)
    async def tokenize(request: Request[object, object, State]) -> Response[bytes]:
        asked = await off_loop_if_long(decode_tokenize, await body_of(request))
        model, backend = tokenizer_for(request, routing, asked.model)
        tokens = await backend.tokenize(msgspec.structs.replace(asked, model=model))
        return Response(tokenize_body(tokens, routing.card(model).max_model_len), media_type=JSON)

    @post("/detokenize", status_code=200)
    async def detokenize(request: Request[object, object, State]) -> Response[bytes]:
        asked = await off_loop_if_long(decode_detokenize, await body_of(request))
        model, backend = tokenizer_for(request, routing, asked.model or "")
        return Response(detokenize_body(await backend.detokenize(model, asked.tokens)), media_type=JSON)

    @post("/v1/responses/input_tokens", status_code=200)
    async def input_tokens(request: Request[object, object, State]) -> Response[bytes]:
        asked = await off_loop_if_long(decode_input_tokens, await body_of(request))
        model, backend = tokenizer_for(request, routing, asked.model)
        try:
            num_tokens = await backend.count(msgspec.structs.replace(asked, model=model))
        except InvalidRequest as error:
            raise in_words_of_responses(error) from None
        return Response(input_tokens_body(num_tokens), media_type=JSON)

    return [tokenize, detokenize, input_tokens]


def tokenizer_for(request: Request[object, object, State], routing: Routing, asked: str) -> tuple[str, Tokenizing]:
    """As `Routing.tokenizer`. A model that the key may not use is told as one that there is not."""
    key = Exchange.of(request.scope).key
    if asked and key is not None and not key.may_use(asked):
        raise ModelNotFound.named(asked)
    model, backend = routing.tokenizer(asked)
    if key is not None and not key.may_use(model):
        raise ModelNotFound.named(asked)  # not by its name, which the caller did not know
    return model, backend
