"""Requests damaged byte by byte and sent by raw sockets: bodies, headers, framing, targets, and what follows them."""

from __future__ import annotations

import collections
import gzip
import http.client
import io
import json
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from tests.fuzz.rules import Rules
from tests.integration.front.front_server import Front

PATIENCE_S = 0.25  # a request that was cut short gets no answer; that is how long one is waited for
SENTINEL = b"GET /version HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
MESSAGES = [{"role": "user", "content": "one two three"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
BODIES = {
    "/v1/chat/completions": (
        {"model": "scripted", "messages": MESSAGES, "temperature": 0.5, "stop": ["x"], "metadata": {"a": "b"}},
        {"model": "scripted", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True}},
        {"model": "scripted", "messages": MESSAGES, "tools": [TOOL], "tool_choice": "auto", "logprobs": True},
        {"model": "scripted", "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}], "n": 2},
    ),
    "/v1/completions": ({"model": "scripted", "prompt": "a b", "max_tokens": 2, "echo": True, "logprobs": 1},),
    "/v1/embeddings": ({"model": "scripted", "input": ["a", "b c"], "encoding_format": "base64"},),
    "/v1/responses": (
        {"model": "scripted", "input": "a b", "text": {"format": {"type": "text"}}, "metadata": {"a": "b"}},
        {"model": "scripted", "input": [{"role": "user", "content": "a"}], "stream": True},
    ),
    "/v1/responses/input_tokens": ({"model": "scripted", "input": "a b"},),
    "/tokenize": ({"model": "scripted", "prompt": "a b"},),
    "/detokenize": ({"model": "scripted", "tokens": [1, 2]},),
    "/admin/v1/tenants": ({"name": "acme"},),
    "/admin/v1/keys": ({"tenant": "acme", "role": "user", "rpm": 5},),
    "/admin/v1/limits/check": ({"tenant": "acme", "model": "scripted"},),
}


@dataclass(frozen=True)
class Sent:
    """A request before it is bytes. `framing` says how long the body is."""

    path: str
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()
    method: bytes = b"POST"
    target: bytes = b""
    framing: bytes | None = None
    raw_body: bytes | None = None
    tail: bytes = b""
    cut: int | None = None

    def data(self) -> bytes:
        """What goes over the wire."""
        body = self.body if self.raw_body is None else self.raw_body
        framing = b"Content-Length: %d\r\n" % len(body) if self.framing is None else self.framing
        lines = b"".join(b"%b: %b\r\n" % header for header in self.headers)
        target = self.target or self.path.encode()
        whole = b"%b %b HTTP/1.1\r\nHost: x\r\n%b%b\r\n%b%b" % (self.method, target, framing, lines, body, self.tail)
        return whole[: self.cut]


Mutation: TypeAlias = Callable[[random.Random, Sent], Sent]


def truncated_body(dice: random.Random, sent: Sent) -> Sent:
    """The end is missing, and the length says so."""
    return replace(sent, body=sent.body[: dice.randrange(len(sent.body) + 1)])


def flipped_bits(dice: random.Random, sent: Sent) -> Sent:
    """Up to eight."""
    body = bytearray(sent.body)
    for _ in range(dice.randint(1, 8)):
        body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
    return replace(sent, body=bytes(body))


def inserted_bytes(dice: random.Random, sent: Sent) -> Sent:
    """Something between."""
    at = dice.randrange(len(sent.body) + 1)
    more = dice.choice((dice.randbytes(dice.randint(1, 9)), *BYTES))
    return replace(sent, body=sent.body[:at] + more + sent.body[at:])


def removed_bytes(dice: random.Random, sent: Sent) -> Sent:
    """Up to nine."""
    at = dice.randrange(len(sent.body))
    return replace(sent, body=sent.body[:at] + sent.body[at + dice.randint(1, 9) :])


def odd_value(dice: random.Random, sent: Sent) -> Sent:
    """One member, anywhere in the body, has a value of another kind."""
    body = json.loads(sent.body)
    holder = body
    while True:
        name = dice.choice([*holder] if isinstance(holder, dict) else range(len(holder)))
        if not isinstance(holder[name], dict | list) or not holder[name] or dice.random() < 0.3:
            break
        holder = holder[name]
    holder[name] = "ODD"
    return replace(sent, body=json.dumps(body).encode().replace(b'"ODD"', dice.choice(VALUES)))


def duplicate_keys(dice: random.Random, sent: Sent) -> Sent:
    """One member is there twice."""
    name = dice.choice([*json.loads(sent.body)])
    return replace(sent, body=b'{"%b": %b, %b' % (name.encode(), dice.choice(VALUES), sent.body[1:]))


def wrong_coding(dice: random.Random, sent: Sent) -> Sent:
    """It is not packed as it says, or not in a way that anybody knows."""
    packed = (sent.body, gzip.compress(sent.body), gzip.compress(sent.body)[:-3], dice.randbytes(40))
    coding = (b"Content-Encoding", dice.choice(CODINGS))
    return replace(sent, body=dice.choice(packed), headers=(*sent.headers, coding))


def chunks(dice: random.Random, sent: Sent) -> Sent:
    """The body in chunks, right or broken."""
    half = len(sent.body) // 2
    first, second = (b"%x\r\n%b\r\n" % (len(part), part) for part in (sent.body[:half], sent.body[half:]))
    bodies = (
        first + second + b"0\r\n\r\n",
        first + second + b"0\r\nX-Trailer: 1\r\n\r\n",
        first + second,
        first + b"zz\r\n",
        first + b"-1\r\nx\r\n",
        first[:-2] + b"xx" + second + b"0\r\n\r\n",
        b"f" * 18 + b"\r\n" + sent.body,
        b"0\r\n\r\n",
        b"5;ext=1\r\n12345\r\n0\r\n\r\n",
    )
    return replace(sent, raw_body=dice.choice(bodies), framing=dice.choice(FRAMINGS))


def wrong_length(dice: random.Random, sent: Sent) -> Sent:
    """Content-Length is none, not that of the body, or there twice."""
    framing = b"Content-Length: %b\r\n" % dice.choice((*LENGTHS, b"%d" % (len(sent.body) + 9)))
    return replace(sent, framing=dice.choice((framing, framing * 2, framing + b"Content-Length: 3\r\n", b"")))


def odd_header(dice: random.Random, sent: Sent) -> Sent:
    """One more header, which may mean something or may not be allowed."""
    return replace(sent, headers=(*sent.headers, (dice.choice(NAMES), dice.choice(HEADER_VALUES))))


def odd_method(dice: random.Random, sent: Sent) -> Sent:
    """Another one."""
    return replace(sent, method=dice.choice(METHODS))


def odd_target(dice: random.Random, sent: Sent) -> Sent:
    """The route in another form, another route, or none."""
    path = sent.path.encode()
    forms = (b"http://example.org%b", b"//%b", b"%b/", b"%b?a=%%ff&b", b"%b%%00", b"%b/../x")
    return replace(sent, target=dice.choice((*(form % path for form in forms), *TARGETS)))


def long_head(dice: random.Random, sent: Sent) -> Sent:
    """Many headers, or a long one."""
    num, size = dice.choice(((1, 70_000), (2000, 40), (1, 300_000), (20_000, 1), (100, 500)))
    return replace(sent, headers=(*sent.headers, *((b"X-Many", b"x" * size) for _ in range(num))))


def followed(dice: random.Random, sent: Sent) -> Sent:
    """A second request, or rubbish, right behind the first."""
    again = sent.data()
    tails = (again, again * 2, again[:-9], b"\r\n\r\n", b"rubbish\r\n\r\n", dice.randbytes(30))
    return replace(sent, tail=dice.choice(tails))


def cut_short(dice: random.Random, sent: Sent) -> Sent:
    """The end never comes."""
    return replace(sent, cut=dice.randrange(1, len(sent.data())))


BYTES = (b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"//", b",", b"\\ud800")
VALUES = (
    *(b"null", b"true", b"-1", b"0", b"1.0", b"20.0", b"1e400", b"-1e400", b"1e-400", b"NaN", b"Infinity", b"01"),
    *(b"9" * 400, b"-" + b"9" * 400, b"9" * 5000, b"0." + b"1" * 400, b"'a'"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616"),
    *(b'""', b'"\\ud800"', b'"\\udc00\\ud800"', b'"\\u0000"', b'"\xc3"', b'"\xed\xa0\x80"', b'"%b"' % (b"x" * 5000)),
    *(b"[]", b"{}", b"[[]]", b"[null]", b"[true]", b"[1,2,3]", b'["a",1]', b'{"":null}', b'{"type":"text"}'),
    *(b'{"type":{}}', b"[" * 600 + b"]" * 600, b'{"a":' * 600 + b"1" + b"}" * 600, b"[" * 60000 + b"]" * 60000),
)
CODINGS = (b"gzip", b"deflate", b"br", b"zstd", b"identity", b"GZIP", b"", b"gzip, gzip", b"x" * 300, b"\xff")
FRAMINGS = (
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Transfer-Encoding: gzip\r\n",
)
LENGTHS = (b"0", b"-1", b"+5", b"5, 5", b"0x10", b"9" * 30, b"1048577", b"", b"abc")
NAMES = (
    *(b"Authorization", b"Content-Type", b"X-Laneway-Lane", b"X-Request-Timeout", b"Idempotency-Key", b"Host"),
    *(b"X-Request-Id", b"x-stainless-read-timeout", b"Connection", b"Upgrade", b"Expect", b"Origin", b"Accept"),
    *(b"api-key", b"X-Odd", b"X\x01Odd", b"", b"X Odd", b"\xff", b"Cookie", b"Accept-Encoding", b"Range"),
)
HEADER_VALUES = (
    *(b"", b" ", b"\x00", b"\x7f", b"\xff\xfe", b"\xc3\xa9", b"a\x01b", b"a\tb", b"a\nb: c", b"a\r\n folded"),
    *(b"x" * 9000, b"%s%n", b"'; DROP TABLE keys; --", b"../../etc/passwd", b"Bearer", b"Bearer ", b"Basic eDp5"),
    *(b"multipart/form-data", b"text/plain; charset=\xff", b"100-continue", b"close", b"upgrade", b"h2c"),
    *(b"keep-alive, upgrade", b"websocket", b"1e400", b"nan", b"-0", b"30", b"batch", b"interactive", b"same"),
    b"https://example.org",
)
METHODS = (
    *(b"GET", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS", b"TRACE", b"CONNECT", b"PRI", b"post", b"P\x00ST", b""),
)
TARGETS = (
    *(b"*", b"", b"a b", b"example:80", b"http://example.org", b"/%ff%fe", b"/\xff", b"/\xc3\xa9", b"/v1/%2e%2e/docs"),
    *(b"/" + b"a" * 9000, b"/v1/models/" + b"%2F" * 500, b"/v1/models/%00", b"/v1/responses/%ff", b"/v1/models"),
    *(b"/admin/v1/keys/%00", b"/admin/v1/usage?since=" + b"9" * 40, b"/admin/v1/requests?limit=1e9", b"/metrics"),
    *(b"/docs", b"/health"),
)
MUTATIONS: tuple[Mutation, ...] = (
    *(truncated_body, flipped_bits, inserted_bytes, removed_bytes, odd_value, odd_value, odd_value, duplicate_keys),
    *(wrong_coding, chunks, wrong_length, odd_header, odd_header, odd_method, odd_target, long_head, followed),
    cut_short,
)


class Replies(io.BufferedReader):
    """The replies on one connection; `HTTPResponse` would read ahead and close, and so lose what follows."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection.makefile("rb", buffering=0))

    def makefile(self, mode: str) -> Replies:
        return self

    def close(self) -> None:
        """Not yet."""


class Raw:
    """A run against one front. `faults` are what went wrong: what was done to a request, and to which."""

    def __init__(self, front: Front, key: str, first_seed: int) -> None:
        self._front = front
        self._key = key.encode()
        self._dice = random.Random(first_seed)
        self._rules = Rules()
        self.num_requests = 0
        self.statuses: collections.Counter[int] = collections.Counter()
        self.mutations: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []

    def run(self, number: int) -> None:
        """So many damaged requests, each on a connection of its own."""
        for _ in range(number):
            path = self._dice.choice([*BODIES])
            body = json.dumps(self._dice.choice(BODIES[path])).encode()
            headers = ((b"Authorization", b"Bearer " + self._key), (b"Content-Type", b"application/json"))
            sent = Sent(path, body, headers)
            mutation = self._dice.choice(MUTATIONS)
            self.mutations[mutation.__name__] += 1
            self._ask(mutation.__name__, mutation(self._dice, sent))

    def _ask(self, name: str, sent: Sent) -> None:
        self.num_requests += 1
        data = sent.data()
        with socket.create_connection(("127.0.0.1", self._front.port), timeout=PATIENCE_S) as connection:
            try:
                connection.sendall(data)
                found = self._replies(connection, sent.method.decode("latin-1"))
            except (ConnectionResetError, BrokenPipeError):
                found = []  # it said what is wrong and left, before it was told everything
        self.faults += [f"{name} {data[:300]!r}…{data[-60:]!r}: {fault}" for fault in found]

    def _replies(self, connection: socket.socket, method: str) -> list[str]:
        """What is wrong with the replies: that to the request, and those to what was behind it and to a good one."""
        faults: list[str] = []
        replies: Any = Replies(connection)
        is_first = True
        while True:
            reply = http.client.HTTPResponse(replies, method=method if is_first else None)
            try:
                reply.begin()
                body = reply.read()
            except TimeoutError:
                return faults  # it waits for the rest
            except http.client.HTTPException as error:
                if isinstance(error, http.client.RemoteDisconnected):
                    return faults
                return [*faults, f"no HTTP: {error!r}"]
            self.statuses[reply.status] += 1
            content_type = reply.headers.get("content-type", "")
            if method != "HEAD" or not is_first:
                faults += self._rules.faults(reply.status, content_type, body)
            if reply.will_close:
                return faults
            if is_first:
                connection.sendall(SENTINEL)
            is_first = False
