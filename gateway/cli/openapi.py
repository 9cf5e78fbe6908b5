"""`laneway openapi`: the document of the routes."""

from __future__ import annotations

import sys


def openapi() -> None:
    """Print the OpenAPI document of the routes as YAML."""
    from gateway.openapi import openapi_yaml  # it loads every route, which no other command needs

    sys.stdout.write(openapi_yaml())
