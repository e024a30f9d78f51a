"""The tests' own databases: what the fixtures promise."""

import signal
from contextlib import nullcontext
from pathlib import Path

import psutil
import pymysql
import pytest
from sqlalchemy import inspect, make_url

from rota import migrations
from rota.shared.database.transactions import Database
from rota.shared.store.tables import metadata
from tests.harness.databases import (
    MariaDBServer,
    PrivateMariaDB,
    fresh_database,
    run_sql,
    server_for_tests,
    tables_ddl,
)
from tests.harness.processes import wait_until


def test_a_private_server_keeps_committed_rows_through_a_kill(own_mariadb: PrivateMariaDB) -> None:
    url = own_mariadb.create_database()
    run_sql(url, "CREATE TABLE t (i int)", "INSERT INTO t VALUES (1)")
    before = own_mariadb.pid
    own_mariadb.kill()
    with pytest.raises(pymysql.err.OperationalError):
        run_sql(url, "SELECT 1")
    own_mariadb.start()
    assert run_sql(url, "SELECT i FROM t") == [(1,)]
    assert own_mariadb.pid != before


def test_a_private_server_restarts_at_the_same_address(own_mariadb: PrivateMariaDB) -> None:
    url = own_mariadb.create_database()
    own_mariadb.restart()
    assert run_sql(url, "SELECT 1") == [(1,)]


def test_a_private_server_can_be_frozen(own_mariadb: PrivateMariaDB) -> None:
    own_mariadb.stop_signal(signal.SIGSTOP)
    wait_until(lambda: psutil.Process(own_mariadb.pid).status() == psutil.STATUS_STOPPED)
    own_mariadb.stop_signal(signal.SIGCONT)
    assert run_sql(own_mariadb.admin_url(), "SELECT 1") == [(1,)]


def test_a_private_server_leaves_nothing_behind() -> None:
    with PrivateMariaDB() as server:
        pid, directory = server.pid, Path(server.socket).parent
        assert directory.exists()
    assert not psutil.pid_exists(pid)
    assert not directory.exists()


def test_the_private_server_is_durable_and_does_not_live_in_utc(own_mariadb: PrivateMariaDB) -> None:
    assert run_sql(
        own_mariadb.admin_url(),
        "SELECT @@innodb_flush_log_at_trx_commit, @@character_set_server,"
        " TIMESTAMPDIFF(HOUR, UTC_TIMESTAMP(), CURRENT_TIMESTAMP())",
    ) == [(1, "utf8mb4", 9)]


def test_rota_has_rights_on_its_own_databases_only(own_mariadb: PrivateMariaDB) -> None:
    with pytest.raises(pymysql.err.OperationalError, match="Access denied"):
        run_sql(own_mariadb.url("mysql"), "SELECT 1")


def test_a_database_is_dropped_even_if_a_transaction_is_open(mariadb_server: MariaDBServer) -> None:
    with fresh_database(mariadb_server) as url:
        run_sql(url, "CREATE TABLE t (i int)")
        target = make_url(url)
        holder = pymysql.connect(
            host=target.host,
            port=target.port or 3306,
            user=target.username,
            password=target.password or "",
            database=target.database,
        )
        holder.cursor().execute("INSERT INTO t VALUES (1)")
    with pytest.raises(pymysql.err.OperationalError):
        run_sql(url, "SELECT 1")


def test_the_url_of_an_existing_server_is_taken(mariadb_server: MariaDBServer) -> None:
    with (
        server_for_tests(mariadb_server.admin_url()) as server,
        fresh_database(server) as url,
    ):
        assert run_sql(url, "SELECT DATABASE() LIKE 'rota\\_test\\_%'") == [(1,)]


@pytest.mark.parametrize(
    "image", ["mariadb", "mariadb:11.4", "mysql:8.0", "docker.io/library/mysql:8.4.6-oraclelinux9"]
)
def test_a_docker_image_is_taken(monkeypatch: pytest.MonkeyPatch, image: str) -> None:
    monkeypatch.setattr("tests.harness.databases.ContainerMariaDB", nullcontext)
    with server_for_tests(image) as server:
        assert str(server) == image


def test_an_unknown_kind_of_server_is_refused_in_a_sentence() -> None:
    with (
        pytest.raises(pytest.fail.Exception, match="ROTA_TEST_MARIADB is 'podman'"),
        server_for_tests("podman"),
    ):
        pass


def test_the_copied_schema_is_the_migrated_one(migrated_url: str, database: Database) -> None:
    assert migrations.current(migrated_url) == migrations.head()
    found = set(inspect(database.engine).get_table_names())
    assert found >= {table.name for table in metadata.sorted_tables}


def test_a_copied_database_does_not_differ_from_its_model(
    mariadb_server: MariaDBServer, migrated_mariadb_url: str
) -> None:
    with fresh_database(mariadb_server) as url:
        migrations.upgrade(url)
        assert tables_ddl(migrated_mariadb_url) == tables_ddl(url)
