"""Run by Alembic for every command: revisions run over the connection, and in the transaction, that `upgrade` gives."""

from __future__ import annotations

from alembic import context

from gateway.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
