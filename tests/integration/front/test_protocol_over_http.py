"""Bytes that are no HTTP, heads without end, and requests that wish for another protocol, on raw sockets."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from gateway.protocol import MAX_HEAD_BYTES
from tests.integration.front.front_server import CHAT, connect, read_until

if TYPE_CHECKING:
    from tests.integration.front.front_server import Front

BODY = json.dumps({"model": "scripted", "messages": [{"role": "user", "content": "one two"}]}).encode()
HEAD = b"POST %b HTTP/1.1\r\nHost: x\r\n" % CHAT.encode()
WISH = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"


def opened(front: Front) -> socket.socket:
    return socket.create_connection(("127.0.0.1", front.port), timeout=20)


def read_all(connection: socket.socket) -> bytes:
    got = b""
    while part := connection.recv(65536):
        got += part
    return got


def sent(front: Front, *pieces: bytes) -> bytes:
    """All that came until the server closed."""
    with opened(front) as connection:
        for piece in pieces:
            connection.sendall(piece)
        return read_all(connection)


def only_error(reply: bytes) -> tuple[int, dict[str, Any]]:
    """The one reply there is: its status and what it tells."""
    assert reply.count(b"HTTP/1.1 ") == 1
    head, _, body = reply.partition(b"\r\n\r\n")
    assert b"\r\ncontent-type: application/json" in head
    assert b"\r\nx-request-id: req_" in head
    assert b"\r\nconnection: close" in head
    error: dict[str, Any] = json.loads(body)["error"]
    assert list(error) == ["message", "type", "param", "code"]
    return int(head.split()[1]), error


@pytest.mark.parametrize(
    "data",
    [
        b"rubbish\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        HEAD + b"Content-Length: many\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        HEAD + b"X\x01Odd: 1\r\n\r\n",
        b"POST \xff HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_what_is_no_http_is_told_in_the_envelope_and_ends_the_connection(front: Front, data: bytes) -> None:
    status, error = only_error(sent(front, data))

    assert (status, error["type"], error["param"], error["code"]) == (400, "invalid_request_error", None, None)
    assert "no valid HTTP" in error["message"]


def test_a_head_without_end_is_refused_while_it_comes(front: Front) -> None:
    reply = sent(front, HEAD + b"X-Long: ", *[b"x" * 7000] * (MAX_HEAD_BYTES // 7000 + 1))

    status, error = only_error(reply)
    assert (status, error["code"]) == (431, "request_header_fields_too_large")
    assert str(MAX_HEAD_BYTES) in error["message"]


def test_a_head_that_is_nearly_too_long_is_read_in_any_pieces(front: Front) -> None:
    head = HEAD + b"Connection: close\r\nContent-Length: %d\r\nX-Long: %b\r\n\r\n" % (len(BODY), b"x" * 60_000)

    reply = sent(front, *(head[at : at + 7000] for at in range(0, len(head), 7000)), BODY)

    assert reply.startswith(b"HTTP/1.1 200 ")


def test_rubbish_behind_a_request_waits_for_its_answer_and_then_ends_the_connection(front: Front) -> None:
    with connect(front, stream=True, tokens=["a", "b"], delay_s=0.2) as connection:
        read_until(connection, b'"content":"a"')
        connection.sendall(b"rubbish\r\n\r\n")
        rest = read_all(connection)

    assert b"data: [DONE]\n\n" in rest
    assert b"HTTP/1.1" not in rest


def test_a_body_that_breaks_after_its_request_was_answered_ends_the_connection_without_a_word(front: Front) -> None:
    with opened(front) as connection:
        head = HEAD.replace(CHAT.encode(), b"/nothing")
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n")
        first = read_until(connection, b"}}")
        connection.sendall(b"zz\r\n")
        rest = read_all(connection)

    assert first.startswith(b"HTTP/1.1 404 ")
    assert rest == b""


@pytest.mark.parametrize("pieces", [1, 2, 50])
@pytest.mark.parametrize("wish", [WISH, b"Connection: upgrade\r\nUpgrade: websocket\r\n"])
def test_a_request_that_wishes_for_another_protocol_is_answered_in_this_one(
    front: Front, wish: bytes, pieces: int
) -> None:
    request = HEAD + wish + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
    last = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
    whole, size = request * 3 + last, (len(request) * 3 + len(last)) // pieces + 1

    replies = sent(front, *(whole[at : at + size] for at in range(0, len(whole), size)))

    assert replies.count(b"HTTP/1.1 200 OK") == 4
    assert replies.count(b'"content":"one two"') == 4


def test_a_wish_beside_close_still_closes(front: Front) -> None:
    wish = WISH.replace(b"Upgrade,", b"Upgrade, close,")

    reply = sent(front, HEAD + wish + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY)

    assert reply.startswith(b"HTTP/1.1 200 OK")
    assert b"\r\nconnection: close\r\n" in reply


def test_many_wishes_in_one_piece_are_all_answered(front: Front) -> None:
    """So many that reading each within the reading of the last would not end well."""
    wish = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
    last = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"

    assert sent(front, wish * 1000 + last).count(b"HTTP/1.1 200 OK") == 1001


@pytest.mark.parametrize(("target", "wanted"), [(b"example.org:443", 400), (b"/v1/models", 405)])
def test_a_tunnel_is_refused_and_its_connection_ends(front: Front, target: bytes, wanted: int) -> None:
    reply = sent(front, b"CONNECT %b HTTP/1.1\r\nHost: x\r\n\r\nmore" % target)

    assert reply.startswith(b"HTTP/1.1 %d " % wanted)
    assert json.loads(reply.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
