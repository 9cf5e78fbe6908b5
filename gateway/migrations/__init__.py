"""How the tables of the store came to be, and how a store of an older Laneway becomes one of this."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy
from sqlalchemy import Connection

from backends.errors import ConfigError

HEAD = "0002"  # the newest revision in `versions/`
VERSION_TABLE = "alembic_version"


def version(connection: Connection) -> str | None:
    """The revision that the database is at; None for a new one."""
    if not sqlalchemy.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(sqlalchemy.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def upgrade(connection: Connection) -> None:
    """Bring the database to `HEAD` in the caller's transaction, which must hold the write lock.

    Raises `ConfigError` for a database that a newer Laneway made.
    """
    # Not at the top: loading Alembic takes longer than all the rest of a start, and hardly any start migrates.
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    found = version(connection)
    try:
        ScriptDirectory.from_config(config).get_revision(found or HEAD)
    except CommandError:
        raise ConfigError(
            f"store.url: the database is of a newer Laneway (schema {found}, this one knows up to {HEAD}); "
            "run that Laneway, or name another database"
        ) from None
    command.upgrade(config, "head")
