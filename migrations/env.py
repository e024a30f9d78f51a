"""Alembic runs this file. It migrates the connection that it is given, or prints SQL if it is given only a URL."""

from alembic import context

from rota.shared.database.checks import VERSION_TABLE

given = context.config.attributes
context.configure(
    connection=given.get("connection"),
    url=given.get("url"),
    version_table=VERSION_TABLE,
    transactional_ddl=given["transactional"],
)

with context.begin_transaction():
    context.run_migrations()
