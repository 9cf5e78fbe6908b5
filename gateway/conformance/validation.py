"""The table of validation as cases: the refusal as the table says, the same of a stream, and the connection kept."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator

from gateway.conformance.case import Case, Need
from gateway.conformance.probe import MOST_TOKENS, Probe
from gateway.conformance.reply import Lacking, Mismatch, Reply, expect, same
from gateway.conformance.vectors import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    TYPE,
    Vector,
    capped_body,
    vectors,
)

GROUP = "validation"
JSON = {"content-type": "application/json"}
LONGEST_MESSAGE = 600
UNSUPPORTED = "unsupported_parameter"
ROUTES = {
    CHAT: (),
    COMPLETIONS: (Need.COMPLETIONS,),
    EMBEDDINGS: (Need.EMBEDDINGS,),
    RESPONSES: (Need.RESPONSES,),
    MESSAGES: (Need.MESSAGES,),
}
ROWS = {
    **dict.fromkeys((22, 23), (Need.WINDOW,)),
    **dict.fromkeys((30, 31, 32), (Need.LOGPROBS,)),
    **dict.fromkeys(range(36, 45), (Need.TOOLS,)),
    **dict.fromkeys(range(45, 51), (Need.FORMATS,)),
    **dict.fromkeys(range(57, 64), (Need.EXTENSIONS,)),
    67: (Need.TEXT_LOGPROBS,),
}


def validation_cases(window: int) -> Iterator[Case]:
    """One case for each vector of the table, for a model whose context holds `window` tokens."""
    places: Counter[int] = Counter()
    for vector in vectors(window):
        places[vector.number] += 1
        yield Case(
            id=f"V{vector.number}.{places[vector.number]}",
            title=vector.name.partition(" ")[2],
            group=GROUP,
            check=functools.partial(_check, vector),
            needs=(*ROUTES.get(vector.route, ()), *ROWS.get(vector.number, ())),
        )


async def _check(vector: Vector, probe: Probe) -> None:
    """With `stream` and without; a good request comes right after each, on the same connection."""
    target = probe.target
    model = (target.embedding_model or target.model) if vector.route == EMBEDDINGS else target.model
    cap = None if target.scripted else MOST_TOKENS
    for stream in (False, True) if vector.may_stream else (False,):
        body = vector.payload(model, stream=stream, strict=target.strict, cap=cap)
        reply = await probe.send(vector.route, body, method=vector.method, headers=JSON)
        _check_lacking(reply, vector)
        _check_reply(reply, vector, vector.expected_status(strict=target.strict), stream)
        route = vector.route if vector.route in ROUTES else CHAT
        after = await probe.send(route, capped_body(route, model, cap))
        expect(after.status == 200, "a good request right after it is answered with 200")
        same(after.connection, reply.connection, "the connection of the next request")


def _check_lacking(reply: Reply, vector: Vector) -> None:
    """A server may lack what a row is about, and say so before it looks closer."""
    if reply.status != 400 or vector.code == UNSUPPORTED:
        return
    try:
        error = reply.json["error"]
        is_lacking, message = error["code"] == UNSUPPORTED, str(error["message"])
    except (Mismatch, LookupError, TypeError):
        return
    if is_lacking:
        raise Lacking(f"the server refuses this: {message[:120]}")


def _check_reply(reply: Reply, vector: Vector, status: int, stream: bool) -> None:
    if status == 200:
        expect(reply.status == 200, "the status is 200")
        expect(reply.is_stream == stream, f"it is {'a stream' if stream else 'one object'}", reply.content_type)
        if vector.finish_reason is not None and not stream:
            same((reply.text(), reply.finish()), ("", vector.finish_reason), "text and finish_reason")
    elif vector.route == MESSAGES:
        _check_messages_error(reply, status)
    else:
        error = reply.error(status, type=TYPE, param=vector.param, code=vector.code)
        expect(len(error["message"]) < LONGEST_MESSAGE, f"the message is shorter than {LONGEST_MESSAGE} characters")


def _check_messages_error(reply: Reply, status: int) -> None:
    """Anthropic's envelope, which has neither param nor code."""
    same(reply.status, status, "the status")
    same((reply.json["type"], reply.json["error"]["type"]), ("error", TYPE), "the type, and that of the error")
    expect(isinstance(reply.json["error"]["message"], str), "the error has a message")
    expect("request_id" in reply.json, "the body has a request_id")
