"""Whether a database is what Rota needs."""

from sqlalchemy import Connection, inspect

VERSION_TABLE = "rota_schema_version"
"""Where Alembic notes the schema's revision."""


def schema_revision(connection: Connection) -> str | None:
    """The revision the schema is at; None where it was never migrated."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalars().all()
    return ", ".join(sorted(map(str, found))) or None
