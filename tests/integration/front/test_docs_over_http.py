"""The description of the API, as a browser and a code generator fetch it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from gateway.config import ServerOptions
from gateway.openapi import openapi_document, openapi_yaml
from gateway.tenants import AuthOptions

if TYPE_CHECKING:
    from tests.integration.front.front_server import Front, Serve

LOADING = {"src", "href", "srcset", "action", "data", "poster"}  # attributes that name what a browser fetches


class Page(HTMLParser):
    """What a page links to, names, and holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.names: list[str] = []
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.targets |= {value or "" for name, value in attrs if name in LOADING}
        self.names += [value or "" for name, value in attrs if name == "id"]
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_needs_no_other_host_and_runs_nothing(front: Front) -> None:
    with front.client() as client:
        reply = client.get("/docs")
    page = Page(reply.text)

    assert (reply.status_code, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert reply.headers["content-security-policy"].startswith("default-src 'none';")
    assert {target for target in page.targets if not target.startswith("#")} == {"openapi.json", "openapi.yaml"}
    assert not re.search(r"https?://|//[a-z]|url\(|@import", reply.text)
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "object", "form", "base"})
    assert page.open == []


def test_the_page_has_every_operation_and_every_object_once_and_its_links_lead_there(front: Front) -> None:
    document = openapi_document()
    with front.client() as client:
        page = Page(client.get("/docs").text)

    operations = {operation["operationId"] for path in document["paths"].values() for operation in path.values()}
    objects = {f"object-{name}" for name in document["components"]["schemas"]}
    assert set(page.names) == operations | objects | {"top"}
    assert len(page.names) == len(set(page.names))
    assert {target.removeprefix("#") for target in page.targets if target.startswith("#")} <= set(page.names)


def test_the_document_is_served_as_it_lies_in_the_repository(front: Front) -> None:
    with front.client() as client:
        as_json, as_yaml = client.get("/openapi.json"), client.get("/openapi.yaml")

    assert (as_json.headers["content-type"], as_json.json()) == ("application/json", openapi_document())
    assert (as_yaml.headers["content-type"], as_yaml.text) == ("application/yaml", openapi_yaml())


def test_no_key_is_needed_and_nothing_of_this_server_is_told(serve: Serve) -> None:
    key = "sk-the-only-key-99"
    backends = {"hidden": {"type": "scripted", "models": ["hidden-model"]}}
    front = serve(auth=AuthOptions(keys=(key,)), server=ServerOptions(root_path="/llm"), backends=backends)

    with front.client() as client:
        replies = [client.get(f"{prefix}{path}") for prefix in ("", "/llm") for path in ("/docs", "/openapi.json")]
        guarded = client.get("/v1/models")

    assert ([reply.status_code for reply in replies], guarded.status_code) == ([200] * 4, 401)
    assert not any("hidden" in reply.text or key in reply.text for reply in replies)


def test_the_description_can_be_turned_off(serve: Serve) -> None:
    front = serve(server=ServerOptions(docs=False))

    with front.client() as client:
        replies = [client.get(path) for path in ("/docs", "/openapi.json", "/openapi.yaml")]

    assert [reply.status_code for reply in replies] == [404] * 3
    assert all(reply.json()["error"]["type"] == "invalid_request_error" for reply in replies)
