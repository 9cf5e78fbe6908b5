"""A Hugging Face hub small enough to read: one server, a few repos, the routes that the client library asks for."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

COMMIT = "c0ffee" + "0" * 34


class StandInHub:
    """Repos are folders by id. `gated` ids refuse callers without the token.

    `broken` file names answer 500. `cut_at` closes the connection after that many bytes, for longer files, unless the
    request asks for a range. `fetched` holds the names of files as their bodies are asked for, `ranges` those that were
    asked for from their middle.
    """

    token = "hf_stand_in"

    def __init__(self, repos: dict[str, Path]) -> None:
        self.repos = repos
        self.gated: set[str] = set()
        self.broken: set[str] = set()
        self.cut_at: int | None = None
        self.fetched: list[str] = []
        self.ranges: list[str] = []

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve until the body ends; gives the URL for `HF_ENDPOINT`."""
        hub = self

        class Handler(_Handler):
            pass

        Handler.hub = hub
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: StandInHub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def _answer(self, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        if found := re.match(r"^/api/models/(.+?)/(revision|tree)/(.+)$", path):
            if self._may(found[1], found[3]):
                folder = self.hub.repos[found[1]]
                self._json(_info(folder) if found[2] == "revision" else _tree(folder))
        elif found := re.match(r"^/(.+?)/resolve/([^/]+)/(.+)$", path):
            if self._may(found[1], found[2]):
                self._file(self.hub.repos[found[1]], found[3], with_body)
        else:
            self._refuse(404, "EntryNotFound")

    def _may(self, repo: str, revision: str) -> bool:
        if repo not in self.hub.repos:
            self._refuse(404, "RepoNotFound")
        elif repo in self.hub.gated and self.headers.get("authorization") != f"Bearer {self.hub.token}":
            self._refuse(403, "GatedRepo")
        elif revision not in ("main", COMMIT):
            self._refuse(404, "RevisionNotFound")
        else:
            return True
        return False

    def _file(self, folder: Path, name: str, with_body: bool) -> None:
        file = folder / name
        if not file.is_file():
            self._refuse(404, "EntryNotFound")
            return
        if name in self.hub.broken and with_body:
            self._refuse(500, "Broken")
            return
        data = file.read_bytes()
        start = 0
        if wanted := re.match(r"bytes=(\d+)-", self.headers.get("range", "")):
            start = int(wanted[1])
            self.hub.ranges.append(name)
        if with_body:
            self.hub.fetched.append(name)
        self.send_response(206 if start else 200)
        self.send_header("ETag", f'"{_etag(file)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        limit = self.hub.cut_at
        if with_body and limit is not None and not start and len(data) > limit:
            self.wfile.write(data[:limit])
            self.close_connection = True
        elif with_body:
            self.wfile.write(data[start:])

    def _json(self, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", "refused")
        self.send_header("Content-Length", "0")
        self.end_headers()


def _info(folder: Path) -> object:
    names = [{"rfilename": path.name} for path in sorted(folder.iterdir())]
    return {"id": "stand/in", "sha": COMMIT, "siblings": names, "private": False, "tags": [], "downloads": 0}


def _tree(folder: Path) -> object:
    return [
        {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": _etag(path)}
        for path in sorted(folder.iterdir())
    ]


def _etag(file: Path) -> str:
    return hashlib.sha1(file.read_bytes(), usedforsecurity=False).hexdigest()
