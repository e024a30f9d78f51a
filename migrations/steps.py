"""Steps that a migration may run twice.

On some databases each DDL statement commits by itself. There a migration that is killed half-way has made its first
steps. Each step in this module leaves out what exists already, so the next ``rota migrate`` completes the migration.
"""

from typing import Any

from alembic import op
from sqlalchemy import Column, Constraint, String, column, inspect, table, update

from rota.shared.database.checks import VERSION_TABLE
from rota.shared.domain.errors import DatabaseProblem


def runs_on(dialect: str) -> bool:
    """Whether the migration runs on this database or prints SQL for it: ``runs_on("sqlite")``."""
    return op.get_context().dialect.name == dialect


def state_oldest_version(version: str) -> None:
    """State the oldest version of Rota that may run on the schema from here on. It is the first step of a migration.

    A Rota that is older refuses to start as soon as this is written, and not only when the migration is done.

        state_oldest_version("0.3.0")
    """
    stated = table(VERSION_TABLE, column("oldest_version", String(31)))
    op.execute(update(stated).values(oldest_version=version))


def add_column(table_name: str, added: Column[Any]) -> None:
    """Add a column, unless the table has it.

    add_column("schedule_task", Column("tags", Json))
    """
    if added.name not in _columns(table_name):
        op.add_column(table_name, added)


def create_table(
    name: str,
    *elements: Column[Any] | Constraint,
    indexes: dict[str, list[str]] | None = None,
    **options: Any,
) -> None:
    """Create the table and those of its indexes that do not exist.

    Raises DatabaseProblem if a table of this name has other columns, because then it is not Rota's.

        create_table("schedule_task", Column("id", BigId), indexes={"ix_schedule_task_due": ["status"]})
    """
    columns = {element.name for element in elements if isinstance(element, Column)}
    existing_columns = _columns(name)
    if not existing_columns:
        op.create_table(name, *elements, **options)
    elif existing_columns != columns:
        odd = ", ".join(sorted(str(column) for column in existing_columns ^ columns))
        raise DatabaseProblem(
            f"a table {name} is there already and is not Rota's: it differs in {odd}; give Rota a database of its own"
        )
    existing_indexes = _indexes(name)
    for index, index_columns in (indexes or {}).items():
        if index not in existing_indexes:
            op.create_index(index, name, index_columns)


def _columns(table: str) -> set[str]:
    """The table's columns; empty if it does not exist, or if the migration only prints SQL."""
    if op.get_context().as_sql:
        return set()
    inspector = inspect(op.get_bind())
    return {column["name"] for column in inspector.get_columns(table)} if inspector.has_table(table) else set()


def _indexes(table: str) -> set[str | None]:
    if op.get_context().as_sql:
        return set()
    return {index["name"] for index in inspect(op.get_bind()).get_indexes(table)}
