"""Migrating: once, from several processes at once, after a kill, as printed SQL, and refused in a sentence."""

import contextlib
import re
import shutil
import sqlite3
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import create_engine, make_url
from sqlalchemy.exc import IntegrityError
from tenacity import wait_none

from rota import __version__, migrations
from rota.migrations.__main__ import new
from rota.migrations.migration_lock import STATEMENT_SECONDS, TURN_SECONDS, exclusive, migration_engine
from rota.shared.database.mysql_migration import LOCK_TABLE
from rota.shared.database.sqlite_migration import SCRIPT_HEAD, words_added
from rota.shared.database.transactions import Database, normalised
from rota.shared.domain.errors import DatabaseProblem, InvalidInput
from rota.shared.domain.releases import is_older
from tests.harness.databases import MariaDBServer, fresh_database, is_mysql, run_sql
from tests.harness.processes import ROOT, marked_environment, wait_until
from tests.harness.schemas import ddl, statements, typed

UPGRADE = """
import sys
from rota import migrations
print("ready", flush=True)
sys.stdin.readline()
print(migrations.upgrade(sys.argv[1]))
"""
HOLD = """
import sys
from rota.migrations.migration_lock import exclusive, migration_engine
from rota.shared.database.transactions import normalised
print("ready", flush=True)
sys.stdin.readline()
with exclusive(migration_engine(normalised(sys.argv[1]))):
    print("mine", flush=True)
    sys.stdin.readline()
"""
WITHOUT_THE_LOCK = """
import contextlib
from rota import migrations
@contextlib.contextmanager
def alone(engine):
    with engine.connect() as connection:
        yield connection
migrations.exclusive = alone
"""

Process = subprocess.Popen[str]


@pytest.fixture
def upgrading(database_url: str) -> Iterator[Callable[..., Process]]:
    """Start a process that upgrades `database_url` when a line comes to it."""
    with contextlib.ExitStack() as stack:

        def start(program: str = UPGRADE) -> Process:
            process = subprocess.Popen(
                [sys.executable, "-c", program, database_url],
                cwd=ROOT,
                env=marked_environment({"PYTHONPATH": str(ROOT)}),
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start


def go(*processes: Process) -> None:
    """Let them all begin, once each is there."""
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()


def said(process: Process) -> str:
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    return output


def test_upgrading_twice_changes_nothing(database_url: str) -> None:
    assert migrations.current(database_url) is None
    first = migrations.upgrade(database_url)
    before = ddl(database_url)
    second = migrations.upgrade(database_url)
    assert (first.before, first.after, first.changed) == (None, migrations.head(), True)
    assert (second.before, second.after, second.changed) == (migrations.head(), migrations.head(), False)
    assert ddl(database_url) == before
    assert migrations.current(database_url) == migrations.head()


def test_to_ask_for_the_revision_makes_no_file(sqlite_url: str) -> None:
    assert migrations.current(sqlite_url) is None
    assert not Path(make_url(sqlite_url).database or "").exists()


def test_a_new_sqlite_file_is_for_its_user_alone_and_the_mode_of_an_old_one_stays(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    old.touch(mode=0o640)
    for file, mode in ((tmp_path / "new.db", "0o600"), (old, oct(old.stat().st_mode & 0o777))):
        migrations.upgrade(f"sqlite:///{file}")
        database = Database(f"sqlite:///{file}")
        with contextlib.closing(database), database.engine.connect() as connection:
            connection.exec_driver_sql("SELECT * FROM schedule_task")  # while it reads, all three files are there
            modes = {one.name: oct(one.stat().st_mode & 0o777) for one in tmp_path.glob(f"{file.name}*")}
        assert modes == {f"{file.name}{end}": mode for end in ("", "-wal", "-shm")}


def test_processes_that_upgrade_at_once_all_succeed(database_url: str, upgrading: Callable[..., Process]) -> None:
    processes = [upgrading() for _ in range(4)]
    go(*processes)
    assert sorted("from nothing" in said(process) for process in processes) == [False, False, False, True]
    assert migrations.current(database_url) == migrations.head()
    typed(database_url, "INSERT INTO schedule_task (name, type) VALUES ('a', 'B')")


@pytest.fixture(scope="module")
def mariadb_schema(mariadb_server: MariaDBServer) -> dict[str, str]:
    """What one undisturbed migration makes."""
    with fresh_database(mariadb_server) as url:
        migrations.upgrade(url)
        return ddl(url)


@pytest.mark.mariadb_only("no cluster of it was run whose nodes know nothing of each other's row locks")
@pytest.mark.parametrize("database_url", ["mariadb"] * 3, indirect=True)
def test_where_row_locks_do_not_reach_they_succeed_as_well(
    database_url: str, upgrading: Callable[..., Process], mariadb_schema: dict[str, str]
) -> None:
    """Two nodes of a Galera cluster know nothing of each other's row locks; DDL and keys are common to them."""
    processes = [upgrading(WITHOUT_THE_LOCK + UPGRADE) for _ in range(4)]
    go(*processes)
    for process in processes:
        said(process)
    assert migrations.current(database_url) == migrations.head()
    assert ddl(database_url) == mariadb_schema


def test_one_that_loses_at_each_revision_goes_on(mariadb_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process makes each step just before it; that one stops before the last."""
    monkeypatch.setattr("rota.migrations.wait_random_exponential", lambda **_: wait_none())
    upgrade = command.upgrade
    beaten = 0

    def slower(config: Config, _revision: str) -> None:
        nonlocal beaten
        beaten += 1
        upgrade(config, "+1" if beaten < len(migrations.oldest_versions()) else "head")
        if migrations.current(mariadb_url) != migrations.head():
            raise CommandError("Online migration expected to match one row when updating; 0 found")

    monkeypatch.setattr(command, "upgrade", slower)
    assert migrations.upgrade(mariadb_url).changed
    assert beaten == len(migrations.oldest_versions())
    assert migrations.current(mariadb_url) == migrations.head()


@pytest.mark.parametrize("database_url", ["mariadb"], indirect=True)
def test_one_waits_while_another_migrates(database_url: str, upgrading: Callable[..., Process]) -> None:
    at_the_lock = f"(info LIKE 'INSERT IGNORE INTO {LOCK_TABLE}%' OR info LIKE '%FROM {LOCK_TABLE} %FOR UPDATE')"
    waiting = f"SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND {at_the_lock}"
    process = upgrading()
    with exclusive(migration_engine(normalised(database_url))):
        go(process)
        wait_until(lambda: run_sql(database_url, waiting), 20, "the second to wait for its turn")
        assert migrations.current(database_url) is None
    assert "from nothing" in said(process)


def test_one_that_is_killed_blocks_nobody(database_url: str, upgrading: Callable[..., Process]) -> None:
    process = upgrading(HOLD)
    go(process)
    assert process.stdout is not None
    assert process.stdout.readline() == "mine\n"
    process.kill()
    assert migrations.upgrade(database_url).changed


def test_one_waits_no_longer_than_its_limit(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rota.migrations.migration_lock.TURN_SECONDS", 1)
    with exclusive(migration_engine(normalised(database_url))):
        refused(database_url, r"another process has been migrating or writing for 1 s; .* run rota migrate again$")


@pytest.mark.parametrize("done", [1, 2, 3, 4, 9, -1])
def test_a_migration_that_was_killed_is_gone_on_with(
    mariadb_url: str, done: int, mariadb_schema: dict[str, str]
) -> None:
    run_sql(mariadb_url, *statements(migrations.sql(mariadb_url))[:done])
    assert migrations.upgrade(mariadb_url).changed
    assert ddl(mariadb_url) == mariadb_schema


def test_threads_of_one_process_may_migrate_too(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / f'{number}.db'}" for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        assert all(report.changed for report in pool.map(migrations.upgrade, urls))
    assert len({str(ddl(url)) for url in urls}) == 1


def test_a_long_statement_is_not_cut(mariadb_url: str) -> None:
    with exclusive(migration_engine(normalised(mariadb_url))) as connection:
        assert connection.connection.dbapi_connection._read_timeout == STATEMENT_SECONDS  # type: ignore[union-attr]
        names = "'wait_timeout', 'idle_transaction_timeout', 'innodb_lock_wait_timeout'"
        found = connection.exec_driver_sql(f"SHOW VARIABLES WHERE Variable_name IN ({names}) ").all()
        limits = {"innodb_lock_wait_timeout": TURN_SECONDS, "wait_timeout": STATEMENT_SECONDS}
        on_mariadb = {} if is_mysql(mariadb_url) else {"idle_transaction_timeout": 0}
        assert {name: int(value) for name, value in found} == limits | on_mariadb


# --- as SQL -----------------------------------------------------------------------------------------------------------


def test_the_printed_sql_makes_the_same_schema_on_mariadb(mariadb_url: str, mariadb_schema: dict[str, str]) -> None:
    run_sql(mariadb_url, *statements(migrations.sql(mariadb_url)))
    assert ddl(mariadb_url) == mariadb_schema
    assert migrations.current(mariadb_url) == migrations.head()
    assert not migrations.upgrade(mariadb_url).changed


def test_the_printed_sql_makes_the_same_schema_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    by_hand = tmp_path / "by_hand.db"
    with contextlib.closing(sqlite3.connect(by_hand)) as connection:
        connection.executescript(migrations.sql("sqlite://").removeprefix(SCRIPT_HEAD))
    migrations.upgrade(sqlite_url)
    assert ddl(f"sqlite:///{by_hand}") == ddl(sqlite_url)
    assert not migrations.upgrade(f"sqlite:///{by_hand}").changed


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="the shell of SQLite is not installed")
@pytest.mark.parametrize("is_odd", [False, True])
def test_the_shell_of_sqlite_runs_all_of_the_printed_sql_or_none(tmp_path: Path, *, is_odd: bool) -> None:
    file, script = tmp_path / "by_hand.db", migrations.sql("sqlite://")
    odd = script.replace("CHECK (trigger_kind IN", "CHECK (trigger_kind NOT NULL AND trigger_kind IN")
    assert odd != script
    settings = ".dbconfig defensive on\n"  # as a shell may have it in its sqliterc
    given = settings + (odd if is_odd else script)
    done = subprocess.run(["sqlite3", file], input=given, text=True, capture_output=True, check=False)
    assert (done.returncode, "is not defined as a migration of Rota expects" in done.stderr) == (int(is_odd), is_odd)
    assert migrations.current(f"sqlite:///{file}") == (None if is_odd else migrations.head())


def test_a_column_that_is_not_as_a_migration_expects_stops_it_and_changes_nothing(sqlite_url: str) -> None:
    migrations.upgrade(sqlite_url)
    engine = create_engine(sqlite_url)
    with engine.connect() as connection:
        before = ddl(sqlite_url)
        *changing, checking, _ = words_added("schedule_task", "trigger_kind", (["cron"], ["cron", "moon"]), "")
        for statement in changing:
            connection.exec_driver_sql(statement)
        with pytest.raises(IntegrityError, match=r"schedule_task.trigger_kind is not defined as a migration"):
            connection.exec_driver_sql(checking)
    engine.dispose()
    assert ddl(sqlite_url) == before


def test_sql_is_printed_without_a_database() -> None:
    assert "CREATE TABLE schedule_task " in migrations.sql("mysql://nobody@nowhere.invalid/rota")
    assert "ENGINE=InnoDB" in migrations.sql("mariadb://nobody@nowhere.invalid/rota")
    assert "CREATE TABLE" not in migrations.sql("mysql://nobody@nowhere.invalid/rota", since=migrations.head())
    with pytest.raises(InvalidInput, match=r"there is no revision 'x'; there are 0001"):
        migrations.sql("sqlite://", since="x")


def test_a_new_migration_begins_where_the_last_ended(tmp_path: Path) -> None:
    folder = shutil.copytree(ROOT / "migrations", tmp_path / "migrations")
    path = new("add a column", folder)
    assert path.name == f"{int(migrations.head()) + 1:04d}_add_a_column.py"
    assert f'down_revision: str | None = "{migrations.head()}"' in path.read_text()
    compile(path.read_text(), path, "exec")


# --- refused, in a sentence -------------------------------------------------------------------------------------------


def refused(url: str, sentence: str) -> None:
    with pytest.raises(DatabaseProblem, match=sentence) as caught:
        migrations.upgrade(url)
    assert "pymysql" not in str(caught.value)
    assert "sqlalche.me" not in str(caught.value)


def test_a_database_that_is_not_there(mariadb_server: MariaDBServer) -> None:
    url = make_url(mariadb_server.admin_url()).set(database="rota_nowhere").render_as_string(hide_password=False)
    refused(url, "Unknown database 'rota_nowhere'; create it: CREATE DATABASE `rota_nowhere` CHARACTER SET utf8mb4$")


def test_a_wrong_password(mariadb_url: str) -> None:
    url = make_url(mariadb_url).set(password="secret").render_as_string(hide_password=False)
    refused(url, r":\*\*\*@.*: Access denied for user .*; check the user and the password in the URL$")


def test_a_user_who_may_only_read(mariadb_url: str, mariadb_server: MariaDBServer) -> None:
    reader = f"rota_test_{uuid.uuid4().hex[:12]}"
    database = make_url(mariadb_url).database
    admin = mariadb_server.admin_url()
    run_sql(admin, f"CREATE USER {reader}@'%' IDENTIFIED BY 'r'", f"GRANT SELECT ON {database}.* TO {reader}@'%'")
    try:
        url = make_url(mariadb_url).set(username=reader, password="r").render_as_string(hide_password=False)
        refused(
            url,
            r"CREATE command denied .*; as an administrator: GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, "
            rf"DROP, INDEX ON `{database}`\.\* TO '{reader}'@'%'$",
        )
        migrations.upgrade(mariadb_url)
        assert not migrations.upgrade(url).changed, "nothing to do needs no right but to read"
    finally:
        run_sql(admin, f"DROP USER {reader}@'%'")


def test_a_server_that_is_not_there() -> None:
    refused(
        "mysql://rota@127.0.0.1:1/rota", r"^mysql://rota@127\.0\.0\.1:1/rota: .*no server answers at 127\.0\.0\.1:1$"
    )


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    refused(f"sqlite:///{tmp_path}/no/rota.db", rf"the folder {tmp_path}/no does not exist; create it: mkdir -p")
    assert not (tmp_path / "no").exists()


def test_a_file_that_is_something_else(tmp_path: Path) -> None:
    other = tmp_path / "letter.txt"
    other.write_text("Dear reader, this is no database, and long enough to be looked at.\n" * 50)
    refused(f"sqlite:///{other}", "file is not a database; give Rota the path of a file that is new")


def test_a_schema_that_a_newer_rota_migrated_is_left_as_it_is(database_url: str) -> None:
    migrations.upgrade(database_url)
    typed(database_url, "UPDATE rota_schema_version SET version_num = '9999'", "DROP TABLE schedule_audit")
    before = ddl(database_url)
    report = migrations.upgrade(database_url)
    assert (report.before, report.after, report.changed, report.by_newer) == ("9999", "9999", False, True)
    assert str(report).endswith(
        f"is at 9999: a newer Rota migrated it, and it takes this Rota {__version__}, too; nothing was changed"
    )
    typed(database_url, "UPDATE rota_schema_version SET oldest_version = '99.1'")
    refused(database_url, rf"takes no Rota older than 99\.1 \(found Rota {__version__}, .*; nothing was changed$")
    assert ddl(database_url) == before


def test_a_revision_that_is_none(database_url: str) -> None:
    migrations.upgrade(database_url)
    typed(database_url, "UPDATE rota_schema_version SET version_num = '0000'")
    refused(database_url, r"is at 0000, which is no revision; there are 0001")


def test_each_migration_states_an_oldest_version_and_none_an_older_one_than_that_before() -> None:
    stated = list(migrations.oldest_versions().values())
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in stated)
    assert not any(is_older(after, before) for before, after in pairwise(stated))
    assert not is_older(__version__, stated[-1])


def test_a_table_of_our_name_that_is_not_ours(database_url: str) -> None:
    typed(database_url, "CREATE TABLE schedule_task (id INTEGER PRIMARY KEY, title VARCHAR(9))")
    refused(database_url, "a table schedule_task is there already and is not Rota's: it differs in .*, title")
    assert typed(database_url, "SELECT count(*) FROM schedule_task") == [(0,)]


def test_of_two_revisions_that_processes_wrote_at_once_the_newest_is_true(mariadb_url: str) -> None:
    migrations.upgrade(mariadb_url)
    run_sql(mariadb_url, "INSERT INTO rota_schema_version (version_num, oldest_version) VALUES ('0000', '0.0.1')")
    assert migrations.current(mariadb_url) == migrations.head()
    assert not migrations.upgrade(mariadb_url).changed
    run_sql(mariadb_url, "UPDATE rota_schema_version SET version_num = '0001' WHERE version_num > '0001'")
    assert migrations.upgrade(mariadb_url).changed
    assert run_sql(mariadb_url, "SELECT version_num FROM rota_schema_version") == [(migrations.head(),)]


def test_each_revision_is_greater_than_the_one_before_because_they_are_compared() -> None:
    files = sorted((ROOT / "migrations" / "versions").glob("0*.py"))
    texts = [file.read_text() for file in files]
    revisions = [re.search(r'^revision = "(\d{4})"$', text, re.M) for text in texts]
    before = [re.search(r'^down_revision: str \| None = "?(\d{4}|None)"?$', text, re.M) for text in texts]
    found = [one and one[1] for one in revisions]
    assert found == [file.name[:4] for file in files]
    assert [one and one[1] for one in before] == ["None", *found[:-1]]
    assert found[-1] == migrations.head()
