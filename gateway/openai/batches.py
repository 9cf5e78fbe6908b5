"""Batches as `/v1/batches` shows them, and what is said to make and to list them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from gateway.batches import Batch, Endpoint, Status, TokenSums, Wish
from gateway.openai import decoding
from gateway.openai.files import Expiry, read_query
from gateway.openai.text import to_json

Key = Annotated[str, Meta(max_length=64)]
Value = Annotated[str, Meta(max_length=512)]


class BatchFields(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/batches`."""

    input_file_id: str
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Annotated[dict[Key, Value], Meta(max_length=16)] | None = None
    output_expires_after: Expiry | None = None


class BatchesQuery(Struct, frozen=True, kw_only=True):
    """`after` is the id of the last batch of the page before; the newest come first."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    after: str | None = None


class BatchFault(Struct, frozen=True, kw_only=True):
    """Why a batch failed. `line` counts the lines of the input file from 1."""

    code: str
    message: str
    param: str | None
    line: int | None


class BatchFaults(Struct, frozen=True, kw_only=True):
    """A list of them."""

    object: Literal["list"] = "list"
    data: tuple[BatchFault, ...]


class RequestCounts(Struct, frozen=True, kw_only=True):
    """Lines of the batch. `failed` are those in the error file."""

    total: int
    completed: int
    failed: int


class CachedTokens(Struct, frozen=True, kw_only=True):
    """Of the input."""

    cached_tokens: int


class ReasoningTokens(Struct, frozen=True, kw_only=True):
    """Of the output."""

    reasoning_tokens: int


class BatchUsage(Struct, frozen=True, kw_only=True):
    """Tokens of all lines, as they were billed."""

    input_tokens: int
    input_tokens_details: CachedTokens
    output_tokens: int
    output_tokens_details: ReasoningTokens
    total_tokens: int


class BatchObject(Struct, frozen=True, kw_only=True):
    """OpenAI's batch object. Instants are in Unix seconds."""

    id: str
    object: Literal["batch"]
    endpoint: str
    errors: BatchFaults | None
    input_file_id: str
    completion_window: Literal["24h"]
    status: Status
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage | None
    metadata: dict[str, str] | None


class BatchList(Struct, frozen=True, kw_only=True):
    """The answer of `GET /v1/batches`."""

    object: Literal["list"] = "list"
    data: tuple[BatchObject, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


def read_batch(body: bytes) -> Wish:
    """What a body asks for. Raises `InvalidBody` naming the field."""
    asked = decoding.read(decoding.decode_object(body), BatchFields)
    return Wish(
        endpoint=asked.endpoint,
        input_file_id=asked.input_file_id,
        metadata=asked.metadata,
        output_expires_after_s=None if asked.output_expires_after is None else asked.output_expires_after.seconds,
    )


def read_batches_query(values: Mapping[str, str]) -> BatchesQuery:
    """Raises `InvalidBody` naming the parameter."""
    return read_query(values, BatchesQuery)


def batch_object(batch: Batch) -> BatchObject:
    """As it is shown."""
    faults = tuple(
        BatchFault(code=fault.code, message=fault.message, param=fault.param, line=fault.line) for fault in batch.errors
    )
    return BatchObject(
        id=batch.id,
        object="batch",
        endpoint=batch.endpoint,
        errors=BatchFaults(data=faults) if faults else None,
        input_file_id=batch.input_file_id,
        completion_window="24h",
        status=batch.status,
        output_file_id=batch.output_file_id,
        error_file_id=batch.error_file_id,
        created_at=batch.created_at,
        in_progress_at=batch.in_progress_at,
        expires_at=batch.expires_at,
        finalizing_at=batch.finalizing_at,
        completed_at=batch.completed_at,
        failed_at=batch.failed_at,
        expired_at=batch.expired_at,
        cancelling_at=batch.cancelling_at,
        cancelled_at=batch.cancelled_at,
        request_counts=RequestCounts(total=batch.total, completed=batch.completed, failed=batch.failed),
        usage=None if batch.usage is None else _usage(batch.usage),
        metadata=batch.metadata,
    )


def batch_list(found: Sequence[Batch], *, has_more: bool) -> bytes:
    """A page of batches."""
    ends = (found[0].id, found[-1].id) if found else (None, None)
    data = tuple(batch_object(batch) for batch in found)
    return to_json(BatchList(data=data, first_id=ends[0], last_id=ends[1], has_more=has_more))


def _usage(sums: TokenSums) -> BatchUsage:
    return BatchUsage(
        input_tokens=sums.prompt,
        input_tokens_details=CachedTokens(cached_tokens=sums.cached),
        output_tokens=sums.completion,
        output_tokens_details=ReasoningTokens(reasoning_tokens=sums.reasoning),
        total_tokens=sums.prompt + sums.completion,
    )
