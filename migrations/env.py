"""What Alembic runs: it migrates the connection it was given, or prints SQL where it was given only a URL."""

from alembic import context

from shared.store.checks import VERSION_TABLE

given = context.config.attributes
context.configure(
    connection=given.get("connection"),
    url=given.get("url"),
    version_table=VERSION_TABLE,
    transactional_ddl=given["transactional"],
)

with context.begin_transaction():
    context.run_migrations()
