"""Tells the operator's own endpoint about soft budgets: a signed POST from a thread of its own, retried a few times.

The body is JSON. With a secret, `X-Laneway-Signature: sha256=HEX` is the HMAC-SHA256 of the body.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import queue
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping

import msgspec

log = logging.getLogger("laneway.front")

MOST_WAITING = 1000  # more are dropped, with a line in the log: the endpoint has been away for long
TIMEOUT_S = 10.0
RETRIES_S = (1.0, 5.0, 30.0)
SIGNATURE = "X-Laneway-Signature"


class Webhook:
    """One endpoint. `send` never blocks and never raises."""

    def __init__(self, url: str, secret: str | None = None, retries_s: tuple[float, ...] = RETRIES_S) -> None:
        self._url, self._secret, self._retries_s = url, secret, retries_s
        self._waiting: queue.Queue[bytes | None] = queue.Queue(MOST_WAITING)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="laneway-webhook", daemon=True)

    def start(self) -> None:
        """Begin to deliver."""
        self._thread.start()

    def stop(self, within_s: float = 2.0) -> None:
        """Deliver what waits, without further retries, as far as `within_s` allows."""
        self._stopping.set()
        try:
            self._waiting.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(within_s)

    def send(self, event: Mapping[str, object]) -> None:
        """Queue an event."""
        try:
            self._waiting.put_nowait(msgspec.json.encode(event))
        except queue.Full:
            log.error("a webhook event was dropped: %d wait for the endpoint already", MOST_WAITING)

    def _run(self) -> None:
        while (body := self._waiting.get()) is not None:
            self._deliver(body)

    def _deliver(self, body: bytes) -> None:
        for pause_s in (*self._retries_s, None):
            problem = self._post(body)
            if problem is None:
                return
            if pause_s is None or self._stopping.is_set():
                log.error("a webhook event could not be delivered (%s): %s", problem, body.decode())
                return
            self._stopping.wait(pause_s)

    def _post(self, body: bytes) -> str | None:
        """One try; None, or what went wrong."""
        headers = {"content-type": "application/json", "user-agent": "laneway"}
        if self._secret is not None:
            digest = hmac.new(self._secret.encode(), body, hashlib.sha256).hexdigest()
            headers[SIGNATURE] = f"sha256={digest}"
        try:
            request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
            with _OPENER.open(request, timeout=TIMEOUT_S):
                return None  # every other status raises
        except urllib.error.HTTPError as error:
            error.close()
            return f"status {error.code}"
        except Exception as error:  # a reply or an address that makes no sense too: the next event is delivered anew
            return type(error).__name__


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the event to an address that nobody configured."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)
