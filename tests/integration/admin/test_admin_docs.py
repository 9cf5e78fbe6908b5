"""docs/admin.md: every call is there with its roles, and every example does what it says."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from backends.types import Usage
from gateway.api.admin.access import ACCESS
from gateway.ledger import End, Opening
from gateway.request_id import new_id
from tests.integration.admin.admin_server import AdminServer

PAGE = (Path(__file__).parents[3] / "docs" / "admin.md").read_text(encoding="utf-8")
SAID = ("viewer", "manager", "admin")
MAKERS = {("POST", "/keys"): "KEY_ID", ("PUT", "/limits"): "LIMIT_ID"}


def examples() -> Iterator[tuple[str, str, str | None]]:
    """Method, path and body."""
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S):
        for line in re.findall(r"^admin [A-Z].*?(?=\n\S|\Z)", block, re.M | re.S):
            _, method, path, *body = shlex.split(line)
            yield method, path, body[0] if body else None


def settled_request(server: AdminServer) -> str:
    """The id of a request that the ledger knows."""
    opening = Opening(
        request_id=new_id(), tenant="acme", project="web", key_id="x", model="m", route="chat", lane="batch"
    )

    async def work() -> None:
        await server.ledger.admit(opening).settle(End(outcome="refused", source="none", usage=Usage()))

    server.in_loop(work)
    return opening.request_id


def test_every_call_is_described_with_the_roles_that_may_make_it() -> None:
    rows = re.findall(r"^\| `([A-Z]+ /[^`]*)` \| ([a-z, ]+) \|", PAGE, re.M)

    assert dict(rows) == {call: ", ".join(role for role in SAID if role in roles) for call, roles in ACCESS.items()}


def test_the_examples_show_every_call_and_work(server: AdminServer) -> None:
    names = {"REQUEST_ID": settled_request(server)}
    shown = set()
    with server.as_role("admin", "ops") as client:
        for method, path, body in examples():
            shown.add(f"{method} {path.partition('?')[0]}")
            for name, value in names.items():
                path, body = path.replace(name, value), body and body.replace(name, value)
            reply = client.request(method, path, content=body)
            assert reply.is_success, (method, path, reply.text)
            if (method, path) in MAKERS:
                names[MAKERS[method, path]] = reply.json()["id"]

    # As the examples write the parameters of the paths.
    written = {"{name}": "acme", "{project}": "web", "{request_id}": "REQUEST_ID"}
    calls = {call.replace("/keys/{id}", "/keys/KEY_ID").replace("/limits/{id}", "/limits/LIMIT_ID") for call in ACCESS}
    for parameter, value in written.items():
        calls = {call.replace(parameter, value) for call in calls}
    assert shown == calls
