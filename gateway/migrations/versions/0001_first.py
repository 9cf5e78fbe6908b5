"""The first tables. Written out, and not taken from `gateway/tables.py`, because that changes and this must not."""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None


def upgrade() -> None:
    _create_directory()
    _create_audit()
    _create_ledger()
    _create_rollups()
    _create_the_rest()
    _insert_first_rows()


def _text(name: str, *, is_key: bool = False, may_be_null: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, primary_key=is_key, nullable=may_be_null)


def _number(name: str, *, is_key: bool = False, may_be_null: bool = False, index: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, primary_key=is_key, nullable=may_be_null, index=index)


def _create_directory() -> None:
    op.create_table(
        "revisions",
        sa.Column("id", sa.Integer, primary_key=True),
        _number("value"),
    )
    op.create_table(
        "secrets",
        _text("name", is_key=True),
        sa.Column("value", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "tenants",
        _text("name", is_key=True),
        sa.Column("weight", sa.Float, nullable=False),
        _text("time_zone"),
        _text("models", may_be_null=True),
        _text("lanes", may_be_null=True),
        _number("created_at"),
        _number("ended_at", may_be_null=True),
        _number("revision", index=True),
    )
    op.create_table(
        "projects",
        _text("tenant", is_key=True),
        _text("name", is_key=True),
        _text("models", may_be_null=True),
        _text("lanes", may_be_null=True),
        _number("created_at"),
        _number("ended_at", may_be_null=True),
        _number("revision", index=True),
        sa.ForeignKeyConstraint(["tenant"], ["tenants.name"]),
    )
    op.create_table(
        "keys",
        _text("id", is_key=True),
        sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
        *(_text(name) for name in ("hint", "tenant", "project", "name", "role")),
        *(_text(name, may_be_null=True) for name in ("models", "lanes", "default_lane")),
        _number("created_at"),
        _number("expires_at", may_be_null=True),
        _number("revoked_at", may_be_null=True),
        _text("replaces", may_be_null=True),
        _number("revision", index=True),
        sa.ForeignKeyConstraint(["tenant", "project"], ["projects.tenant", "projects.name"]),
    )
    op.create_table(
        "limits",
        _text("id", is_key=True),
        _text("scope_kind"),
        _text("scope_id"),
        _text("model", may_be_null=True),
        _text("meter"),
        _number("amount"),
        _text("period", may_be_null=True),
        _text("mode"),
        _number("created_at"),
        _number("ended_at", may_be_null=True),
        _number("revision", index=True),
    )
    op.create_table(
        "prices",
        sa.Column("version", sa.Integer, primary_key=True, autoincrement=True),
        _text("model"),
        *(_number(f"{kind}_nano") for kind in ("prompt", "completion", "cached")),
        _number("created_at"),
        _number("revision", index=True),
    )


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=True),
        _number("created_at", index=True),
        *(_text(name) for name in ("actor", "action", "target", "detail")),
    )


def _create_ledger() -> None:
    op.create_table(
        "ledger_events",
        _text("request_id", is_key=True),
        sa.Column("kind", sa.SmallInteger, primary_key=True),
        sa.Column("seq", sa.Integer, primary_key=True),
        _number("at"),
        *(_text(name) for name in ("run_id", "tenant", "project", "key_id", "model")),
        *(_text(name) for name in ("route", "lane", "backend", "outcome", "source")),
        *(_number(f"{kind}_tokens") for kind in ("prompt", "completion", "cached", "reasoning")),
        _number("cost_nano"),
        sa.Column("price_version", sa.Integer, nullable=False),
        *(_number(name, may_be_null=True) for name in ("wait_ms", "ttft_ms", "total_ms")),
        _text("detail"),
        postgresql_partition_by="RANGE (request_id)",
    )
    if op.get_bind().dialect.name == "postgresql":  # what no partition of a month takes, so that no insert ever fails
        op.execute("CREATE TABLE ledger_events_default PARTITION OF ledger_events DEFAULT")
    op.create_table(
        "open_requests",
        _text("request_id", is_key=True),
        sa.Column("run_id", sa.Text, nullable=False, index=True),
        sqlite_with_rowid=False,
    )


def _create_rollups() -> None:
    for name in ("usage_hours", "usage_days"):
        op.create_table(
            name,
            _number("starts_at", is_key=True),
            *(_text(name, is_key=True) for name in ("tenant", "project", "key_id", "model")),
            *(_text(name, is_key=True) for name in ("lane", "outcome", "source")),
            _number("requests"),
            *(_number(f"{kind}_tokens") for kind in ("prompt", "completion", "cached", "reasoning")),
            _number("cost_nano"),
            sqlite_with_rowid=False,
        )
    op.create_table(
        "budget_windows",
        _text("rule_id", is_key=True),
        _number("starts_at", is_key=True),
        _number("opening"),
        _number("used"),
        sqlite_with_rowid=False,
    )


def _create_the_rest() -> None:
    op.create_table(
        "answers",
        _text("key_id", is_key=True),
        sa.Column("name_digest", sa.LargeBinary, primary_key=True),
        sa.Column("body_digest", sa.LargeBinary, nullable=False),
        _text("request_id"),
        _number("at", index=True),
        _text("content_type"),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "servers",
        _text("run_id", is_key=True),
        _text("host"),
        sa.Column("pid", sa.Integer, nullable=False),
        _text("control"),
        _number("started_at"),
        _number("seen_at"),
    )


def _insert_first_rows() -> None:
    revisions = sa.table("revisions", sa.column("id", sa.Integer), sa.column("value", sa.BigInteger))
    kept = sa.table("secrets", sa.column("name", sa.Text), sa.column("value", sa.LargeBinary))
    op.execute(revisions.insert().values(id=1, value=0))
    op.execute(kept.insert().values(name="pepper", value=secrets.token_bytes(32)))
