"""The tables of the store, for queries and for the migrations to be compared with. Instants end in `_at`: Unix seconds,
except in the ledger's events and answers (`at`): Unix milliseconds."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
)

METADATA = MetaData()


# What the server and its operators decide. `revision` is the value of `revisions` at the row's last change, so that
# a reader fetches only what changed; nothing is ever deleted here, only ended (`*_at`).

revisions = Table(
    "revisions",
    METADATA,
    Column("id", Integer, primary_key=True),  # one row: 1
    Column("value", BigInteger, nullable=False),
)

secrets = Table(
    "secrets",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("value", LargeBinary, nullable=False),
)

tenants = Table(
    "tenants",
    METADATA,
    Column("name", Text, primary_key=True),
    Column("weight", Float, nullable=False),
    Column("time_zone", Text, nullable=False),
    Column("models", Text),  # JSON array of names; null: every model
    Column("lanes", Text),  # JSON array of names; null: every lane
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("revision", BigInteger, nullable=False, index=True),
)

projects = Table(
    "projects",
    METADATA,
    Column("tenant", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("models", Text),
    Column("lanes", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("revision", BigInteger, nullable=False, index=True),
    ForeignKeyConstraint(["tenant"], ["tenants.name"]),
)

keys = Table(
    "keys",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False, unique=True),
    Column("hint", Text, nullable=False),  # enough of the key for its owner to recognise it
    Column("tenant", Text, nullable=False),
    Column("project", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("models", Text),
    Column("lanes", Text),
    Column("default_lane", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("replaces", Text),  # the id of the key that this one was rotated from
    Column("revision", BigInteger, nullable=False, index=True),
    ForeignKeyConstraint(["tenant", "project"], ["projects.tenant", "projects.name"]),
)

limits = Table(
    "limits",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("scope_kind", Text, nullable=False),
    Column("scope_id", Text, nullable=False),
    Column("model", Text),
    Column("meter", Text, nullable=False),
    Column("amount", BigInteger, nullable=False),
    Column("period", Text),
    Column("mode", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Column("revision", BigInteger, nullable=False, index=True),
)

prices = Table(
    "prices",
    METADATA,
    Column("version", Integer, primary_key=True, autoincrement=True),
    Column("model", Text, nullable=False),
    Column("prompt_nano", BigInteger, nullable=False),  # nano-dollars a million tokens
    Column("completion_nano", BigInteger, nullable=False),
    Column("cached_nano", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
)

audit = Table(
    "audit",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=True),
    Column("created_at", BigInteger, nullable=False, index=True),
    Column("actor", Text, nullable=False),  # a key's id, or `cli:USER`
    Column("action", Text, nullable=False),  # such as `key.create`
    Column("target", Text, nullable=False),  # the id of what was changed
    Column("detail", Text, nullable=False),  # JSON; never a secret
)

# What was used. Written by the journal alone, always in one transaction.

ledger_events = Table(
    "ledger_events",
    METADATA,
    # Ids grow with time, so rows of one time lie together, and a month is a range of ids.
    Column("request_id", Text, primary_key=True),
    Column("kind", SmallInteger, primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("at", BigInteger, nullable=False),
    *(Column(name, Text, nullable=False) for name in ("run_id", "tenant", "project", "key_id", "model")),
    *(Column(name, Text, nullable=False) for name in ("route", "lane", "backend", "outcome", "source")),
    *(Column(f"{kind}_tokens", BigInteger, nullable=False) for kind in ("prompt", "completion", "cached", "reasoning")),
    Column("cost_nano", BigInteger, nullable=False),
    Column("price_version", Integer, nullable=False),
    *(Column(name, BigInteger) for name in ("wait_ms", "ttft_ms", "total_ms")),
    Column("detail", Text, nullable=False),
    # SQLite appends to a table of rows at half the price of a table that is its own index.
    postgresql_partition_by="RANGE (request_id)",
)

open_requests = Table(
    "open_requests",
    METADATA,
    Column("request_id", Text, primary_key=True),
    Column("run_id", Text, nullable=False, index=True),
    sqlite_with_rowid=False,
)

ROLLUP_DIMENSIONS = ("tenant", "project", "key_id", "model", "lane", "outcome", "source")
ROLLUP_SUMS = (
    "requests",
    "prompt_tokens",
    "completion_tokens",
    "cached_tokens",
    "reasoning_tokens",
    "cost_nano",
)


def _rollup(name: str) -> Table:
    return Table(
        name,
        METADATA,
        Column("starts_at", BigInteger, primary_key=True),  # of the hour or the day, in UTC
        *(Column(dimension, Text, primary_key=True) for dimension in ROLLUP_DIMENSIONS),
        *(Column(amount, BigInteger, nullable=False) for amount in ROLLUP_SUMS),
        sqlite_with_rowid=False,
    )


usage_hours = _rollup("usage_hours")
usage_days = _rollup("usage_days")

budget_windows = Table(
    "budget_windows",
    METADATA,
    Column("rule_id", Text, primary_key=True),
    Column("starts_at", BigInteger, primary_key=True),
    Column("opening", BigInteger, nullable=False),  # used before the rule was made, from the rollups
    Column("used", BigInteger, nullable=False),  # charged by settles
    sqlite_with_rowid=False,
)

answers = Table(
    "answers",
    METADATA,
    Column("key_id", Text, primary_key=True),
    Column("name_digest", LargeBinary, primary_key=True),
    Column("body_digest", LargeBinary, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("at", BigInteger, nullable=False, index=True),
    Column("content_type", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

# What clients keep here, and have worked off. Ids grow with time.

files = Table(
    "files",
    METADATA,
    Column("id", Text, primary_key=True),
    Column("tenant", Text, nullable=False, index=True),
    Column("filename", Text, nullable=False),
    Column("purpose", Text, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, index=True),
)

batches = Table(
    "batches",
    METADATA,
    Column("id", Text, primary_key=True),
    *(Column(name, Text, nullable=False) for name in ("project", "key_id", "endpoint")),
    Column("tenant", Text, nullable=False, index=True),
    Column("input_file_id", Text, nullable=False, index=True),
    Column("status", Text, nullable=False, index=True),
    Column("metadata", Text),  # JSON object of texts
    Column("output_expires_after_s", BigInteger),
    Column("total", Integer, nullable=False),  # lines; 0 until they were validated
    Column("completed", Integer, nullable=False),  # of the end; while it runs `batch_lines` knows
    Column("failed", Integer, nullable=False),
    Column("usage", Text),  # JSON, at the end
    Column("errors", Text),  # JSON array, of a failed one
    Column("output_file_id", Text),
    Column("error_file_id", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    *(Column(f"{status}_at", BigInteger) for status in ("in_progress", "finalizing", "completed", "failed")),
    *(Column(f"{status}_at", BigInteger) for status in ("expired", "cancelling", "cancelled")),
)

# The lines of batches that are done, until the batch is. Of a line that was billed, written with its settle.
batch_lines = Table(
    "batch_lines",
    METADATA,
    Column("batch_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("request_id", Text, nullable=False),
    Column("status", Integer, nullable=False),  # of HTTP
    Column("body", LargeBinary, nullable=False),
    Index("ix_batch_lines_progress", "batch_id", "status"),
)

# Who writes here now.

servers = Table(
    "servers",
    METADATA,
    Column("run_id", Text, primary_key=True),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("control", Text, nullable=False),  # path of its control socket on `host`
    Column("started_at", BigInteger, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
)
