"""HTTP as uvicorn speaks it, except that what is no HTTP, or has too long a head, is told in OpenAI's envelope too."""

from __future__ import annotations

import time

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gateway.openai.errors import envelope
from gateway.request_id import new_id

MAX_HEAD_BYTES = 64 * 1024  # of a request's line and headers; the parser itself would take any number
BROKEN = (
    "We could not parse your request: it is no valid HTTP/1.1. (HINT: check the request line, the headers, and "
    "Content-Length or the chunks of the body.)"
)
TOO_LONG = f"The request line and headers are longer than {MAX_HEAD_BYTES} bytes. Send what is long in the body."


class FrontProtocol(HttpToolsProtocol):
    """One connection of a client."""

    _in_head = _in_body = _wants_upgrade = False
    _head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Bytes came. A head is bounded here, since it is whole before anybody else sees it."""
        self._unset_keepalive_if_required()
        unread = data
        while unread:
            unread = self._read(unread)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, TOO_LONG, "request_header_fields_too_large")

    def _read(self, data: bytes) -> bytes:
        """Let the parser read; what it is to read next."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._wants_upgrade:
                return self._without_upgrade() + data[upgrade.args[0] :]
            self.cycle.keep_alive = False  # CONNECT: it is refused, and what comes after it is for nobody
        except httptools.HttpParserError:
            self._refuse(400, BROKEN, None)
        return b""

    def _without_upgrade(self) -> bytes:
        """The head of a request that wishes for another protocol, for a new parser, without the wish.

        curl and Java's client wish for HTTP/2 with each request. Nobody offers it here, so it is one like any other.
        """
        headers = [header for header in self.headers if header[0] not in (b"connection", b"upgrade")]
        if any(name == b"connection" and b"close" in value.lower() for name, value in self.headers):
            headers.append((b"connection", b"close"))
        line = b"%b %b HTTP/%b\r\n" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
        self.parser = httptools.HttpRequestParser(self)
        return line + b"".join(b"%b: %b\r\n" % header for header in headers) + b"\r\n"

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head, self._in_body, self._head_bytes = True, False, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is whole."""
        self._wants_upgrade = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._wants_upgrade:
            super().on_headers_complete()
            self._in_body = True
        self._in_head = False

    def on_message_complete(self) -> None:
        """It is whole."""
        self._in_body = False
        if not self._wants_upgrade:
            super().on_message_complete()

    def _refuse(self, status: int, message: str, code: str | None) -> None:
        """Tell what is wrong and close; but never in the midst, or in the place, of the answer to an earlier request.

        Such an answer is finished first, and the connection ends with it.
        """
        self._in_head = False
        if self.transport.is_closing():
            return
        if self._in_body and self.cycle.response_started:  # the broken body is of a request that has its answer
            self.transport.close()
            return
        if not self._in_body and self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            return
        body = envelope(message, "invalid_request_error", None, code)
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"x-request-id", f"req_{new_id(time.time())}".encode()),
            (b"connection", b"close"),
        ]
        lines = b"".join(b"%b: %b\r\n" % header for header in headers)
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + body)
        self.transport.close()
