"""Steps that a migration may run twice.

On some databases each DDL statement commits by itself. There a migration that is killed half-way has made its first
steps. Each step in this module leaves out what exists already, so the next ``rota migrate`` completes the migration.
"""

from collections.abc import Sequence
from typing import Any

from alembic import op
from sqlalchemy import Column, Constraint, MetaData, String, Table, column, inspect, literal_column, table, update
from sqlalchemy.engine import URL
from sqlalchemy.schema import CreateColumn

from rota.shared.database.backends import all_backends, backend_of
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
    op.execute(update(stated).values(oldest_version=literal_column(f"'{version}'")))  # printed SQL has no parameters


def add_column(table_name: str, added: Column[Any]) -> None:
    """Add a column behind the others, with the CHECKs in its definition, unless the table has it.

    MariaDB refuses it if it would have to rebuild the table.

        add_column("schedule_task", Column("tags", Json))
    """
    if added.name in _columns(table_name):
        return
    Table(table_name, MetaData(), added)  # a column is compiled as one of its table
    definition = str(CreateColumn(added).compile(dialect=op.get_context().dialect))
    at_once = "" if runs_on("sqlite") else " /*M!, ALGORITHM=INSTANT*/"  # MySQL rebuilds a table for a CHECK
    op.execute(f"ALTER TABLE {table_name} ADD COLUMN {definition}{at_once}")


def add_index(table_name: str, name: str, columns: Sequence[str]) -> None:
    """Add an index while others write, unless the table has it.

    add_index("schedule_task", "ix_schedule_task_owner", ["owner"])
    """
    if name in _indexes(table_name):
        return
    if runs_on("sqlite"):
        op.create_index(name, table_name, list(columns))
        return
    op.execute(f"ALTER TABLE {table_name} ADD INDEX {name} ({', '.join(columns)}), ALGORITHM=INPLACE, LOCK=NONE")


def add_words(table_name: str, column_name: str, words: Sequence[str], added: Sequence[str], rest: str) -> None:
    """Add words to a column that holds one of a few. ``rest``: its definition behind the type, as MariaDB writes it.

    It rebuilds no table. A column that has the words already, and perhaps more of a later migration, stays as it is.
    Say in ``words`` those that the column had before, in their order.

        add_words("schedule_task", "status", ["on", "off"], ["paused"], "NOT NULL DEFAULT 'on' COMMENT 'it fires'")
    """
    if set(added) <= set(_words(table_name, column_name)):
        return
    backend = backend_of(URL.create(op.get_context().dialect.name))
    for statement in backend.words_added(table_name, column_name, (words, [*words, *added]), rest):
        op.execute(statement)


def create_table(
    name: str,
    *elements: Column[Any] | Constraint,
    indexes: dict[str, list[str]] | None = None,
    **options: Any,
) -> None:
    """Create the table and those of its indexes that do not exist.

    Raises DatabaseProblem if a table of this name lacks some of the columns, because then it is not Rota's. Columns
    that a later migration adds may be there already.

        create_table("schedule_task", Column("id", BigId), indexes={"ix_schedule_task_due": ["status"]})
    """
    columns = {element.name for element in elements if isinstance(element, Column)}
    existing_columns = _columns(name)
    if not existing_columns:
        op.create_table(name, *elements, **options)
    elif not columns <= existing_columns:
        odd = ", ".join(sorted(str(column) for column in existing_columns ^ columns))
        raise DatabaseProblem(
            f"a table {name} is there already and is not Rota's: it differs in {odd}; give Rota a database of its own"
        )
    existing_indexes = _indexes(name)
    for index, index_columns in (indexes or {}).items():
        if index not in existing_indexes:
            op.create_index(index, name, index_columns)


def checked(name: str, *columns: Column[Any]) -> list[Column[Any] | Constraint]:
    """The columns of a new table, and the CHECKs that hold them to what their types say on every database.

    create_table("schedule_skip", *checked("schedule_skip", Column("id", BigId), Column("first_fire", UtcTime)))
    """
    checks = [check for backend in all_backends() for column in columns for check in backend.column_checks(column)]
    for check in checks:
        check.name = f"ck_{name}_{check.name}"
    return [*columns, *checks]


def _columns(table: str) -> set[str]:
    """The table's columns; empty if it does not exist, or if the migration only prints SQL."""
    if op.get_context().as_sql:
        return set()
    inspector = inspect(op.get_bind())
    return {column["name"] for column in inspector.get_columns(table)} if inspector.has_table(table) else set()


def _words(table: str, column: str) -> list[str]:
    """The words of the column's enum; none where the database has no enums, or if the migration only prints SQL."""
    if op.get_context().as_sql:
        return []
    types = {found["name"]: found["type"] for found in inspect(op.get_bind()).get_columns(table)}
    return list(getattr(types[column], "enums", ()))


def _indexes(table: str) -> set[str | None]:
    if op.get_context().as_sql:
        return set()
    return {index["name"] for index in inspect(op.get_bind()).get_indexes(table)}
