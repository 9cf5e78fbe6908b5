"""The one table: exception → HTTP status, OpenAI's type and code, and when to come back. Families tell it their way."""

from __future__ import annotations

import logging
import math

from litestar import Request, Response
from litestar.datastructures import State
from litestar.exceptions import HTTPException, MethodNotAllowedException, NotFoundException
from msgspec import Struct

from backends import errors as backend
from gateway import errors as front
from gateway import log
from gateway.api.body import ClientLeft
from gateway.api.exchange import Exchange
from gateway.openai.errors import Fault

logger = logging.getLogger(f"{log.ROOT}.front")

INVALID = "invalid_request_error"
SERVER = "server_error"
UNAVAILABLE = "service_unavailable"
QUOTA = "insufficient_quota"
BROKEN = "The server had an error while processing your request. Sorry about that! You can retry your request."
JSON = (b"content-type", b"application/json")
LONGEST_RETRY_S = 60.0  # SDKs that are told more sleep for as long, or not at all
NO_RETRY = (b"x-should-retry", b"false")


class Row(Struct, frozen=True):
    """How an exception is told. `code` and `retry_after_s` hold where the exception has none; `message` always does."""

    status: int
    type: str
    code: str | None = None
    retry_after_s: float | None = None
    message: str | None = None


TABLE: dict[type[Exception], Row] = {
    ClientLeft: Row(499, INVALID),  # nobody reads it
    front.InvalidBody: Row(400, INVALID),
    front.BodyTooLarge: Row(413, INVALID, "request_too_large"),
    front.UnsupportedMedia: Row(415, INVALID, "unsupported_media_type"),
    front.NotAuthenticated: Row(401, INVALID),
    front.PermissionDenied: Row(403, "permission_error"),
    front.NotFound: Row(404, INVALID, "not_found"),
    front.ResponseNotFound: Row(404, INVALID),
    front.NoSuchObject: Row(404, INVALID),
    front.Conflict: Row(409, INVALID, "conflict"),
    front.LimitReached: Row(429, "requests", "rate_limit_exceeded"),
    front.BudgetSpent: Row(429, QUOTA, QUOTA),
    front.NotPriced: Row(403, "permission_error", "model_not_priced"),
    front.StoreUnavailable: Row(503, UNAVAILABLE, "store_unavailable", 1),
    front.LaneFull: Row(503, UNAVAILABLE, "overloaded", 1),
    front.WaitedTooLong: Row(503, UNAVAILABLE, "overloaded", 1),
    backend.InvalidRequest: Row(400, INVALID),
    backend.ModelNotFound: Row(404, INVALID, "model_not_found"),
    backend.Overloaded: Row(503, UNAVAILABLE, "overloaded", 1),
    backend.RateLimited: Row(429, "requests", "rate_limit_exceeded", 1),
    backend.DeadlineExceeded: Row(504, SERVER, "deadline_exceeded"),
    backend.Unavailable: Row(503, UNAVAILABLE, "backend_unavailable", 2),
    backend.NotFinite: Row(500, SERVER),
    backend.BackendFailed: Row(500, SERVER, message=BROKEN),
    Exception: Row(500, SERVER, message=BROKEN),
}


class Reply(Struct, frozen=True):
    """A whole response."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...]


def reply_to(error: Exception, exchange: Exchange, too_long_param: str | None = None) -> Reply:
    """The reply to `error`, noted in the log. `too_long_param` is the field that a prompt comes in on this route."""
    if isinstance(error, HTTPException):
        return _http_reply(error, exchange)
    row, fault = _row_of(error), fault_of(error, too_long_param)
    _report(error, row.status, exchange)
    headers = _when_to_come_back(error, row)
    if row.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    return _reply(fault, exchange, *headers)


def fault_of(error: Exception, too_long_param: str | None) -> Fault:
    """What `error` is in OpenAI's words, as `reply_to` tells it."""
    row = _row_of(error)
    param = getattr(error, "param", None)
    if isinstance(error, backend.PromptTooLong) and param is None:
        param = too_long_param
    return Fault(
        status=row.status,
        type=_type_of(error, row),
        message=row.message or str(error),
        param=param,
        code=getattr(error, "code", None) or row.code,
        limit=error.report if isinstance(error, front.LimitReached) else None,
    )


def _row_of(error: Exception) -> Row:
    return next(TABLE[cls] for cls in type(error).__mro__ if cls in TABLE)


def _type_of(error: Exception, row: Row) -> str:
    """OpenAI's type: of a rate limit it is what the limit counts, of a budget that the quota does not suffice."""
    if not isinstance(error, front.LimitReached):
        return row.type
    return {"tpm": "tokens", "tokens": QUOTA, "usd": QUOTA}.get(error.report.meter, row.type)


def _when_to_come_back(error: Exception, row: Row) -> list[tuple[bytes, bytes]]:
    """The time in both spellings, or that trying again is no use."""
    after_s = getattr(error, "retry_after_s", None) or row.retry_after_s
    if after_s is not None and after_s <= LONGEST_RETRY_S:
        return [(b"retry-after", b"%d" % math.ceil(after_s)), (b"retry-after-ms", b"%d" % math.ceil(after_s * 1000))]
    return [NO_RETRY] if row.status in (409, 429) else []


def answer_exception(request: Request[object, object, State], error: Exception) -> Response[bytes]:
    """Litestar's exception handler, for unknown routes and for every ordinary handler."""
    reply = reply_to(error, Exchange.of(request.scope))
    headers = {name.decode(): value.decode() for name, value in reply.headers if (name, value) != JSON}
    return Response(reply.body, status_code=reply.status, headers=headers, media_type="application/json")


def method_refused(exchange: Exchange, allow: str) -> Reply:
    """405 on a known path; `allow` are its methods, comma-separated."""
    wanted = [method for method in allow.split(", ") if method not in ("HEAD", "OPTIONS")]
    message = f"Not allowed to {exchange.method[:20]} on {exchange.path[:200]} (HINT: use {' or '.join(wanted)})."
    fault = Fault(status=405, type=INVALID, message=message, code="method_not_supported")
    return _reply(fault, exchange, (b"allow", allow.encode()))


def _reply(fault: Fault, exchange: Exchange, *headers: tuple[bytes, bytes]) -> Reply:
    """`fault` as the family of the route tells it."""
    family = exchange.family
    return Reply(family.status(fault), family.body(fault, exchange.shown_id), (JSON, *headers))


def _http_reply(error: HTTPException, exchange: Exchange) -> Reply:
    """What Litestar's router refuses."""
    if isinstance(error, MethodNotAllowedException):
        allow = (error.headers or {}).get("allow", "")
        return method_refused(exchange, ", ".join(sorted({*allow.split(", "), "OPTIONS"} - {""})))
    if isinstance(error, NotFoundException):
        message = f"Invalid URL ({exchange.method[:20]} {exchange.path[:200]})"
        return _reply(Fault(status=404, type=INVALID, message=message), exchange)
    _report(error, error.status_code, exchange)
    is_ours = error.status_code >= 500
    message = BROKEN if is_ours else error.detail
    return _reply(Fault(status=error.status_code, type=SERVER if is_ours else INVALID, message=message), exchange)


def _report(error: Exception, status: int, exchange: Exchange) -> None:
    exchange.error = type(error).__name__
    if status != 500:
        return
    told = log.fields(id=exchange.request_id, request_id=exchange.shown_id)
    if isinstance(error, backend.BackendFailed):
        logger.warning("a backend failed on a request: %s", error, extra=told)
    else:
        logger.error("unexpected error", exc_info=error, extra=told)
