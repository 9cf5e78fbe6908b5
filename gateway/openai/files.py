"""Files as `/v1/files` shows them, and what its listing and its form say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from gateway.errors import InvalidBody
from gateway.files import OUTPUT, PURPOSES, StoredFile
from gateway.openai import decoding, faults
from gateway.openai.text import to_json

Order = Literal["asc", "desc"]
QueryT = TypeVar("QueryT", bound=Struct)

EXPIRY_S = (3600, 30 * 24 * 3600)


class FileObject(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """OpenAI's file object. `created_at` and `expires_at` are in Unix seconds."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"]
    expires_at: int | None = None


class FileList(Struct, frozen=True, kw_only=True):
    """The answer of `GET /v1/files`."""

    object: Literal["list"] = "list"
    data: tuple[FileObject, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileDeleted(Struct, frozen=True, kw_only=True):
    """The answer of `DELETE /v1/files/{file_id}`."""

    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class FilesQuery(Struct, frozen=True, kw_only=True):
    """`after` is the id of the last file of the page before; `order` goes by time of creation."""

    purpose: str | None = None
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    order: Order = "desc"
    after: str | None = None


class Expiry(Struct, frozen=True, kw_only=True):
    """`expires_after`: how many `seconds` after it was made a file is removed."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Meta(ge=EXPIRY_S[0], le=EXPIRY_S[1])]


class FileForm(Struct, frozen=True, kw_only=True):
    """The fields of an upload beside the file itself."""

    purpose: str
    expires_after: Expiry | None = None


def file_object(file: StoredFile) -> FileObject:
    """As it is shown."""
    return FileObject(
        id=file.id,
        object="file",
        bytes=file.bytes,
        created_at=file.created_at,
        filename=file.filename,
        purpose=file.purpose,
        status="processed",
        expires_at=file.expires_at,
    )


def file_list(found: Sequence[StoredFile], *, has_more: bool) -> bytes:
    """A page of files."""
    ends = (found[0].id, found[-1].id) if found else (None, None)
    data = tuple(file_object(file) for file in found)
    return to_json(FileList(data=data, first_id=ends[0], last_id=ends[1], has_more=has_more))


def read_files_query(values: Mapping[str, str]) -> FilesQuery:
    """Raises `InvalidBody` naming the parameter."""
    query = read_query(values, FilesQuery)
    if query.purpose is not None and query.purpose not in (*PURPOSES, OUTPUT):
        raise faults.not_one_of("purpose", query.purpose, (*PURPOSES, OUTPUT))
    return query


def read_query(values: Mapping[str, str], kind: type[QueryT]) -> QueryT:
    """A query string's members; those that nothing knows are passed over. Raises `InvalidBody` naming the parameter."""
    return decoding.read({name: _number(text) if name == "limit" else text for name, text in values.items()}, kind)


def read_file_form(fields: Mapping[str, str]) -> FileForm:
    """The form of an upload; `expires_after[seconds]` is how forms write a member. Raises `InvalidBody`."""
    values: dict[str, Any] = {name: fields[name] for name in ("purpose",) if name in fields}
    expiry = {
        name: _number(text) if name == "seconds" else text
        for name in ("anchor", "seconds")
        if (text := fields.get(f"expires_after[{name}]")) is not None
    }
    if expiry:
        values["expires_after"] = expiry
    elif "expires_after" in fields:
        values["expires_after"] = _json(fields["expires_after"])
    form = decoding.read(values, FileForm)
    if form.purpose not in PURPOSES:
        raise faults.not_one_of("purpose", form.purpose, PURPOSES)
    return form


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.lstrip("-").isdigit() and len(text) < 20 else text


def _json(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise InvalidBody(
            "Invalid 'expires_after': expected an object in JSON, or the fields 'expires_after[anchor]' and "
            "'expires_after[seconds]'.",
            param="expires_after",
            code="invalid_type",
        ) from None
