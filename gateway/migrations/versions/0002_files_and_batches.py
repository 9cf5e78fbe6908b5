"""Files and batches."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("tenant", sa.Text, nullable=False, index=True),
        sa.Column("filename", sa.Text, nullable=False),
        sa.Column("purpose", sa.Text, nullable=False),
        sa.Column("bytes", sa.BigInteger, nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("expires_at", sa.BigInteger, index=True),
    )
    op.create_table(
        "batches",
        sa.Column("id", sa.Text, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("project", "key_id", "endpoint")),
        *(sa.Column(name, sa.Text, nullable=False, index=True) for name in ("tenant", "input_file_id", "status")),
        sa.Column("metadata", sa.Text),
        sa.Column("output_expires_after_s", sa.BigInteger),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("total", "completed", "failed")),
        *(sa.Column(name, sa.Text) for name in ("usage", "errors", "output_file_id", "error_file_id")),
        *(sa.Column(f"{name}_at", sa.BigInteger, nullable=False) for name in ("created", "expires")),
        *(sa.Column(f"{status}_at", sa.BigInteger) for status in ("in_progress", "finalizing", "completed", "failed")),
        *(sa.Column(f"{status}_at", sa.BigInteger) for status in ("expired", "cancelling", "cancelled")),
    )
    op.create_table(
        "batch_lines",
        sa.Column("batch_id", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("request_id", sa.Text, nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.Index("ix_batch_lines_progress", "batch_id", "status"),
    )
