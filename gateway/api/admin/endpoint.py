"""One endpoint of the admin API, as data for the router, the roles and the OpenAPI document; and what calls it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from litestar import HttpMethod, Request, Response, route
from litestar.datastructures import State
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from gateway.api.admin.reading import check_text, read_body_as, read_query
from gateway.api.body import read_body
from gateway.api.exchange import Exchange
from gateway.tenants import VirtualKey
from gateway.writer import Writer

PREFIX = "/admin/v1"
JSON = "application/json"
NO_STORE = {"cache-control": "no-store"}  # a reply may hold a key
MAX_BODY_BYTES = 64 * 1024
NUM_THREADS = 3  # fewer than the store's pool has connections
OPT = "laneway_admin_endpoint"  # where a handler keeps its Endpoint
CALLER = "laneway_admin_caller"  # where the guard leaves who calls

QueryT = TypeVar("QueryT")
BodyT = TypeVar("BodyT")
ResultT = TypeVar("ResultT")
AnyRequest: TypeAlias = Request[Any, Any, State]


class Endpoint(Struct, frozen=True, kw_only=True):
    """One method of one path below `PREFIX`. `query` and `body` are the Structs that read what comes in; `answer` is
    the type of what goes out, and `name` the operation's in the OpenAPI document."""

    method: str
    path: str
    name: str
    summary: str
    answer: Any
    query: type[Struct] | None = None
    body: type[Struct] | None = None
    status: int = 200
    also: str | None = None  # a second content type of the answer

    @property
    def full_path(self) -> str:
        """With the prefix, parameters in braces."""
        return f"{PREFIX}{self.path}"


class Call(Generic[QueryT, BodyT]):
    """One call, read and checked: who calls, with what."""

    def __init__(self, caller: VirtualKey, path: dict[str, str], query: QueryT, body: BodyT) -> None:
        self.caller = caller
        self.path = path
        self.query = query
        self.body = body


class File(Struct, frozen=True):
    """An answer that is no JSON."""

    content: bytes
    media_type: str


Act: TypeAlias = Callable[[Any], Any]


class Workers:
    """The few threads in which admin calls use the store, so that neither the loop nor other work waits for them.

    They see everything that was answered before: the store has it some milliseconds later, and they wait for that.
    """

    def __init__(self, writer: Writer, num_threads: int = NUM_THREADS) -> None:
        self._writer = writer
        self._pool = ThreadPoolExecutor(num_threads, "admin")

    async def run(self, work: Callable[[], ResultT]) -> ResultT:
        """`work()` in a thread, as soon as one is free. Raises what it raises."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._run, work)

    def _run(self, work: Callable[[], ResultT]) -> ResultT:
        self._writer.flush()
        return work()


def handler(endpoint: Endpoint, act: Act, workers: Workers) -> HTTPRouteHandler:
    """The route of an endpoint. An ordinary `act` uses the store, in a thread; a coroutine function is for the loop."""

    async def answer(request: AnyRequest) -> Response[bytes]:
        call = await _read(endpoint, request)
        if inspect.iscoroutinefunction(act):
            file = _encode(await act(call))
        else:
            file = await workers.run(lambda: _encode(act(call)))
        return Response(file.content, status_code=endpoint.status, headers=NO_STORE, media_type=file.media_type)

    # A request's name may hold slashes (a client may have chosen it), so it is all that is left of the path.
    path = endpoint.full_path.replace("}", ":str}").replace("{request_id:str}", "{request_id:path}")
    made = route(path, http_method=HttpMethod(endpoint.method), status_code=endpoint.status, opt={OPT: endpoint})
    return made(answer)


def _encode(result: Any) -> File:
    return result if isinstance(result, File) else File(msgspec.json.encode(result), JSON)


async def _read(endpoint: Endpoint, request: AnyRequest) -> Call[Any, Any]:
    exchange = Exchange.of(request.scope)
    path = {name: str(value).removeprefix("/") for name, value in request.path_params.items()}
    for name, text in path.items():
        check_text(text, name)
    query = read_query(request.query_params.multi_items(), endpoint.query)
    body = None
    if endpoint.body is not None:
        body = read_body_as(await read_body(exchange, request.receive, MAX_BODY_BYTES), endpoint.body)
    return Call(request.scope["state"][CALLER], path, query, body)
