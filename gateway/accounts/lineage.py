"""Lines of keys: a key, what it was rotated into, and so on. Limits of a key are the whole line's, under its first id.

A rotation must not double a limit. If each key of a line had limits of its own, its owner would have two budgets while
both keys live, and a new one at each rotation.
"""

from __future__ import annotations

from sqlalchemy import Connection, select

from gateway.tables import keys


def first_ids(connection: Connection) -> dict[str, str]:
    """The first id of the line, for each key that replaces another."""
    rows = connection.execute(select(keys.c.id, keys.c.replaces).where(keys.c.replaces.is_not(None)))
    replaces: dict[str, str] = {row.id: row.replaces for row in rows}
    first = {}
    for key_id, old in replaces.items():
        while old in replaces:
            old = replaces[old]
        first[key_id] = old
    return first


def line_of(connection: Connection, first_id: str) -> list[str]:
    """Every key of the line that begins with this one."""
    return [first_id, *(key_id for key_id, first in first_ids(connection).items() if first == first_id)]
