"""Each check tells a database that is as Rota needs it from one that is not, in words a person can act on."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, make_url, text
from sqlalchemy.exc import DBAPIError

from rota import __version__, migrations
from rota.shared.database import checks, mysql_checks, sqlite
from rota.shared.database.backend import Check
from rota.shared.database.checks import require_usable, run_checks
from rota.shared.database.sqlite import SQLITE
from rota.shared.database.transactions import Database, opened
from rota.shared.database.urls import named
from rota.shared.domain.errors import DatabaseProblem
from tests.harness.databases import MariaDBServer, PrivateMariaDB, is_mysql, run_sql
from tests.harness.schemas import is_sqlite, typed

HEAD = migrations.head()


@pytest.fixture
def usable(database_url: str) -> Iterator[Database]:
    """A database as Rota needs it, once for each kind."""
    migrations.upgrade(database_url)
    with opened(database_url) as database:
        yield database


@pytest.fixture
def usable_mariadb(mariadb_url: str) -> Iterator[Database]:
    migrations.upgrade(mariadb_url)
    with opened(mariadb_url) as database:
        yield database


def found(database: Database, name: str, head: str = HEAD) -> Check:
    return next(check for check in run_checks(database, head) if check.name == name)


def refusal(database: Database, head: str = HEAD) -> str:
    with pytest.raises(DatabaseProblem) as caught:
        require_usable(database, head)
    return str(caught.value)


def test_a_database_as_it_should_be_passes(usable: Database) -> None:
    results = run_checks(usable, HEAD)
    assert [check for check in results if check.ok is False] == []
    essential = {"reachable", "version", "migrated", "writable"}
    essential |= set() if usable.backend is SQLITE else {"engine", "isolation", "time zone"}
    assert {check.name for check in results if check.ok} >= essential
    require_usable(usable, HEAD)


def test_an_empty_database_is_told_to_migrate(database_url: str) -> None:
    if is_sqlite(database_url):
        Path(make_url(database_url).database or "").touch()
    with opened(database_url) as database:
        sentence = refusal(database)
        url = named(database.url)
    assert sentence == f"the schema in {url} is not migrated (found nothing, wanted {HEAD}): run rota migrate"
    assert "pymysql" not in sentence


def test_an_older_schema_is_told_to_migrate(usable: Database) -> None:
    assert refusal(usable, head="9999").endswith(f"(found {HEAD}, wanted 9999): run rota migrate")


def test_a_newer_schema_is_usable_unless_it_states_that_it_takes_no_older_rota(
    usable: Database, database_url: str
) -> None:
    typed(database_url, "UPDATE rota_schema_version SET version_num = '9999'", "DROP TABLE schedule_kept_slot")
    assert found(usable, "migrated").found == "9999, by a newer Rota"
    require_usable(usable, HEAD)
    typed(database_url, f"UPDATE rota_schema_version SET oldest_version = '{__version__}'")
    require_usable(usable, HEAD)
    typed(database_url, "UPDATE rota_schema_version SET oldest_version = '99.1'")
    assert refusal(usable) == (
        f"{named(usable.url)} takes no Rota older than 99.1 (found Rota {__version__}, wanted 99.1 or newer): "
        "install Rota 99.1 or newer for this process"
    )


def test_a_table_that_is_missing_is_noticed(usable: Database, database_url: str) -> None:
    typed(database_url, "DROP TABLE schedule_task_lock")
    assert f"is incomplete (found {HEAD} without schedule_task_lock" in refusal(usable)


def test_a_server_that_does_not_answer_is_the_only_news() -> None:
    database = Database("mysql://rota:secret@127.0.0.1:1/rota", retry_seconds=0.1)
    only = run_checks(database, HEAD)
    assert [(check.name, check.ok) for check in only] == [("reachable", False)]
    sentence = refusal(database)
    assert sentence.startswith("mysql://rota:***@127.0.0.1:1/rota: Can't connect")
    assert sentence.endswith("; no server answers at 127.0.0.1:1")


def test_a_database_that_is_not_there_can_be_made(mariadb_url: str) -> None:
    nowhere = make_url(mariadb_url).set(database="rota_test_nowhere").render_as_string(hide_password=False)
    with opened(nowhere) as database:
        assert "CREATE DATABASE `rota_test_nowhere` CHARACTER SET utf8mb4" in refusal(database)


def test_a_file_that_is_not_there_is_not_made(sqlite_url: str) -> None:
    with opened(sqlite_url) as database:
        assert refusal(database).endswith("wanted a migrated database): run rota migrate")
    assert not Path(make_url(sqlite_url).database or "").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with opened(f"sqlite:///{tmp_path}/no/rota.db") as database:
        assert f"the folder {tmp_path}/no does not exist; create it: mkdir -p" in refusal(database)


def test_a_version_that_is_too_old_is_refused(usable: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mysql_checks, "MARIADB", (99, 0, 0))
    monkeypatch.setattr(mysql_checks, "MYSQL", (99, 0, 0))
    monkeypatch.setattr(sqlite, "OLDEST", (99, 0, 0))
    is_there = is_mysql(usable.url.render_as_string(hide_password=False))
    product = "SQLite" if usable.backend is SQLITE else "MySQL" if is_there else "MariaDB"
    assert refusal(usable).endswith(f"wanted {product} >= 99.0.0): install {product} >= 99.0.0")


@pytest.mark.parametrize(
    ("said", "ok", "advice"),
    [
        ("10.6.0-MariaDB", True, ""),
        ("11.4.2-MariaDB-ubu2404", True, ""),
        ("10.5.29-MariaDB-log", False, "install MariaDB >= 10.6.0"),
        ("9.7.4-2", True, ""),
        ("9.6.0", None, "untested on MySQL, but for 9.7"),
        ("8.0.19", None, "untested on MySQL, but for 9.7"),
        ("8.4.3-commercial", None, "untested on MySQL, but for 9.7"),
        ("8.0.18", False, "install MySQL >= 8.0.19"),
        ("5.7.44-log", False, "install MySQL >= 8.0.19"),
        ("8.0.11-TiDB-v7.5.0", None, "untested on TiDB"),
    ],
)
def test_versions_are_read_as_servers_write_them(
    usable_mariadb: Database, monkeypatch: pytest.MonkeyPatch, said: str, ok: bool | None, advice: str
) -> None:
    monkeypatch.setattr(mysql_checks, "value_of", lambda database, statement: said)
    check = found(usable_mariadb, "version")
    assert (check.found, check.ok) == (said, ok)
    assert advice in check.help


def test_a_table_without_transactions_is_refused(usable_mariadb: Database, mariadb_url: str) -> None:
    run_sql(mariadb_url, "ALTER TABLE schedule_task_lock ENGINE = MyISAM")
    assert "has tables without transactions (found schedule_task_lock in MyISAM, wanted InnoDB)" in refusal(
        usable_mariadb
    )


def says_otherwise(statement: str) -> Callable[..., None]:
    """What sets a session otherwise than Rota did, as a proxy may."""

    def checkout(connection: Any, record: Any, proxy: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(statement)

    return checkout


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "(found REPEATABLE-READ, wanted READ-COMMITTED)"),
        ("SET time_zone = '+09:00'", "are not in UTC (found +09:00, wanted +00:00)"),
    ],
)
def test_a_session_that_is_not_as_rota_made_it_is_refused(
    usable_mariadb: Database, statement: str, sentence: str
) -> None:
    event.listen(usable_mariadb.engine, "checkout", says_otherwise(statement))
    assert sentence in refusal(usable_mariadb)


def test_a_server_that_is_set_otherwise_is_told(own_mariadb: PrivateMariaDB) -> None:
    url = own_mariadb.create_database()
    migrations.upgrade(url)
    run_sql(
        own_mariadb.admin_url(),
        "SET GLOBAL read_only = 1",
        "SET GLOBAL sql_mode = ''",
        "SET GLOBAL max_allowed_packet = 1048576",
        "SET GLOBAL innodb_flush_log_at_trx_commit = 2",
    )
    with opened(url) as database:
        assert refusal(database).endswith(
            "is read-only (found read_only = ON, wanted writable): connect to the primary, not to a replica"
        )
        require_usable(database, HEAD, to_write=False)
        informed = {check.name: check for check in run_checks(database, HEAD) if check.ok is None}
    assert {name: check.found for name, check in informed.items() if name != "clock"} == {
        "sql_mode": "none",
        "max_allowed_packet": "1 MiB",
        "innodb_flush_log_at_trx_commit": "2",
    }
    assert all(check.help for name, check in informed.items() if name != "clock")


def test_a_server_that_logs_statements_is_refused_and_one_that_does_not_flush_its_log_is_told() -> None:
    with PrivateMariaDB("--log-bin", "--binlog-format=STATEMENT", "--sync-binlog=0") as server:
        url = server.create_database()
        run_sql(server.admin_url(), "SET GLOBAL binlog_format = ROW")
        migrations.upgrade(url)
        with opened(url) as database:
            checked = {check.name: check for check in run_checks(database, HEAD)}
            assert checked["writable"].ok
            assert (checked["sync_binlog"].ok, checked["sync_binlog"].found) == (None, "0")
            assert "loses the last commits" in checked["sync_binlog"].help
        run_sql(server.admin_url(), "SET GLOBAL binlog_format = STATEMENT", "SET GLOBAL sync_binlog = 1")
        with opened(url) as database:
            sentence = refusal(database)
            assert "takes no writes of Rota's: " in sentence
            assert "BINLOG_FORMAT = STATEMENT" in sentence
            assert "; SET GLOBAL binlog_format = ROW, and in the server's configuration" in sentence
            assert next(c for c in run_checks(database, HEAD) if c.name == "sync_binlog").ok
            with pytest.raises(DBAPIError, match="1665"):
                database.write(
                    lambda c: c.execute(text("INSERT INTO schedule_task_lock (schedule_task_id) VALUES (1)"))
                )


@pytest.mark.parametrize("option", [{}, {"ssl_disabled": "true"}], ids=["TLS where it is", "no TLS"])
def test_an_account_with_a_password_connects(
    mariadb_server: MariaDBServer, mariadb_url: str, option: dict[str, str]
) -> None:
    """MySQL takes a password that it has not seen lately only over TLS, or encrypted with its public key."""
    user, password = f"rota_{uuid.uuid4().hex[:8]}", "p@ss wörd"
    url = make_url(mariadb_url).set(username=user, password=password).update_query_dict(option)
    run_sql(
        mariadb_server.admin_url(),
        f"CREATE USER {user} IDENTIFIED BY '{password}'",
        f"GRANT SELECT ON {url.database}.* TO {user}",
    )
    try:
        with opened(url.render_as_string(hide_password=False)) as database:
            assert database.read(lambda c: c.exec_driver_sql("SELECT CURRENT_USER()").scalar_one()) == f"{user}@%"
    finally:
        run_sql(mariadb_server.admin_url(), f"DROP USER {user}")


def test_an_account_that_may_only_read_is_refused(own_mariadb: PrivateMariaDB) -> None:
    url = make_url(own_mariadb.create_database())
    migrations.upgrade(url.render_as_string(hide_password=False))
    run_sql(
        own_mariadb.admin_url(),
        "CREATE USER reader IDENTIFIED BY 'secret'",
        f"GRANT SELECT ON {url.database}.* TO reader",
    )
    with opened(url.set(username="reader", password="secret").render_as_string(hide_password=False)) as database:
        sentence = refusal(database)
    assert "takes no writes of Rota's: UPDATE command denied to user 'reader'" in sentence
    assert f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{url.database}`.* TO 'reader'@'%'" in sentence


@pytest.mark.parametrize("as_option", [False, True])
def test_a_password_may_have_any_letters(mariadb_url: str, mariadb_server: MariaDBServer, as_option: bool) -> None:
    user, password = f"rota_test_{uuid.uuid4().hex[:12]}", "pä€😀"
    admin = mariadb_server.admin_url()
    url = make_url(mariadb_url)
    run_sql(
        admin,
        f"CREATE USER {user}@'%' IDENTIFIED BY '{password}'",
        f"GRANT ALL ON {url.database}.* TO {user}@'%'",
    )
    try:
        if as_option:
            url = url.set(username=user, password=None).update_query_dict({"password": password})
        else:
            url = url.set(username=user, password=password)
        right = url.render_as_string(hide_password=False)
        assert migrations.upgrade(right).changed
        with opened(right) as database:
            require_usable(database, HEAD)
    finally:
        run_sql(admin, f"DROP USER {user}@'%'")


def test_a_file_that_is_read_only_is_refused(sqlite_url: str) -> None:
    migrations.upgrade(sqlite_url)
    with opened(sqlite_url) as database:  # makes it WAL, as any service has
        require_usable(database, HEAD)
    path = make_url(sqlite_url).database
    with opened(f"sqlite:///file:{path}?mode=ro&uri=true") as database:
        assert "readonly" in refusal(database)


def test_the_clocks_offset_is_told_and_nothing_is_required(
    usable_mariadb: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = found(usable_mariadb, "clock")
    assert (check.ok, check.help) == (None, "")
    assert check.found.startswith("host ")
    assert "round trip" in check.found
    monkeypatch.setattr(usable_mariadb.clock, "host_offset_seconds", lambda: -3600.0)
    check = found(usable_mariadb, "clock")
    assert check.ok is None
    assert "host 1 h behind the database" in check.found
    assert "NTP" in check.help


def test_every_fault_is_told_at_once(usable_mariadb: Database, mariadb_url: str) -> None:
    run_sql(mariadb_url, "ALTER TABLE schedule_task_lock ENGINE = MyISAM", "DELETE FROM rota_schema_version")
    assert len(refusal(usable_mariadb).splitlines()) == 2


def test_a_check_that_cannot_be_made_fails_alone(usable: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(database: Database) -> Check:
        raise DatabaseProblem("the connection was cut")

    monkeypatch.setattr(checks, "check_writable", cut)
    check = found(usable, "writable")
    assert (check.ok, check.found) == (False, "the connection was cut")
    assert found(usable, "migrated").ok
