"""What the ledger writes: events of requests, as rows. Made by `ledger.py`, stored by `journal.py`, read by many."""

from __future__ import annotations

import enum
from typing import Literal, TypeAlias

from msgspec import Struct

Outcome: TypeAlias = Literal["ok", "client_abort", "deadline", "refused", "shed", "backend_error", "stopped", "crash"]
Source: TypeAlias = Literal["reported", "counted", "estimated", "none"]


class Kind(enum.IntEnum):
    """Of an event, in the order in which a request has them."""

    ADMIT = 0
    ATTEMPT = 1
    PROGRESS = 2
    SETTLE = 3


class Event(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """One row of `ledger_events`; the fields are its columns, in their order. Unique by (request_id, kind, seq).

    `at` is in Unix milliseconds. `seq` numbers attempts from 1 and progress from 1; it is 0 for admit and settle, so
    that a request is settled once. Admit: `prompt_tokens` and `completion_tokens` are the estimate that was reserved,
    `cost_nano` its cost. Attempt: `backend`, what it waited (`wait_ms`) and, where it failed, `outcome`. Progress and
    settle: what was used so far, over all choices. Only a settle's `cost_nano` is money. `source` says where the counts
    come from: the backend reported them, they were counted with a tokenizer, or estimated; `none` where nothing was
    computed. `detail` is JSON, see `Detail`.
    """

    request_id: str
    kind: Kind
    seq: int
    at: int
    run_id: str
    tenant: str
    project: str
    key_id: str
    model: str
    route: str
    lane: str
    backend: str = ""
    outcome: str = ""
    source: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost_nano: int = 0
    price_version: int = 0
    wait_ms: int | None = None
    ttft_ms: int | None = None
    total_ms: int | None = None
    detail: str = ""


class Charge(Struct, frozen=True, array_like=True, gc=False):
    """What a settle adds to one window of one budget: tokens or nano-dollars, as the rule counts."""

    rule_id: str
    starts_at: int
    amount: int


class Detail(Struct, frozen=True, omit_defaults=True):
    """The JSON in `Event.detail`.

    Admit: `shown_id`, `stream`, `line` (of a batch: its id and the line's number), and the budget windows that were
    reserved in (amount: the reservation). Settle:
    `charges` as they were added to the windows, `error` (class name), `shown_id`, `attempts`. Attempt: `error`.
    """

    shown_id: str | None = None
    stream: bool | None = None
    charges: tuple[Charge, ...] = ()
    error: str | None = None
    attempts: int | None = None
    line: str | None = None


class Answer(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A finished answer kept for its Idempotency-Key. Digests are SHA-256; `at` is in Unix milliseconds."""

    key_id: str
    name_digest: bytes
    body_digest: bytes
    request_id: str
    at: int
    content_type: str
    body: bytes


class Line(Struct, frozen=True, array_like=True, kw_only=True, gc=False):
    """A line of a batch that is done. `number` counts its lines from 1; `status` is the one that HTTP would have."""

    batch_id: str
    number: int
    request_id: str
    status: int
    body: bytes


class Admitted(Struct, frozen=True, array_like=True, tag="a", gc=False):
    """A request was let in; it is open until it is settled."""

    event: Event


class Noted(Struct, frozen=True, array_like=True, tag="n", gc=False):
    """An attempt, or how far a request is."""

    event: Event


class Settled(Struct, frozen=True, array_like=True, tag="s", gc=False):
    """A request is over: its event, its rollups, its charges and its kept answer become durable together, once; and so
    does the line of a batch that it was."""

    event: Event
    charges: tuple[Charge, ...] = ()
    answer: Answer | None = None
    line: Line | None = None


Record: TypeAlias = Admitted | Noted | Settled
