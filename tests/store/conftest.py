"""What the store's tests share: a scenario on each kind of database.

The MariaDB database is one for all of them, emptied before each: to make the tables anew takes longer than most tests.
"""

from collections.abc import Iterator

import pytest

from rota.shared.database.transactions import opened
from rota.shared.store.tables import metadata
from tests.harness.databases import DATABASES, MariaDBServer, fresh_database, is_mysql, run_sql, unchecked
from tests.harness.packets import Packets, recorded
from tests.harness.scenario import Scenario


@pytest.fixture(scope="session")
def kept_mariadb_url(mariadb_server: MariaDBServer, mariadb_template: list[str]) -> Iterator[str]:
    """The URL of a MariaDB database with Rota's tables, kept for all tests.

    On MariaDB Rota's sessions do not check what they write. On MySQL no session can be told so, so that there the
    tables do not check: tests write what may stand there all the same.
    """
    with fresh_database(mariadb_server) as url:
        run_sql(url, *mariadb_template)
        if is_mysql(url):
            run_sql(url, *unchecked(url))
        yield url


@pytest.fixture
def emptied_mariadb_url(kept_mariadb_url: str) -> str:
    """The URL of the kept database, with empty tables."""
    deletes = [f"DELETE FROM {table.name}" for table in metadata.sorted_tables]
    run_sql(kept_mariadb_url, "BEGIN", *deletes, "COMMIT")
    return kept_mariadb_url


@pytest.fixture
def emptied_sqlite_url(migrated_sqlite_url: str) -> str:
    """The URL of a database of its own: a copied file costs less than to empty one."""
    return migrated_sqlite_url


@pytest.fixture(params=DATABASES)
def rows(request: pytest.FixtureRequest) -> Iterator[Scenario]:
    """A scenario on empty tables, once for each kind of database."""
    with opened(request.getfixturevalue(f"emptied_{request.param}_url")) as database:
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


@pytest.fixture
def packets(mariadb_rows: Scenario) -> Iterator[Packets]:
    """What is sent from now on, over a connection that is open already."""
    mariadb_rows.task()
    with recorded() as sent:
        yield sent
