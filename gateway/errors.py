"""What can go wrong in the front before or beside a backend. No HTTP here; `gateway/api/errors.py` is the one table.

GatewayError
├── InvalidBody        the request is not what the route expects
│   └── BodyTooLarge
├── UnsupportedMedia   a content type or encoding that cannot be read
├── NotAuthenticated   no key, or not a known one
├── PermissionDenied   a known key that may not do this
├── LaneFull           the lane's queue is at its bound
└── WaitedTooLong      the request waited `max_wait` in its lane and was never computed
"""

from __future__ import annotations


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


class LaneFull(GatewayError):
    """The lane's queue is at `max_queue`."""


class WaitedTooLong(GatewayError):
    """The request waited `max_wait` in its lane; nothing of it was computed."""
