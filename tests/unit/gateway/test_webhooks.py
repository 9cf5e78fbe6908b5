"""The webhook against a real endpoint."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from gateway.webhooks import SIGNATURE, Webhook


class Endpoint:
    """Remembers what was posted; answers with `statuses` in turn, then with 200."""

    def __init__(self) -> None:
        self.posts: list[tuple[bytes, str | None]] = []
        self.statuses: list[int] = []
        self.got_one = threading.Semaphore(0)
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                endpoint.posts.append((body, self.headers[SIGNATURE]))
                self.send_response(endpoint.statuses.pop(0) if endpoint.statuses else 200)
                self.send_header("location", f"http://127.0.0.1:{endpoint.server.server_port}/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()
                endpoint.got_one.release()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.server.shutdown()
    made.thread.join()
    made.server.server_close()


def test_an_event_arrives_signed(endpoint: Endpoint) -> None:
    webhook = Webhook(endpoint.url, "s3cret")
    webhook.start()
    webhook.send({"event": "budget.soft_limit_passed", "used": 7})
    webhook.stop(10)

    ((body, signature),) = endpoint.posts
    assert json.loads(body) == {"event": "budget.soft_limit_passed", "used": 7}
    assert signature == "sha256=" + hmac.new(b"s3cret", body, hashlib.sha256).hexdigest()


def test_without_a_secret_there_is_no_signature(endpoint: Endpoint) -> None:
    webhook = Webhook(endpoint.url)
    webhook.start()
    webhook.send({"event": "x"})
    webhook.stop(10)

    assert [signature for _, signature in endpoint.posts] == [None]


def test_a_failure_is_tried_again(endpoint: Endpoint) -> None:
    endpoint.statuses = [500, 503]
    webhook = Webhook(endpoint.url, retries_s=(0.01, 0.01, 0.01))
    webhook.start()
    webhook.send({"event": "x"})
    assert all(endpoint.got_one.acquire(timeout=10) for _ in range(3))
    webhook.stop(10)

    assert len(endpoint.posts) == 3


def test_a_redirect_is_not_followed(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    endpoint.statuses = [302]
    webhook = Webhook(endpoint.url, retries_s=())
    webhook.start()
    webhook.send({"event": "x"})
    webhook.stop(10)

    assert len(endpoint.posts) == 1
    assert "could not be delivered (status 302)" in caplog.text


def test_an_endpoint_that_is_away_is_told_in_the_log_and_blocks_nobody(caplog: pytest.LogCaptureFixture) -> None:
    webhook = Webhook("http://127.0.0.1:9/hook", retries_s=())
    with caplog.at_level(logging.ERROR):
        webhook.start()
        webhook.send({"event": "x"})
        webhook.stop(10)

    assert "could not be delivered" in caplog.text


def test_a_reply_that_makes_no_sense_does_not_end_the_deliveries(caplog: pytest.LogCaptureFixture) -> None:
    replies = [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"]
    posts: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as endpoint:

        def serve() -> None:
            for reply in replies:
                connection, _ = endpoint.accept()
                with connection:
                    posts.append(connection.recv(65536))
                    connection.sendall(reply)

        serving = threading.Thread(target=serve)
        serving.start()
        webhook = Webhook(f"http://127.0.0.1:{endpoint.getsockname()[1]}/hook", retries_s=())
        webhook.start()
        webhook.send({"event": "first"})
        webhook.send({"event": "second"})
        webhook.stop(10)
        serving.join(10)

    assert len(posts) == 2
    assert "could not be delivered" in caplog.text
