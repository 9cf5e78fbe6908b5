"""One change of an operator: a transaction that bumps the revision of the rows it writes, and leaves audit rows."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from sqlalchemy import ColumnElement, Connection, RowMapping, Table, select

from gateway.errors import Conflict, NotFound
from gateway.openai.faults import cut
from gateway.tables import audit, keys, limits, projects, tenants


class Change:
    """`connection` is in the transaction; `now` is in whole Unix seconds."""

    def __init__(self, connection: Connection, revision: int, actor: str, now: int) -> None:
        self.connection = connection
        self.revision = revision
        self.actor = actor
        self.now = now

    def tenant(self, name: str) -> RowMapping:
        """A tenant that has not ended. Raises `NotFound`, `Conflict`."""
        return self._living(tenants, tenants.c.name == name, "tenant", name)

    def project(self, tenant: str, name: str) -> RowMapping:
        """A project that has not ended. Raises `NotFound`, `Conflict`."""
        is_it = (projects.c.tenant == tenant) & (projects.c.name == name)
        return self._living(projects, is_it, "project", f"{tenant}/{name}")

    def key(self, key_id: str) -> RowMapping:
        """A key, in any state. Raises `NotFound`."""
        row = self.first(keys, keys.c.id == key_id)
        if row is None:
            raise missing("key", key_id)
        return row

    def limit(self, limit_id: str) -> RowMapping:
        """A limit, ended or not. Raises `NotFound`."""
        row = self.first(limits, limits.c.id == limit_id)
        if row is None:
            raise missing("limit", limit_id)
        return row

    def first(self, table: Table, where: ColumnElement[bool]) -> RowMapping | None:
        """The row, or one of them."""
        return self.connection.execute(select(table).where(where)).mappings().first()

    def insert(self, table: Table, **values: object) -> None:
        """A new row of this revision, made now."""
        row = {"created_at": self.now, "revision": self.revision} | _stored(values)
        self.connection.execute(table.insert().values(row))

    def update(self, table: Table, where: ColumnElement[bool], **values: object) -> None:
        """Rows change, and get this revision."""
        self.connection.execute(table.update().where(where).values({"revision": self.revision} | _stored(values)))

    def note(self, action: str, target: str, **detail: object) -> None:
        """What was done to what, for the audit log. What is None is not worth a word."""
        said = {name: value for name, value in detail.items() if value is not None}
        self.connection.execute(
            audit.insert().values(
                created_at=self.now,
                actor=self.actor,
                action=action,
                target=target,
                detail=msgspec.json.encode(said).decode(),
            )
        )

    def _living(self, table: Table, is_it: ColumnElement[bool], noun: str, name: str) -> RowMapping:
        row = self.first(table, is_it)
        if row is None:
            raise missing(noun, name)
        if row["ended_at"] is not None:
            raise Conflict(
                f"The {noun} '{cut(name)}' has ended. Names are not given again; choose another.", param=noun
            )
        return row


def _stored(values: Mapping[str, object]) -> dict[str, object]:
    """Lists of names are kept as JSON."""
    return {
        name: msgspec.json.encode(value).decode() if isinstance(value, tuple) else value
        for name, value in values.items()
    }


def missing(noun: str, name: str) -> NotFound:
    """An admin call names what is not there."""
    return NotFound(f"There is no {noun} '{cut(name)}'.", code=f"{noun}_not_found")
