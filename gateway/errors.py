"""What can go wrong in the front before or beside a backend. No HTTP here; `gateway/api/errors.py` is the one table.

GatewayError
├── InvalidBody        the request is not what the route expects
│   └── BodyTooLarge
├── UnsupportedMedia   a content type or encoding that cannot be read
├── NotAuthenticated   no key, or not a known one
├── PermissionDenied   a known key that may not do this
├── NotFound           an admin call names something that is not there
├── ResponseNotFound   a response that was made before, or an item of one, is asked for; none is stored
├── NoSuchObject       a file or a batch that the caller's tenant does not have
├── Conflict           an admin call, or an Idempotency-Key, contradicts what is there
├── LimitReached       a rate or a concurrency limit has no room now
│   ├── BudgetSpent    a budget has no room in its window
│   └── NeverFits      the request alone is larger than a whole limit
├── NotPriced          a money budget applies and the model has no price
├── StoreUnavailable   the store is away, and what is cached is not enough to decide
├── LaneFull           the lane's queue is at its bound
└── WaitedTooLong      the request waited `max_wait` in its lane and was never computed
"""

from __future__ import annotations

from msgspec import Struct

LEFT = "the client left"  # what a task is cancelled with then; any other cancel means that the server stops


class LimitReport(Struct, frozen=True, kw_only=True):
    """Why a limit refused, for machines. Amounts are in the meter's unit: requests, tokens or nano-dollars.

    `limit` is the rule's id. `retry_after_s` None means that waiting does not help.
    """

    scope: str
    limit: str
    meter: str
    amount: int
    used: int
    reserved: int
    asked: int
    retry_after_s: float | None


class GatewayError(Exception):
    """Base of all. `message` may be shown to a client; `param` and `code` are OpenAI's words where they exist."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s


class InvalidBody(GatewayError):
    """The body, or a field of it, is not what the route expects."""


class BodyTooLarge(InvalidBody):
    """More bytes than `server.max_body_bytes`, before or after decoding."""


class UnsupportedMedia(GatewayError):
    """A content type or content encoding that this route does not read."""


class NotAuthenticated(GatewayError):
    """No key was given, or none that is known."""


class PermissionDenied(GatewayError):
    """The key is known and may not do this."""


class NotFound(GatewayError):
    """An admin call names a tenant, key, limit or request that does not exist."""


class ResponseNotFound(GatewayError):
    """A client asks for a response that was made before, or for an item of one; none is stored."""


class NoSuchObject(GatewayError):
    """A client names a file or a batch that its tenant does not have."""


class Conflict(GatewayError):
    """What is asked contradicts what is there: a name that is taken, an Idempotency-Key used for another body."""


class LimitReached(GatewayError):
    """A limit has no room for the request now. `report` says which, and `retry_after_s` when it will have."""

    def __init__(
        self,
        message: str,
        report: LimitReport,
        *,
        code: str = "rate_limit_exceeded",
    ) -> None:
        super().__init__(message, code=code, retry_after_s=report.retry_after_s)
        self.report = report


class BudgetSpent(LimitReached):
    """A budget has no room for the request in its present window."""


class NeverFits(LimitReached):
    """The request asks for more than the whole limit, so waiting cannot help."""


class NotPriced(GatewayError):
    """A money budget applies, and the model has no price to count with."""


class StoreUnavailable(GatewayError):
    """The store cannot be reached, and what is cached does not suffice to decide."""


class LaneFull(GatewayError):
    """The lane's queue is at `max_queue`."""


class WaitedTooLong(GatewayError):
    """The request waited `max_wait` in its lane; nothing of it was computed."""
