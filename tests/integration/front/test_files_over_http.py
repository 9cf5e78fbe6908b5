"""/v1/files as clients use it: what is sent comes back, whose it is, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest

from gateway.files import FileOptions
from tests.integration.front.books import Books, bearer
from tests.integration.front.front_server import Front

if TYPE_CHECKING:
    from tests.integration.front.front_server import Serve

FILES = "/v1/files"
UNKNOWN = f"file-{'0' * 32}"


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    with closing(Books(tmp_path)) as books:
        yield books


def upload(client: httpx.Client, content: bytes = b"hello\n", fields: dict[str, str] | None = None) -> httpx.Response:
    return client.post(FILES, files={"file": ("a.txt", content)}, data={"purpose": "batch", **(fields or {})})


def error_of(reply: httpx.Response) -> tuple[int, str | None, str | None]:
    error = reply.json()["error"]
    return reply.status_code, error["param"], error["code"]


def test_a_file_comes_back_as_it_was_sent_until_it_is_deleted(front: Front) -> None:
    content = bytes(range(256)) * 10_000  # 2.5 MB: more than a piece
    client = front.openai()

    made = client.files.create(file=("größe.bin", content), purpose="user_data")

    assert (made.object, made.bytes, made.filename, made.purpose, made.status) == (
        "file",
        len(content),
        "größe.bin",
        "user_data",
        "processed",
    )
    assert made.expires_at is None
    assert client.files.retrieve(made.id) == made
    assert client.files.content(made.id).content == content
    deleted = client.files.delete(made.id)
    assert (deleted.id, deleted.object, deleted.deleted) == (made.id, "file", True)
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError, match=f"No such File object: {made.id}") as caught:
            ask(made.id)
        assert caught.value.param == "id"


def test_a_file_expires_when_it_was_told_to(front: Front) -> None:
    made = front.openai().files.create(
        file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )

    assert made.expires_at == made.created_at + 3600


def test_files_are_listed_page_by_page_in_either_order_and_by_purpose(front: Front) -> None:
    client = front.openai()
    ids = [client.files.create(file=b"x", purpose="batch").id for _ in range(3)]
    other = client.files.create(file=b"x", purpose="evals").id

    first = client.files.list(limit=2, order="asc")
    assert [file.id for file in first.data] == ids[:2]
    assert first.has_more
    raw = httpx.get(f"{front.url}{FILES}?limit=2&order=asc").json()
    assert (raw["object"], raw["first_id"], raw["last_id"]) == ("list", ids[0], ids[1])

    assert [file.id for file in client.files.list(limit=2)] == [other, *reversed(ids)]  # over all pages
    assert [file.id for file in client.files.list(purpose="evals")] == [other]
    assert [file.id for file in client.files.list(after=ids[1], order="asc")] == [ids[2], other]


def test_an_empty_list_has_no_ends(front: Front) -> None:
    with front.client() as client:
        reply = client.get(FILES)

    assert reply.json() == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}


def test_a_tenant_never_sees_the_files_of_another(serve: Serve, books: Books) -> None:
    front = serve(store=books.options)
    mine, colleague, other = books.key("acme"), books.key("acme", project="second"), books.key("rival")
    with front.client() as client:
        client.headers.update(mine)
        file_id = upload(client).json()["id"]

        client.headers.update(colleague)
        assert client.get(f"{FILES}/{file_id}/content").content == b"hello\n"

        client.headers.update(other)
        assert client.get(FILES).json()["data"] == []
        for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
            assert error_of(client.request(method, f"{FILES}/{file_id}{path}")) == (404, "id", None)

        client.headers.update(mine)
        assert client.get(f"{FILES}/{file_id}").status_code == 200
        client.headers.update(bearer("wrong"))
        assert client.get(f"{FILES}/{file_id}").status_code == 401


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"purpose": "holiday"}, ("purpose", "invalid_value")),
        ({"purpose": "batch_output"}, ("purpose", "invalid_value")),
        (
            {"expires_after[anchor]": "now", "expires_after[seconds]": "3600"},
            ("expires_after.anchor", "invalid_value"),
        ),
        (
            {"expires_after[anchor]": "created_at", "expires_after[seconds]": "3599"},
            ("expires_after.seconds", "integer_below_min_value"),
        ),
        ({"expires_after[anchor]": "created_at"}, ("expires_after.seconds", "missing_required_parameter")),
    ],
)
def test_a_wrong_field_of_the_form_is_named(front: Front, fields: dict[str, str], expected: tuple[str, str]) -> None:
    with front.client() as client:
        assert error_of(upload(client, fields=fields)) == (400, *expected)


def test_a_form_without_purpose_or_file_or_bytes_is_refused_and_leaves_nothing(front: Front) -> None:
    with front.client() as client:
        without_purpose = client.post(FILES, files={"file": ("a", b"x")})
        without_file = client.post(FILES, files={"other": ("a", b"x")}, data={"purpose": "batch"})
        empty = upload(client, b"")
        twice = client.post(FILES, files=[("file", ("a", b"x")), ("file", ("b", b"y"))], data={"purpose": "batch"})
        no_form = client.post(FILES, json={"purpose": "batch"})
        broken = client.post(
            FILES, content=b"--x\r\nbroken", headers={"content-type": "multipart/form-data; boundary=x"}
        )

        assert error_of(without_purpose) == (400, "purpose", "missing_required_parameter")
        assert error_of(without_file) == (400, "file", "missing_required_parameter")
        assert error_of(empty) == (400, "file", "empty_file")
        assert error_of(twice) == (400, "file", None)
        assert error_of(no_form)[0] == 415
        assert error_of(broken)[0] == 400
        assert client.get(FILES).json()["data"] == []


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("limit=0", ("limit", "integer_below_min_value")),
        ("limit=10001", ("limit", "integer_above_max_value")),
        ("limit=many", ("limit", "invalid_type")),
        ("order=up", ("order", "invalid_value")),
        ("purpose=holiday", ("purpose", "invalid_value")),
    ],
)
def test_a_wrong_parameter_of_the_listing_is_named(front: Front, query: str, expected: tuple[str, str]) -> None:
    with front.client() as client:
        assert error_of(client.get(f"{FILES}?{query}")) == (400, *expected)


def test_a_file_over_the_cap_is_refused_and_its_bytes_do_not_stay(serve: Serve, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    front = serve(files=FileOptions(folder=str(folder), max_mb=1))
    with front.client() as client:
        fits = upload(client, b"x" * (1 << 20))
        too_large = upload(client, b"x" * ((1 << 20) + 1))

    assert fits.status_code == 200
    assert error_of(too_large) == (413, "file", "request_too_large")
    assert [path.name for path in folder.glob("file-*")] == [fits.json()["id"]]


def test_files_survive_a_restart_and_what_an_upload_left_half_done_does_not(
    serve: Serve, books: Books, tmp_path: Path
) -> None:
    folder = tmp_path / "kept"
    options: dict[str, Any] = {"store": books.options, "files": FileOptions(folder=str(folder))}
    first = serve(**options)
    made = first.openai().files.create(file=b"still here", purpose="batch")
    first.stop()
    for name in (f"{UNKNOWN}.part", UNKNOWN, "somebody-elses.txt"):
        (folder / name).write_bytes(b"half")

    second = serve(**options)

    assert second.openai().files.content(made.id).content == b"still here"
    assert sorted(path.name for path in folder.iterdir()) == sorted([made.id, "somebody-elses.txt", "store"])
