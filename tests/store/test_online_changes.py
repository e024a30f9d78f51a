"""What a migration may do to the tables of a MariaDB while others go on writing to them."""

import pymysql
import pytest

from rota import migrations
from rota.shared.store.tables import metadata
from tests.harness.databases import run_sql

TABLES = [table.name for table in metadata.sorted_tables]


@pytest.fixture
def migrated(mariadb_url: str) -> str:
    """The URL of a database whose tables were made by the migrations, and not copied."""
    migrations.upgrade(mariadb_url)
    return mariadb_url


def refusals(url: str, change: str) -> dict[str, str]:
    """What the server says against this change, by the table that it refuses it for."""
    said = {}
    for table in TABLES:
        try:
            run_sql(url, f"ALTER TABLE {table} {change}")
        except pymysql.err.OperationalError as error:
            said[table] = str(error)
    return said


CHECKED = pytest.param(
    "INT NULL CHECK (added_later > 0)", marks=pytest.mark.mariadb_only("it rebuilds a table for a CHECK")
)


@pytest.mark.parametrize(
    "definition",
    ["INT NULL", "INT NOT NULL DEFAULT 1", "VARCHAR(63) NOT NULL DEFAULT 'none'", CHECKED],
)
def test_a_column_is_added_to_each_table_without_a_rebuild(migrated: str, definition: str) -> None:
    assert refusals(migrated, f"ADD COLUMN added_later {definition}, ALGORITHM=INSTANT") == {}


def test_an_index_is_added_to_each_table_while_others_write(migrated: str) -> None:
    assert refusals(migrated, "ADD COLUMN added_later INT NULL, ALGORITHM=INSTANT") == {}
    assert refusals(migrated, "ADD INDEX ix_added_later (added_later), ALGORITHM=INPLACE, LOCK=NONE") == {}


@pytest.mark.mariadb_only("it rebuilds a table for a column of which a stored one is made")
def test_a_kind_of_trigger_is_added_without_a_rebuild(migrated: str) -> None:
    [(_, kinds, *_)] = run_sql(migrated, "SHOW COLUMNS FROM schedule_task LIKE 'trigger_kind'")
    more = kinds.replace(")", ",'later')")
    run_sql(
        migrated,
        f"ALTER TABLE schedule_task MODIFY trigger_kind {more} NOT NULL DEFAULT 'cron', ALGORITHM=INSTANT",
    )
