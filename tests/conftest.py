"""What every test may ask for.

| fixture | what |
| --- | --- |
| `database_url` | the URL of an empty database, once for SQLite and once for MariaDB |
| `sqlite_url`, `mariadb_url` | the same, of one kind only |
| `migrated_url` | `database_url` with Rota's tables; `migrated_mariadb_url` for MariaDB only |
| `database`, `engine` | the product's `Database` on `migrated_url`, and its SQLAlchemy engine |
| `mariadb_database` | the same on MariaDB only |
| `mariadb_server` | the server behind `mariadb_url`, shared by all tests: do not stop it |
| `own_mariadb` | a server of the test's own, to kill, stop and start |
| `rota` | a factory of `RotaProcess` whose processes end with the test |
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import Engine, make_url

from rota.migrations import upgrade
from rota.shared.database.transactions import Database, opened
from tests.harness.compiled import statements_shared
from tests.harness.databases import (
    DATABASES,
    MariaDBServer,
    PrivateMariaDB,
    fresh_database,
    is_mysql,
    private_is_mysql,
    run_sql,
    server_for_tests,
    tables_ddl,
)
from tests.harness.processes import RotaProcess
from tests.harness.stopping import stopping_signals_kept

failed = pytest.StashKey[bool]()

BARE_NAMES = {"shared", "migrations", "scheduler_service", "worker_service"}


UNTIL = float(os.environ.get("ROTA_TEST_UNTIL") or "inf")
"""The time, in seconds since 1970, after which no test begins: CI must end on a slow machine, too."""


def pytest_runtest_setup() -> None:
    """Skip what has not begun in time."""
    if time.time() > UNTIL:
        pytest.skip("ROTA_TEST_UNTIL is over")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Let fixtures know at their end whether the test failed, so that they print logs only then."""
    report = yield
    item.stash[failed] = item.stash.get(failed, False) or report.failed
    return report


@pytest.fixture(scope="session", autouse=True)
def one_name_for_each_module() -> Iterator[None]:
    """After all tests nothing was imported by a bare name: a file under two names means two enum classes."""
    yield
    bare = {name for name in sys.modules if name.split(".")[0] in BARE_NAMES}
    assert not bare, f"imported without rota.: {sorted(bare)}"


@pytest.fixture(autouse=True)
def stopping_signals() -> Iterator[None]:
    """No test leaves SIGINT or SIGTERM blocked, or with a handler of its own."""
    with stopping_signals_kept():
        yield


@pytest.fixture(scope="session", autouse=True)
def compiled_statements() -> Iterator[None]:
    """The tests of a process compile each statement once."""
    with statements_shared():
        yield


@pytest.fixture(autouse=True)
def leave_to_mariadb(request: pytest.FixtureRequest) -> None:
    """Skip a test that is marked `mariadb_only` where the server is MySQL."""
    marker = request.node.get_closest_marker("mariadb_only")
    chosen = set(request.node.callspec.params.values()) if marker and hasattr(request.node, "callspec") else set()
    if marker and "sqlite" not in chosen and is_mysql(request.getfixturevalue("mariadb_server").admin_url()):
        pytest.skip(f"MySQL: {marker.args[0]}")


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[MariaDBServer]:
    """A server of MariaDB, or of MySQL where `ROTA_TEST_MARIADB` says so, shared by all tests."""
    with server_for_tests() as server:
        yield server


@pytest.fixture
def mariadb_url(mariadb_server: MariaDBServer) -> Iterator[str]:
    """The URL of an empty MariaDB database."""
    with fresh_database(mariadb_server) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an SQLite database that does not exist yet."""
    return f"sqlite:///{tmp_path / 'rota.db'}"


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> str:
    """The URL of an empty database, once for each kind."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file, to be copied."""
    path = tmp_path_factory.mktemp("template") / "rota.db"
    upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def mariadb_template(mariadb_server: MariaDBServer) -> list[str]:
    """The statements that make a migrated MariaDB database."""
    with fresh_database(mariadb_server) as url:
        upgrade(url)
        return tables_ddl(url)


@pytest.fixture
def own_template(mariadb_server: MariaDBServer, mariadb_template: list[str]) -> list[str]:
    """The same for a server of the test's own, if it is of the same kind as the one that all share."""
    if is_mysql(mariadb_server.admin_url()) and not private_is_mysql():
        pytest.skip("the test's own server is MariaDB; ROTA_TEST_MARIADB=private-mysql makes it MySQL")
    return mariadb_template


@pytest.fixture
def migrated_mariadb_url(mariadb_url: str, mariadb_template: list[str]) -> str:
    """The URL of a MariaDB database with Rota's tables."""
    run_sql(mariadb_url, *mariadb_template)
    return mariadb_url


@pytest.fixture
def migrated_sqlite_url(sqlite_url: str, sqlite_template: Path) -> str:
    """The URL of an SQLite database with Rota's tables."""
    target = make_url(sqlite_url).database
    assert target is not None
    shutil.copy(sqlite_template, target)
    return sqlite_url


@pytest.fixture(params=DATABASES)
def migrated_url(request: pytest.FixtureRequest) -> str:
    """The URL of a database with Rota's tables, once for each kind."""
    url: str = request.getfixturevalue(f"migrated_{request.param}_url")
    return url


@pytest.fixture
def database(migrated_url: str) -> Iterator[Database]:
    """Rota's database with its tables, once for each kind."""
    with opened(migrated_url) as opened_database:
        yield opened_database


@pytest.fixture
def mariadb_database(migrated_mariadb_url: str) -> Iterator[Database]:
    """Rota's database with its tables, on MariaDB."""
    with opened(migrated_mariadb_url) as opened_database:
        yield opened_database


@pytest.fixture
def engine(database: Database) -> Engine:
    """The SQLAlchemy engine of `database`."""
    return database.engine


@pytest.fixture
def own_mariadb(request: pytest.FixtureRequest) -> Iterator[PrivateMariaDB]:
    """A MariaDB server of the test's own, running, to be killed, stopped and started."""
    with PrivateMariaDB() as server:
        yield server
        if request.node.stash.get(failed, False):
            print(server.log_tail())


@pytest.fixture
def rota(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., RotaProcess]]:
    """`rota("worker", "--app", "…", database_url=url)` starts a `RotaProcess` and takes its arguments.

    All end with the test; their logs are printed if it failed.
    """
    processes: list[RotaProcess] = []

    with ExitStack() as stack:

        def start(*arguments: str, **options: object) -> RotaProcess:
            log = tmp_path / f"process-{len(processes)}-{arguments[0]}.log"
            process = RotaProcess(*arguments, **{"log": log, **options})  # type: ignore[arg-type]
            stack.callback(process.discard)
            processes.append(process)
            return process.start()

        yield start
        if request.node.stash.get(failed, False):
            for process in processes:
                print(process.log_tail(200))
