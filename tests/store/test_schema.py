"""Migrations and tables agree, down to what the database itself writes down."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import CheckConstraint, DefaultClause, Index, MetaData, String, UniqueConstraint, make_url, text

from rota import migrations
from rota.shared.database.transactions import opened
from rota.shared.store import tables
from rota.shared.store.tables import metadata
from tests.harness.databases import MariaDBServer, fresh_database, is_mysql, run_sql
from tests.harness.schemas import BOOKKEEPING, ddl, is_sqlite, typed


@contextmanager
def created(url: str, schema: MetaData, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of another database of the same kind, which has `schema` by create_all."""
    if is_sqlite(url):
        folder: Path = request.getfixturevalue("tmp_path")
        other = f"sqlite:///{folder / 'created.db'}"
        with opened(other) as database:
            schema.create_all(database.engine)
        yield other
        return
    server: MariaDBServer = request.getfixturevalue("mariadb_server")
    with fresh_database(server) as other, opened(other) as database:
        schema.create_all(database.engine)
        yield other


def declared_again() -> MetaData:
    """The tables once more, to be changed. (SQLAlchemy's own copy of a table forgets `ddl_if`.)"""
    spec = importlib.util.spec_from_file_location("tables_again", tables.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    again: MetaData = module.metadata
    return again


def test_a_migrated_database_is_what_the_tables_say(database_url: str, request: pytest.FixtureRequest) -> None:
    migrations.upgrade(database_url)
    with created(database_url, metadata, request) as other:
        assert ddl(database_url) == ddl(other)


def test_alembic_finds_nothing_left_to_migrate(database_url: str) -> None:
    migrations.upgrade(database_url)
    assert differences(database_url, metadata) == []


def differences(url: str, schema: MetaData) -> list[Any]:
    """What Alembic would have to do to a database, to make it what the tables say."""

    def is_ours(name: str | None, kind: str, parents: Any) -> bool:
        return kind != "table" or name not in BOOKKEEPING

    with opened(url) as database, database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "include_name": is_ours})
        return list(compare_metadata(context, schema))


def wider_column(schema: MetaData) -> None:
    schema.tables["schedule_task"].c.name.type = String(64)


def nullable_column(schema: MetaData) -> None:
    schema.tables["schedule_task"].c.timezone.nullable = True


def other_default(schema: MetaData) -> None:
    schema.tables["schedule_task"].c.priority.server_default = DefaultClause("4")


def other_comment(schema: MetaData) -> None:
    schema.tables["schedule_instance"].c.fire_key.comment = "something else"


def other_rule(schema: MetaData) -> None:
    computed = schema.tables["schedule_task"].c.live_name.computed
    assert computed is not None
    computed.sqltext = text("CASE WHEN is_deleted = 0 AND status = 'on' THEN name END")


def missing_index(schema: MetaData) -> None:
    table = schema.tables["schedule_instance"]
    table.indexes.remove(next(index for index in table.indexes if index.name == "ix_schedule_instance_work"))


def other_index(schema: MetaData) -> None:
    missing_index(schema)
    table = schema.tables["schedule_instance"]
    Index("ix_schedule_instance_work", table.c.status, table.c.schedule_worker_node_id, table.c.due_at)


def missing_key(schema: MetaData) -> None:
    table = schema.tables["schedule_instance"]
    key = next(c for c in table.constraints if isinstance(c, UniqueConstraint) and "fire_key" in c.columns)
    table.constraints.remove(key)


def missing_check(schema: MetaData) -> None:
    table = schema.tables["schedule_task"]
    check = next(c for c in table.constraints if isinstance(c, CheckConstraint) and "priority_from" in str(c.name))
    table.constraints.remove(check)


def other_collation(schema: MetaData) -> None:
    schema.tables["schedule_task"].dialect_options["mysql"]["collate"] = "utf8mb4_general_ci"


MUTATIONS = (
    wider_column,
    nullable_column,
    other_default,
    other_comment,
    other_rule,
    missing_index,
    other_index,
    missing_key,
    missing_check,
    other_collation,
)
NOT_IN_SQLITE = (other_comment, other_collation)


@pytest.mark.parametrize("mutate", MUTATIONS, ids=lambda mutate: mutate.__name__)
def test_a_difference_between_them_is_noticed(
    mutate: Callable[[MetaData], None], migrated_url: str, request: pytest.FixtureRequest
) -> None:
    if is_sqlite(migrated_url) and mutate in NOT_IN_SQLITE:
        pytest.skip("SQLite has no such thing")
    changed = declared_again()
    mutate(changed)
    with created(migrated_url, changed, request) as other:
        assert ddl(migrated_url) != ddl(other)


def test_alembic_notices_a_column_that_is_missing(migrated_url: str) -> None:
    assert differences(migrated_url, metadata) == []
    typed(migrated_url, "ALTER TABLE schedule_task RENAME COLUMN plan_error TO plan_fault")
    assert sorted(found[0] for found in differences(migrated_url, metadata)) == ["add_column", "remove_column"]


def test_the_indexes_that_work_moves_through_have_a_low_merge_threshold(
    mariadb_server: MariaDBServer, mariadb_url: str
) -> None:
    migrations.upgrade(mariadb_url)  # not copied tables: a migration makes its indexes by statements of their own
    database = str(make_url(mariadb_url).database)
    innodb = "innodb_" if is_mysql(mariadb_url) else "innodb_sys_"
    thresholds = run_sql(
        mariadb_server.admin_url(),
        f"SELECT i.name, i.merge_threshold FROM information_schema.{innodb}indexes i"
        f" JOIN information_schema.{innodb}tables t USING (table_id)"
        f" WHERE t.name IN ('{database}/schedule_instance', '{database}/schedule_task')",
    )
    assert {"ix_schedule_instance_work", "ix_schedule_task_due"} <= {name for name, _ in thresholds}
    assert {threshold for _, threshold in thresholds} == {10}


def test_the_comments_are_in_the_database(migrated_mariadb_url: str) -> None:
    rows = run_sql(
        migrated_mariadb_url,
        "SELECT table_name, column_name, column_comment FROM information_schema.columns"
        " WHERE table_schema = DATABASE() AND column_name <> 'id'",
    )
    ours = {(table, column): comment for table, column, comment in rows if table in metadata.tables}
    declared = {(t.name, c.name): c.comment for t in metadata.sorted_tables for c in t.columns if c.name != "id"}
    assert ours == declared
    assert all(ours.values())
