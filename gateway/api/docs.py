"""`/docs`, `/openapi.json` and `/openapi.yaml`: the API described by this server, the same for every configuration."""

from __future__ import annotations

import functools

import msgspec
from litestar import HttpMethod, Response, route
from litestar.handlers import HTTPRouteHandler

from gateway.openapi import openapi_document, openapi_yaml
from gateway.reference import reference_page

# The page loads nothing and runs nothing, and a browser holds it to that.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


class Described:
    """The document in its three forms, each made when it is first asked for."""

    @functools.cached_property
    def page(self) -> bytes:
        """HTML."""
        return reference_page(openapi_document())

    @functools.cached_property
    def json(self) -> bytes:
        """JSON."""
        return msgspec.json.encode(openapi_document())

    @functools.cached_property
    def yaml(self) -> bytes:
        """YAML, as it lies in the repository."""
        return openapi_yaml().encode()


def docs_routes() -> list[HTTPRouteHandler]:
    """The handlers. They need no key: they tell what the source code does, and nothing of this server."""
    described = Described()
    methods = [HttpMethod.GET, HttpMethod.HEAD]

    @route("/docs", http_method=methods, sync_to_thread=True)
    def docs() -> Response[bytes]:
        headers = {"content-security-policy": POLICY, "x-content-type-options": "nosniff"}
        return Response(described.page, media_type="text/html", headers=headers)

    @route("/openapi.json", http_method=methods, sync_to_thread=True)
    def as_json() -> Response[bytes]:
        return Response(described.json, media_type="application/json")

    @route("/openapi.yaml", http_method=methods, sync_to_thread=True)
    def as_yaml() -> Response[bytes]:
        return Response(described.yaml, media_type="application/yaml")

    return [docs, as_json, as_yaml]
