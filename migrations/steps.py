"""Steps that a migration may run twice.

On MySQL and MariaDB a DDL statement commits by itself, so a migration that is killed half-way leaves its first half
behind. Each step here leaves out what is there already, and the next ``rota migrate`` goes on where it stopped.
"""

from typing import Any

from alembic import op
from sqlalchemy import Column, Constraint, inspect

from shared.domain.errors import DatabaseProblem


def is_sqlite() -> bool:
    """Whether the migration runs on (or prints SQL for) SQLite."""
    return op.get_context().dialect.name == "sqlite"


def create_table(
    name: str,
    *elements: Column[Any] | Constraint,
    indexes: dict[str, list[str]] | None = None,
    **options: Any,
) -> None:
    """Create the table and its indexes, as far as they are not there.

    Raises DatabaseProblem where a table of that name has other columns: it is not the one we left half-made.

        create_table("schedule_task", Column("id", BigId), indexes={"ix_schedule_task_due": ["status"]})
    """
    columns = {element.name for element in elements if isinstance(element, Column)}
    present = _columns(name)
    if not present:
        op.create_table(name, *elements, **options)
    elif present != columns:
        odd = ", ".join(sorted(str(column) for column in present ^ columns))
        raise DatabaseProblem(
            f"a table {name} is there already and is not Rota's: it differs in {odd}; give Rota a database of its own"
        )
    existing = _indexes(name)
    for index, over in (indexes or {}).items():
        if index not in existing:
            op.create_index(index, name, over)


def _columns(table: str) -> set[str]:
    """The table's columns; empty if it is not there, or where SQL is only printed."""
    if op.get_context().as_sql:
        return set()
    inspector = inspect(op.get_bind())
    return {column["name"] for column in inspector.get_columns(table)} if inspector.has_table(table) else set()


def _indexes(table: str) -> set[str | None]:
    if op.get_context().as_sql:
        return set()
    return {index["name"] for index in inspect(op.get_bind()).get_indexes(table)}
