"""/v1/files: upload, list, read, read the content of, and delete a tenant's files."""

from __future__ import annotations

import asyncio
import contextlib

from litestar import Request, Response, delete, get, post
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from litestar.response import File

from gateway.api.exchange import Exchange
from gateway.api.multipart import read_form
from gateway.errors import InvalidBody
from gateway.files import Draft, Files, Page, StoredFile
from gateway.openai import faults
from gateway.openai.files import FileDeleted, file_list, file_object, read_file_form, read_files_query
from gateway.openai.text import clean, to_json
from gateway.tenants import ANONYMOUS

PATH = "/v1/files"
JSON = "application/json"
BYTES = "application/octet-stream"
MAX_NAME_CHARS = 255


def file_routes(files: Files) -> list[HTTPRouteHandler]:
    """The handlers."""

    @post(PATH, status_code=200)
    async def upload(request: Request[object, object, State]) -> Response[bytes]:
        with contextlib.closing(await asyncio.to_thread(files.draft)) as draft:
            file = await _take(files, draft, request)
        return Response(to_json(file_object(file)), media_type=JSON)

    @get(PATH)
    async def list_files(request: Request[object, object, State]) -> Response[bytes]:
        asked = read_files_query(dict(request.query_params.multi_items()))
        page = Page(limit=asked.limit, after=asked.after, is_ascending=asked.order == "asc")
        found, has_more = await asyncio.to_thread(files.page, tenant_of(request), page, asked.purpose)
        return Response(file_list(found, has_more=has_more), media_type=JSON)

    @get(f"{PATH}/{{file_id:str}}")
    async def read_file(request: Request[object, object, State]) -> Response[bytes]:
        file = await asyncio.to_thread(files.find, tenant_of(request), id_in(request))
        return Response(to_json(file_object(file)), media_type=JSON)

    @get(f"{PATH}/{{file_id:str}}/content")
    async def read_content(request: Request[object, object, State]) -> File:
        file, path = await asyncio.to_thread(files.content, tenant_of(request), id_in(request))
        return File(path, filename=file.filename, media_type=BYTES)

    @delete(f"{PATH}/{{file_id:str}}", status_code=200)
    async def delete_file(request: Request[object, object, State]) -> Response[bytes]:
        await asyncio.to_thread(files.delete, tenant_of(request), id_in(request))
        return Response(to_json(FileDeleted(id=id_in(request))), media_type=JSON)

    return [upload, list_files, read_file, read_content, delete_file]


def tenant_of(request: Request[object, object, State]) -> str:
    """Whose objects the caller sees."""
    return (Exchange.of(request.scope).key or ANONYMOUS).tenant


def id_in(request: Request[object, object, State]) -> str:
    """The id in the path."""
    return str(next(iter(request.path_params.values())))


async def _take(files: Files, draft: Draft, request: Request[object, object, State]) -> StoredFile:
    async def write(piece: bytes) -> None:
        await asyncio.to_thread(draft.write, piece)

    form = await read_form(Exchange.of(request.scope), request.receive, write)
    if form.filename is None:
        raise faults.missing("file")
    asked = read_file_form(form.fields)
    if not draft.size:
        raise InvalidBody("The file is empty. Send a file with something in it.", param="file", code="empty_file")

    def keep() -> StoredFile:
        draft.finish()
        return files.keep(
            draft,
            tenant_of(request),
            filename=clean(form.filename or "")[:MAX_NAME_CHARS].replace("\0", ""),
            purpose=asked.purpose,
            expires_after_s=None if asked.expires_after is None else asked.expires_after.seconds,
        )

    return await asyncio.to_thread(keep)
