"""What the store's tests share: a scenario on each kind of database.

The MariaDB database is one for all of them, emptied before each: to make the tables anew takes longer than most tests.
"""

from collections.abc import Iterator

import pytest

from shared.store.database import opened
from shared.store.tables import metadata
from tests.databases import MariaDBServer, fresh_database, run_sql
from tests.store.scenario import Scenario


@pytest.fixture(scope="session")
def kept_mariadb_url(mariadb_server: MariaDBServer, mariadb_template: list[str]) -> Iterator[str]:
    """The URL of a MariaDB database with Rota's tables, kept for all tests."""
    with fresh_database(mariadb_server) as url:
        run_sql(url, *mariadb_template)
        yield url


@pytest.fixture
def emptied_mariadb_url(kept_mariadb_url: str) -> str:
    """The URL of the kept database, with empty tables."""
    deletes = [f"DELETE FROM {table.name}" for table in metadata.sorted_tables]
    run_sql(kept_mariadb_url, "BEGIN", *deletes, "COMMIT")
    return kept_mariadb_url


@pytest.fixture(params=["sqlite", "mariadb"])
def rows(request: pytest.FixtureRequest) -> Iterator[Scenario]:
    """A scenario on empty tables, once on SQLite and once on MariaDB."""
    kind = {"sqlite": "migrated_sqlite_url", "mariadb": "emptied_mariadb_url"}[request.param]
    with opened(request.getfixturevalue(kind)) as database:
        yield Scenario(database)


@pytest.fixture
def sqlite_rows(migrated_sqlite_url: str) -> Iterator[Scenario]:
    """A scenario on empty tables of SQLite."""
    with opened(migrated_sqlite_url) as database:
        yield Scenario(database)


@pytest.fixture
def mariadb_rows(emptied_mariadb_url: str) -> Iterator[Scenario]:
    """A scenario on empty tables of MariaDB."""
    with opened(emptied_mariadb_url) as database:
        yield Scenario(database)
