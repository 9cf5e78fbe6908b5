"""POST /v1/messages and /v1/messages/count_tokens, in Anthropic's form."""

from __future__ import annotations

import msgspec
from litestar import Request, Response, post
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler

from backends.errors import InvalidRequest
from gateway.anthropic.messages import count_body, decode_count, decode_messages, in_words_of_messages
from gateway.api.body import off_loop_if_long, read_body
from gateway.api.exchange import Exchange
from gateway.api.generating import Dialect
from gateway.api.tokens import tokenizer_for
from gateway.openai.wire import WireOptions
from gateway.routing import Routing

PATH = "/v1/messages"
JSON = "application/json"


def messages_dialect(options: WireOptions) -> Dialect:
    """The dialect of messages. Of `options` only how unknown fields are told of matters: none is ever refused."""
    return Dialect("messages", PATH, decode_messages, "messages", options, in_words_of_messages)


def count_tokens_route(routing: Routing, max_body_bytes: int) -> HTTPRouteHandler:
    """The handler, for backends that can count."""

    @post(f"{PATH}/count_tokens", status_code=200)
    async def count_tokens(request: Request[object, object, State]) -> Response[bytes]:
        body = await read_body(Exchange.of(request.scope), request.receive, max_body_bytes)
        asked = await off_loop_if_long(decode_count, body)
        model, backend = tokenizer_for(request, routing, asked.chat.model)
        try:
            num_tokens = await backend.count(msgspec.structs.replace(asked.chat, model=model))
        except InvalidRequest as error:
            raise in_words_of_messages(error) from None
        if asked.tools is not None:
            num_tokens += await backend.count(msgspec.structs.replace(asked.tools, model=model))
        return Response(count_body(num_tokens), media_type=JSON)

    return count_tokens
