"""/v1/batches: make, list, read and cancel a tenant's batches."""

from __future__ import annotations

import asyncio

from litestar import Request, Response, get, post
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler

from gateway.api.body import read_body
from gateway.api.exchange import Exchange
from gateway.api.files import JSON, id_in, tenant_of
from gateway.batch_runner import BatchRunner
from gateway.batches import Batch, Batches, Wish
from gateway.errors import NoSuchObject
from gateway.files import Page
from gateway.openai import faults
from gateway.openai.batches import batch_list, batch_object, read_batch, read_batches_query
from gateway.openai.text import to_json
from gateway.tenants import ANONYMOUS, VirtualKey

PATH = "/v1/batches"
MAX_BODY_BYTES = 64 * 1024


def batch_routes(batches: Batches, runner: BatchRunner) -> list[HTTPRouteHandler]:
    """The handlers."""

    @post(PATH, status_code=200)
    async def create(request: Request[object, object, State]) -> Response[bytes]:
        exchange = Exchange.of(request.scope)
        wish = read_batch(await read_body(exchange, request.receive, MAX_BODY_BYTES))
        batch = await asyncio.to_thread(_create, batches, exchange.key or ANONYMOUS, wish)
        runner.take(batch.id)
        return _shown(batch)

    @get(PATH)
    async def list_batches(request: Request[object, object, State]) -> Response[bytes]:
        asked = read_batches_query(dict(request.query_params.multi_items()))
        page = Page(limit=asked.limit, after=asked.after)
        found, has_more = await asyncio.to_thread(batches.page, tenant_of(request), page)
        return Response(batch_list(found, has_more=has_more), media_type=JSON)

    @get(f"{PATH}/{{batch_id:str}}")
    async def read(request: Request[object, object, State]) -> Response[bytes]:
        return _shown(await asyncio.to_thread(batches.find, tenant_of(request), id_in(request)))

    @post(f"{PATH}/{{batch_id:str}}/cancel", status_code=200)
    async def cancel(request: Request[object, object, State]) -> Response[bytes]:
        return _shown(await asyncio.to_thread(batches.cancel, tenant_of(request), id_in(request)))

    return [create, list_batches, read, cancel]


def _create(batches: Batches, key: VirtualKey, wish: Wish) -> Batch:
    try:
        return batches.create(key, wish)
    except NoSuchObject as error:
        raise faults.invalid_value("input_file_id", f"{error.message}. Upload it with purpose 'batch' first.") from None


def _shown(batch: Batch) -> Response[bytes]:
    return Response(to_json(batch_object(batch)), media_type=JSON)
