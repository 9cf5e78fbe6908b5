"""What can go wrong in a backend. Named for what happened; HTTP statuses live in `gateway/api/errors.py` alone.

BackendError
├── InvalidRequest            the request itself is wrong; sending it again cannot help
│   ├── UnsupportedParameter  this backend lacks the feature; never silently ignored
│   ├── PromptTooLong         prompt and answer do not fit the context, or can never fit the KV cache
│   └── ModelNotFound         no such model here
├── Overloaded                full now; come back after `retry_after_s`
│   └── RateLimited           it bounds how often it is asked, and that was reached
├── DeadlineExceeded          the caller's deadline passed before the answer was complete
├── Unavailable               the backend is not there now (starting, restarting, unreachable)
│   └── EngineDied            it went away while this request was in it
└── BackendFailed             it broke on this request
    └── NotFinite             it made numbers that JSON cannot carry
ConfigError                   a setting that can never work; stops the start
"""

from __future__ import annotations

from typing import Self


class BackendError(Exception):
    """Base of all. `message` may be shown to a client: no path, no traceback, no secret.

    `param` is the request field at fault in wire spelling, `code` OpenAI's machine-readable word for it.
    `retry_after_s` is when to come back, where that is known.
    """

    code: str | None = None
    param: str | None = None

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
        self.param = param if param is not None else self.param
        self.code = code if code is not None else self.code
        self.retry_after_s = retry_after_s


class InvalidRequest(BackendError):
    """The request is wrong; the same request can never succeed."""


class UnsupportedParameter(InvalidRequest):
    """The backend lacks a feature that the request asks for."""

    code = "unsupported_parameter"


class PromptTooLong(InvalidRequest):
    """The request can never fit. Keep the words `maximum context length`: agents match them to start compaction."""

    code = "context_length_exceeded"


class ModelNotFound(InvalidRequest):
    """No model of this name, or the caller may not use it."""

    code = "model_not_found"
    param = "model"

    @classmethod
    def named(cls, model: str) -> Self:
        """The same words whether it does not exist or is not for this caller, so that nobody learns which."""
        return cls(f"The model '{model[:200]}' does not exist or you do not have access to it.")


class Overloaded(BackendError):
    """No room now."""

    code = "overloaded"


class RateLimited(Overloaded):
    """The backend's own limit of requests or tokens was reached."""

    code = "rate_limit_exceeded"


class DeadlineExceeded(BackendError):
    """The deadline of the request passed."""

    code = "deadline_exceeded"


class Unavailable(BackendError):
    """The backend cannot be reached or is not ready."""

    code = "backend_unavailable"


class EngineDied(Unavailable):
    """The backend's process ended, or stopped moving, while the request was in it."""

    code = "engine_died"


class BackendFailed(BackendError):
    """The backend broke while working on this request."""


class NotFinite(BackendFailed):
    """The backend made a number that is infinite or not a number, where an answer must have one."""


class ConfigError(Exception):
    """A setting that cannot work. The message names the field, the value and what to do; shown without a traceback."""
