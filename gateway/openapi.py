"""The OpenAPI document of the routes, made from the same Structs that read and shape the bodies."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from gateway.api.errors import TABLE
from gateway.api.generating import TIMEOUT_HEADER
from gateway.api.health import Health, Readiness
from gateway.dispatch import LANE_HEADER
from gateway.openai.chat import ChatFields
from gateway.openai.completions import CompletionFields
from gateway.openai.formats import FormatFields
from gateway.openai.models import ModelList, ModelObject
from gateway.openai.sampling import SamplingFields
from gateway.openai.shapes import ChatCompletion, ChatCompletionChunk, Completion, ErrorEnvelope
from gateway.openai.tokens import DetokenizeAnswer, DetokenizeBody, TokenizeAnswer, TokenizeBody
from gateway.openai.tools import ToolFields
from gateway.openai.unused import IgnoredFields
from gateway.tenants import LANES
from gateway.version import own_version

Json: TypeAlias = dict[str, Any]

REFS = "#/components/schemas/{name}"
PROMPT: Json = {
    "description": "A text or token ids, or a list of either.",
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer", "minimum": 0}},
        {"type": "array", "items": {"type": "array", "items": {"type": "integer", "minimum": 0}}},
        {"type": "null"},
    ],
}
REASONS = {
    400: "The request is wrong; `param` names the field.",
    401: "No key, or an unknown one.",
    403: "The key may not do this.",
    404: "No such model.",
    413: "The body is too large.",
    415: "The body's type or coding cannot be read.",
    500: "The server or the backend broke on this request.",
    503: "Full, or not ready; come back after `Retry-After` seconds.",
    504: "The deadline of the request passed.",
}


class Operation(Struct, frozen=True, kw_only=True):
    """One method of one path. `body` is a schema's name; `events` the one of a streamed answer's events."""

    path: str
    method: str
    name: str
    summary: str
    body: str | None = None
    answer: type[Struct] | None = None
    events: type[Struct] | None = None
    generates: bool = False
    needs_key: bool = True
    also: int | None = None  # a second status with the same body
    text: bool = False


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
    Operation(path="/metrics", method="get", name="readMetrics", summary="Prometheus metrics.", text=True),
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
)


def openapi_document() -> Json:
    """The document as JSON values; the same for every configuration."""
    paths: dict[str, Json] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Laneway",
            "version": own_version(),
            "description": "An OpenAI-compatible gateway with priority lanes.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "responses": {f"Error{status}": _error(reason) for status, reason in REASONS.items()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def openapi_yaml() -> str:
    """The document as YAML, as it lies in `openapi/gateway.yaml`."""
    return msgspec.yaml.encode(openapi_document()).decode()


def _operation(operation: Operation) -> Json:
    made: Json = {"operationId": operation.name, "summary": operation.summary}
    made["security"] = [{"key": []}] if operation.needs_key else []
    parameters = _parameters(operation)
    if parameters:
        made["parameters"] = parameters
    if operation.body:
        made["requestBody"] = {"required": True, "content": _json(_ref(operation.body))}
    made["responses"] = {"200": _success(operation)}
    if operation.also:
        made["responses"][str(operation.also)] = _success(operation)
    for status in _failures(operation):
        made["responses"][str(status)] = {"$ref": f"#/components/responses/Error{status}"}
    return made


def _parameters(operation: Operation) -> list[Json]:
    if "{model}" in operation.path:
        return [{"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}]
    if not operation.generates:
        return []
    lane = {"type": "string", "enum": list(LANES)}
    seconds = {"type": "number", "exclusiveMinimum": 0}
    return [
        {"name": LANE_HEADER, "in": "header", "description": "One of the key's lanes.", "schema": lane},
        {"name": TIMEOUT_HEADER, "in": "header", "description": "Seconds for the whole answer.", "schema": seconds},
    ]


def _success(operation: Operation) -> Json:
    if operation.text:
        return {"description": "Prometheus text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    if operation.answer is None:
        shape: Json = {"type": "object", "properties": {"version": {"type": "string"}}, "required": ["version"]}
        return {"description": operation.summary, "content": _json(shape)}
    content = _json(_ref(operation.answer.__name__))
    if operation.events is not None:
        content["text/event-stream"] = {"schema": _ref(operation.events.__name__)}
    return {"description": operation.summary, "content": content}


def _error(reason: str) -> Json:
    return {"description": reason, "content": _json(_ref(ErrorEnvelope.__name__))}


def _failures(operation: Operation) -> list[int]:
    """What this operation can fail with, out of the table of errors."""
    statuses = {row.status for row in TABLE.values()} & REASONS.keys()
    if not operation.needs_key:
        return []
    if not operation.generates:
        statuses -= {403, 504}
    if operation.body is None:
        statuses = {401, 404} if "{model}" in operation.path else {401}
    return sorted(statuses)


def _schemas() -> dict[str, Json]:
    shared = (SamplingFields, FormatFields, IgnoredFields)
    groups = {
        "ChatCompletionRequest": (ChatFields, *shared, ToolFields),
        "CompletionRequest": (CompletionFields, *shared),
    }
    bodies = [*groups["ChatCompletionRequest"], CompletionFields, TokenizeBody, DetokenizeBody, ErrorEnvelope]
    answers = [made for operation in OPERATIONS for made in (operation.answer, operation.events) if made is not None]
    _, schemas = msgspec.json.schema_components([*dict.fromkeys([*bodies, *answers])], ref_template=REFS)
    schemas[CompletionFields.__name__]["properties"]["prompt"] = PROMPT
    for name, parts in groups.items():
        schemas[name] = {"allOf": [_ref(part.__name__) for part in parts]}
    return dict(sorted(schemas.items()))


def _json(schema: Json) -> Json:
    return {"application/json": {"schema": schema}}


def _ref(name: str) -> Json:
    return {"$ref": REFS.format(name=name)}
