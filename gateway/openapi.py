"""The OpenAPI document of the routes, made from the same Structs that read and shape the bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from gateway.anthropic.messages import IgnoredMessageFields, MessageFields, PromptFields
from gateway.anthropic.shapes import Message, MessageErrorEnvelope, MessageEvent, TokenCount
from gateway.api.admin.access import ACCESS
from gateway.api.admin.endpoint import Endpoint
from gateway.api.admin.routes import ENDPOINTS
from gateway.api.errors import TABLE
from gateway.api.families import ANTHROPIC, OPENAI, Family, family_of
from gateway.api.generating import TIMEOUT_HEADER
from gateway.api.health import Health, Load, Readiness
from gateway.dispatch import LANE_HEADER
from gateway.errors import LimitReport
from gateway.idempotency import HEADER as IDEMPOTENCY_HEADER
from gateway.openai.batches import BatchesQuery, BatchFields, BatchList, BatchObject
from gateway.openai.chat import ChatFields
from gateway.openai.completions import CompletionFields
from gateway.openai.embeddings import EmbeddingList, EmbeddingsBody
from gateway.openai.errors import Fault
from gateway.openai.files import FileDeleted, FileForm, FileList, FileObject, FilesQuery
from gateway.openai.formats import FormatFields
from gateway.openai.models import ModelList, ModelObject
from gateway.openai.response_shapes import InputTokens, Response, ResponseEvent
from gateway.openai.response_tools import ResponseToolFields
from gateway.openai.responses import ResponseFields
from gateway.openai.sampling import SamplingFields
from gateway.openai.shapes import ChatCompletion, ChatCompletionChunk, Completion, ErrorEnvelope
from gateway.openai.tokens import DetokenizeAnswer, DetokenizeBody, TokenizeAnswer, TokenizeBody
from gateway.openai.tools import ToolFields
from gateway.openai.unused import IgnoredFields
from gateway.tenants import LANES
from gateway.version import own_version

Json: TypeAlias = dict[str, Any]

REFS = "#/components/schemas/{name}"
INPUTS: list[Json] = [
    {"type": "string"},
    {"type": "array", "items": {"type": "string"}},
    {"type": "array", "items": {"type": "integer", "minimum": 0}},
    {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
]
INPUT: Json = {"description": "A text or token ids, or a list of either.", "anyOf": INPUTS}
PROMPT: Json = {**INPUT, "anyOf": [*INPUTS, {"type": "null"}]}
REASONS = {
    400: "The request is wrong; `param` names the field.",
    401: "No key, or an unknown one.",
    403: "The key may not do this.",
    404: "No such model, or nothing of this name.",
    409: "It contradicts what is there: a name that is taken, an Idempotency-Key used for another request.",
    413: "The body is too large.",
    415: "The body's type or coding cannot be read.",
    429: "A limit has no room. `limit` says which, and why; `Retry-After` when to come back, where waiting helps.",
    500: "The server or the backend broke on this request.",
    503: "Full, or not ready; come back after `Retry-After` seconds.",
    504: "The deadline of the request passed.",
    529: "Full; come back after `Retry-After` seconds.",
}
# How the routes of a family tell their failures: the first word of a response's name, and its body.
FAILURES = {OPENAI: ("Error", "ErrorEnvelope"), ANTHROPIC: ("MessageError", "MessageErrorEnvelope")}


GENERIC = re.compile(rb"\bPage_(\w+)_\b")  # msgspec's name for a Page[X]; here it is an XPage


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one path. `body` is a schema's name; `events` the one of a streamed answer's events."""

    path: str
    method: str
    name: str
    summary: str
    body: str | None = None
    needs_body: bool = True
    form: type[Struct] | None = None  # the fields beside the file of a multipart form
    query: type[Struct] | None = None
    answer: Any = None
    events: Any = None
    status: int = 200
    roles: frozenset[str] = frozenset()  # of the admin API: who may call it
    generates: bool = False
    needs_key: bool = True
    refuses: tuple[int, ...] = ()  # statuses beside those that all routes of its kind have
    also: int | None = None  # a second status with the same body
    text: str | None = None  # a media type of an answer that is no JSON


def admin_operation(endpoint: Endpoint) -> Operation:
    """An endpoint of the admin API."""
    return Operation(
        path=endpoint.full_path,
        method=endpoint.method.lower(),
        name=endpoint.name,
        summary=endpoint.summary,
        body=None if endpoint.body is None else endpoint.body.__name__,
        needs_body=endpoint.body is not None and any(field.required for field in fields(endpoint.body)),
        query=endpoint.query,
        answer=endpoint.answer,
        status=endpoint.status,
        roles=ACCESS[f"{endpoint.method} {endpoint.path}"],
        text=endpoint.also,
    )


OPERATIONS = (
    Operation(
        path="/v1/chat/completions",
        method="post",
        name="createChatCompletion",
        summary="Answer a chat, streamed or whole.",
        body="ChatCompletionRequest",
        answer=ChatCompletion,
        events=ChatCompletionChunk,
        generates=True,
    ),
    Operation(
        path="/v1/completions",
        method="post",
        name="createCompletion",
        summary="Continue a prompt, streamed or whole.",
        body="CompletionRequest",
        answer=Completion,
        events=Completion,
        generates=True,
    ),
    Operation(
        path="/v1/embeddings",
        method="post",
        name="createEmbedding",
        summary="The vectors of texts.",
        body="EmbeddingsBody",
        answer=EmbeddingList,
        generates=True,
    ),
    Operation(
        path="/v1/responses",
        method="post",
        name="createResponse",
        summary="Answer a list of items, streamed or whole. Nothing is stored.",
        body="ResponseRequest",
        answer=Response,
        events=ResponseEvent,
        generates=True,
    ),
    Operation(
        path="/v1/responses/input_tokens",
        method="post",
        name="countInputTokens",
        summary="How many tokens the input of a response has.",
        body="ResponseFields",
        answer=InputTokens,
    ),
    Operation(
        path="/v1/files",
        method="post",
        name="createFile",
        summary="Keep a file.",
        form=FileForm,
        answer=FileObject,
    ),
    Operation(
        path="/v1/files",
        method="get",
        name="listFiles",
        summary="The tenant's files.",
        query=FilesQuery,
        answer=FileList,
        refuses=(400,),
    ),
    Operation(
        path="/v1/files/{file_id}", method="get", name="readFile", summary="One file by its id.", answer=FileObject
    ),
    Operation(
        path="/v1/files/{file_id}/content",
        method="get",
        name="readFileContent",
        summary="The bytes of a file.",
        text="application/octet-stream",
    ),
    Operation(
        path="/v1/files/{file_id}",
        method="delete",
        name="deleteFile",
        summary="Delete a file.",
        answer=FileDeleted,
        refuses=(409,),
    ),
    Operation(
        path="/v1/batches",
        method="post",
        name="createBatch",
        summary="Answer every line of a file within a day.",
        body="BatchFields",
        answer=BatchObject,
    ),
    Operation(
        path="/v1/batches",
        method="get",
        name="listBatches",
        summary="The tenant's batches, the newest first.",
        query=BatchesQuery,
        answer=BatchList,
        refuses=(400,),
    ),
    Operation(
        path="/v1/batches/{batch_id}",
        method="get",
        name="readBatch",
        summary="One batch by its id, and how far it is.",
        answer=BatchObject,
    ),
    Operation(
        path="/v1/batches/{batch_id}/cancel",
        method="post",
        name="cancelBatch",
        summary="Begin no further line of a batch.",
        answer=BatchObject,
        refuses=(409,),
    ),
    Operation(
        path="/v1/messages",
        method="post",
        name="createMessage",
        summary="Answer messages in Anthropic's form, streamed or whole.",
        body="MessageRequest",
        answer=Message,
        events=MessageEvent,
        generates=True,
    ),
    Operation(
        path="/v1/messages/count_tokens",
        method="post",
        name="countMessageTokens",
        summary="How many tokens messages, with their system prompt and tools, give to read.",
        body="PromptFields",
        answer=TokenCount,
    ),
    Operation(path="/v1/models", method="get", name="listModels", summary="The models served.", answer=ModelList),
    Operation(
        path="/v1/models/{model}", method="get", name="readModel", summary="One model by its id.", answer=ModelObject
    ),
    Operation(
        path="/tokenize",
        method="post",
        name="tokenize",
        summary="Token ids of a text or of a chat.",
        body="TokenizeBody",
        answer=TokenizeAnswer,
    ),
    Operation(
        path="/detokenize",
        method="post",
        name="detokenize",
        summary="The text of token ids.",
        body="DetokenizeBody",
        answer=DetokenizeAnswer,
    ),
    Operation(path="/metrics", method="get", name="readMetrics", summary="Prometheus metrics.", text="text/plain"),
    Operation(path="/load", method="get", name="readLoad", summary="How many requests are here.", answer=Load),
    Operation(path="/health", method="get", name="health", summary="The server lives.", answer=Health, needs_key=False),
    Operation(
        path="/ready",
        method="get",
        name="ready",
        summary="Whether answers flow: 200 or 503.",
        answer=Readiness,
        needs_key=False,
        also=503,
    ),
    Operation(path="/ping", method="get", name="ping", summary="As /health.", answer=Health, needs_key=False),
    Operation(path="/ping", method="post", name="pingPost", summary="As /health.", answer=Health, needs_key=False),
    Operation(path="/version", method="get", name="version", summary="The server's version.", needs_key=False),
    *map(admin_operation, ENDPOINTS),
)


def openapi_document() -> Json:
    """The document as JSON values; the same for every configuration."""
    shapes, schemas = _schemas()
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, shapes)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "Laneway",
            "version": own_version(),
            "description": "An OpenAI-compatible gateway with priority lanes.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": schemas,
            "responses": {
                f"{word}{status}": _error(reason, body)
                for family, (word, body) in FAILURES.items()
                for status, reason in REASONS.items()
                if status in _statuses(family)
            },
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }
    named: Json = msgspec.json.decode(GENERIC.sub(rb"\1Page", msgspec.json.encode(document)))
    return named


def openapi_yaml() -> str:
    """The document as YAML, as it lies in `openapi/gateway.yaml`."""
    return msgspec.yaml.encode(openapi_document()).decode()


def _operation(operation: Operation, shapes: dict[Any, Json]) -> Json:
    made: Json = {"operationId": operation.name, "summary": operation.summary}
    if operation.roles:
        made |= {"tags": ["admin"], "x-roles": sorted(operation.roles)}
    if operation.query is not None:
        made["description"] = " ".join((operation.query.__doc__ or "").split())
    made["security"] = [{"key": []}] if operation.needs_key else []
    parameters = [*_path_parameters(operation), *_query_parameters(operation), *_header_parameters(operation)]
    if parameters:
        made["parameters"] = parameters
    if operation.body:
        made["requestBody"] = {"required": operation.needs_body, "content": _json(_ref(operation.body))}
    if operation.form is not None:
        made["requestBody"] = {"required": True, "content": {"multipart/form-data": {"schema": _form(operation.form)}}}
    made["responses"] = {str(operation.status): _success(operation, shapes)}
    if operation.also:
        made["responses"][str(operation.also)] = _success(operation, shapes)
    word, _ = FAILURES[family_of(operation.path)]
    for status in _failures(operation):
        made["responses"][str(status)] = {"$ref": f"#/components/responses/{word}{status}"}
    return made


def _path_parameters(operation: Operation) -> Iterable[Json]:
    for name in re.findall(r"{(\w+)}", operation.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(operation: Operation) -> Iterable[Json]:
    if operation.query is None:
        return
    schema = msgspec.json.schema_components([operation.query])[1][operation.query.__name__]
    for name, value in schema["properties"].items():
        # Null is how a Struct says that the parameter is absent, which a query string says by itself.
        kinds = [kind for kind in value.get("anyOf", ()) if kind != {"type": "null"}]
        yield {"name": name, "in": "query", "required": name in schema["required"], "schema": (kinds or [value])[0]}


def _form(fields_of: type[Struct]) -> Json:
    file: Json = {"type": "string", "format": "binary"}
    here: Json = {"type": "object", "properties": {"file": file}, "required": ["file"]}
    return {"allOf": [here, _ref(fields_of.__name__)]}


def _header_parameters(operation: Operation) -> Iterable[Json]:
    if not operation.generates:
        return
    lane = {"type": "string", "enum": list(LANES)}
    seconds = {"type": "number", "exclusiveMinimum": 0}
    same = "The same key with the same body gets the same answer, made and billed once."
    yield {"name": LANE_HEADER, "in": "header", "description": "One of the key's lanes.", "schema": lane}
    yield {"name": TIMEOUT_HEADER, "in": "header", "description": "Seconds for the whole answer.", "schema": seconds}
    yield {"name": IDEMPOTENCY_HEADER, "in": "header", "description": same, "schema": {"type": "string"}}


def _success(operation: Operation, shapes: dict[Any, Json]) -> Json:
    content = {} if operation.text is None else {operation.text: {"schema": {"type": "string"}}}
    if operation.answer is not None:
        content = _json(shapes[operation.answer]) | content
    elif not content:
        content = _json({"type": "object", "properties": {"version": {"type": "string"}}, "required": ["version"]})
    if operation.events is not None:
        content["text/event-stream"] = {"schema": shapes[operation.events]}
    return {"description": operation.summary, "content": content}


def _error(reason: str, body: str) -> Json:
    return {"description": reason, "content": _json(_ref(body))}


def _failures(operation: Operation) -> list[int]:
    """What this operation can fail with, out of the table of errors."""
    statuses = _statuses(family_of(operation.path))
    if not operation.needs_key:
        return []
    if not operation.generates:
        statuses -= {403, 409, 429, 504}
    reads_body = operation.body is not None or operation.form is not None
    if not reads_body:
        statuses -= {400, 413, 415, 500}
    if not reads_body and "{" not in operation.path:
        statuses.discard(404)
    return sorted({*statuses, *operation.refuses, *_admin_failures(operation)})


def _statuses(family: Family) -> set[int]:
    """Those of the table, as a family tells them."""
    rows = [Fault(status=row.status, type=row.type, message="", code=row.code) for row in TABLE.values()]
    return {family.status(fault) for fault in rows} & REASONS.keys()


def _admin_failures(operation: Operation) -> set[int]:
    if not operation.roles:
        return set()
    return {403} | ({400} if operation.query else set()) | (set() if operation.method == "get" else {409})


def _schemas() -> tuple[dict[Any, Json], dict[str, Json]]:
    """The schema of each answer, and the components that they refer to."""
    shared = (SamplingFields, FormatFields, IgnoredFields)
    groups = {
        "ChatCompletionRequest": (ChatFields, *shared, ToolFields),
        "CompletionRequest": (CompletionFields, *shared),
        "ResponseRequest": (ResponseFields, SamplingFields, IgnoredFields, ResponseToolFields),
        "MessageRequest": (MessageFields, IgnoredMessageFields),
    }
    bodies: list[type[Struct]] = [*dict.fromkeys(part for parts in groups.values() for part in parts)]
    bodies += [EmbeddingsBody, TokenizeBody, DetokenizeBody, BatchFields]
    bodies += [operation.form for operation in OPERATIONS if operation.form is not None]
    bodies += [PromptFields, EmbeddingsBody, TokenizeBody, DetokenizeBody]
    bodies += [endpoint.body for endpoint in ENDPOINTS if endpoint.body is not None]
    answers = [made for operation in OPERATIONS for made in (operation.answer, operation.events) if made is not None]
    kinds = [*dict.fromkeys([*bodies, *answers, ErrorEnvelope, MessageErrorEnvelope, LimitReport])]
    shapes, schemas = msgspec.json.schema_components(kinds, ref_template=REFS)
    schemas[CompletionFields.__name__]["properties"]["prompt"] = PROMPT
    schemas[EmbeddingsBody.__name__]["properties"]["input"] = INPUT
    schemas[EmbeddingsBody.__name__]["required"].append("input")
    for name, parts in groups.items():
        schemas[name] = {"allOf": [_ref(part.__name__) for part in parts]}
    return dict(zip(kinds, shapes, strict=True)), dict(sorted(schemas.items()))


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> Json:
    return {"$ref": REFS.format(name=name)}
