"""Who may only read the database can use each command that only reads, and is told about the others."""

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from rota.migrations import head
from rota.shared.database.transactions import opened
from rota.shared.domain.task import TaskDefinition
from rota.shared.store import tasks
from tests.harness.command_line import commands, invoke
from tests.harness.databases import MariaDBServer, run_sql
from tests.harness.filled import with_rows
from tests.harness.processes import ROOT

READING = {
    "task list": ((),),
    "task show": (("daily",),),
    "instance list": ((), ("--task", "daily", "--status", "pending"), ("--owner", "ann"), ("--tag", "a")),
    "instance show": (("1",),),
    "instance replay": (
        ("--status", "failed", "--task", "daily", "--since", "2026-01-01", "--dry-run"),
        ("--group", "a", "--dry-run"),
    ),
    "key list": ((), ("REPORT", "--begins", "product-"), ("--since", "2026-01-01")),
    "backfill list": ((), ("--task", "daily", "--status", "running")),
    "backfill show": (("1",),),
    "backfill start": (("daily", "--from", "2026-01-01", "--only-missing", "--dry-run"),),
    "worker list": ((), ("--all",)),
    "worker show": (("w",),),
    "scheduler list": ((),),
    "task why": (("daily",),),
    "task next": (("daily",),),
    "limit list": ((),),
    "limit show": (("warehouse",),),
    "calendar list": ((),),
    "calendar show": (("feasts",),),
    "audit": ((), ("--task", "daily")),
    "cron": (("0 3 * * *",),),
    "config": ((),),
    "doctor": (("--read-only",), ("--read-only", "--data")),
}
WRITING = {
    "up", "migrate", "scheduler", "worker", "task add", "task set", "task on", "task off", "task remove", "task run",
    "instance cancel", "instance replay", "backfill pause", "backfill resume", "backfill cancel", "worker drain",
    "worker resume", "scheduler pause", "scheduler resume", "task next", "limit add", "limit set", "limit remove",
    "key once", "key cancel", "calendar add", "calendar set", "calendar refresh", "calendar remove",
}  # fmt: skip
WITHOUT_DATABASE = {"task", "instance", "key", "backfill", "limit", "calendar", "health"}
ALL = [
    [*name.split(), *arguments, *json_too]
    for name, calls in READING.items()
    for arguments in calls
    for json_too in ((), ("--json",))
]
BOUND_BY_MODES = ("setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner") if os.geteuid() == 0 else ()
"""Root may write where the modes of files and folders forbid it; without these capabilities it may not."""

PROGRAM = """
import json, sys
from tests.harness.command_line import invoke
results = [invoke(*arguments, url=sys.argv[1]) for arguments in json.load(sys.stdin)]
print(json.dumps([[result.exit_code, result.output] for result in results]))
"""


def by_child(url: str, *calls: list[str]) -> list[tuple[int, str]]:
    """The exit codes and outputs of these commands, in a process that the modes of files bind, as root, too."""
    program = [*BOUND_BY_MODES, sys.executable, "-c", PROGRAM, url]
    done = subprocess.run(program, cwd=ROOT, input=json.dumps(calls), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [(code, output) for code, output in json.loads(done.stdout)]


@contextmanager
def modes(path: Path, mode: int) -> Iterator[None]:
    """Give these modes to a file or a folder, for the block."""
    before = path.stat().st_mode
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(before)


@pytest.fixture
def mariadb_reader(migrated_mariadb_url: str, mariadb_server: MariaDBServer) -> Iterator[str]:
    """The URL of a user who has SELECT on a database with rows, and nothing else."""
    with_rows(migrated_mariadb_url)
    reader, admin = f"rota_test_{uuid.uuid4().hex[:12]}", mariadb_server.admin_url()
    name = make_url(migrated_mariadb_url).database
    run_sql(admin, f"CREATE USER {reader}@'%' IDENTIFIED BY 'r'", f"GRANT SELECT ON {name}.* TO {reader}@'%'")
    try:
        yield make_url(migrated_mariadb_url).set(username=reader, password="r").render_as_string(hide_password=False)
    finally:
        run_sql(admin, f"DROP USER {reader}@'%'")


@pytest.fixture(params=["used", "new"])
def sqlite_reader(request: pytest.FixtureRequest, migrated_sqlite_url: str) -> str:
    """The URL of a file that is opened for reading only: one that a service has used, or one that was only migrated."""
    with_rows(migrated_sqlite_url)
    path = make_url(migrated_sqlite_url).database
    assert path
    if request.param == "new":
        subprocess.run([sys.executable, "-c", WITHOUT_WAL, path], check=True)
    return f"sqlite:///file:{path}?mode=ro&uri=true"


WITHOUT_WAL = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('PRAGMA journal_mode = DELETE')"


@pytest.fixture(params=["sqlite", "mariadb"])
def reader(request: pytest.FixtureRequest) -> str:
    """The URL of somebody who may only read, once for each kind of database."""
    if request.param == "sqlite":
        with_rows(url := request.getfixturevalue("migrated_sqlite_url"))
        return f"sqlite:///file:{make_url(url).database}?mode=ro&uri=true"
    return str(request.getfixturevalue("mariadb_reader"))


def test_each_command_is_known_to_read_or_to_write() -> None:
    assert {name for name, _ in commands()} == {*READING, *WRITING, *WITHOUT_DATABASE}


def test_a_user_who_may_only_select_can_use_each_command_that_reads(mariadb_reader: str) -> None:
    assert refused_in(mariadb_reader) == []


def test_a_file_that_is_opened_for_reading_can_be_read_by_each_command(sqlite_reader: str) -> None:
    assert refused_in(sqlite_reader) == []


def refused_in(url: str) -> list[tuple[list[str], str]]:
    """The commands that read and fail, each with what it says."""
    results = [(arguments, invoke(*arguments, url=url)) for arguments in ALL]
    return [(arguments, result.output) for arguments, result in results if result.exit_code != 0]


@pytest.mark.skipif(bool(BOUND_BY_MODES) and not shutil.which("setpriv"), reason="root, and there is no setpriv")
class TestAFileThatModesProtect:
    """A file that this user may only read, in a folder in which it may make no file."""

    @pytest.mark.parametrize("is_used", [True, False], ids=["used", "idle"])
    def test_it_can_be_read_by_each_command(self, migrated_sqlite_url: str, is_used: bool) -> None:
        with_rows(migrated_sqlite_url)
        file = Path(make_url(migrated_sqlite_url).database or "")
        with modes(file, 0o444), modes(file.parent, 0o555), opened(migrated_sqlite_url) as service:
            if is_used:
                service.read(lambda connection: connection.exec_driver_sql("SELECT 1 FROM schedule_task").all())
            assert Path(f"{file}-wal").exists() == is_used
            results = by_child(migrated_sqlite_url, *ALL, ["task", "list"], ["task", "off", "daily"])
        *read, (_, listed), (code, said) = results
        failed = [(arguments, said) for arguments, (code, said) in zip(ALL, read, strict=False) if code != 0]
        assert failed == []
        assert "daily" in listed
        assert (code, "takes no writes of Rota's: attempt to write a readonly database" in said) == (3, True)

    def test_what_a_service_has_written_and_not_yet_moved_to_the_file_is_read(self, migrated_sqlite_url: str) -> None:
        file = Path(make_url(migrated_sqlite_url).database or "")
        with_rows(migrated_sqlite_url)
        with opened(migrated_sqlite_url) as service, modes(file, 0o444), modes(file.parent, 0o555):
            service.write(
                lambda connection: tasks.add(connection, TaskDefinition.of(name="new", type="REPORT"), by="test")
            )
            assert Path(f"{file}-wal").stat().st_size > 0
            ((code, said),) = by_child(migrated_sqlite_url, ["task", "list"])
        assert (code, "new" in said) == (0, True)


def test_migrate_does_nothing_for_a_reader_where_nothing_is_to_be_done(
    migrated_mariadb_url: str, mariadb_reader: str
) -> None:
    first = invoke("migrate", url=mariadb_reader)
    assert (first.exit_code, "INSERT command denied" in first.stderr) == (3, True), first.output
    assert invoke("migrate", url=migrated_mariadb_url).exit_code == 0
    again = invoke("migrate", url=mariadb_reader)
    assert (again.exit_code, again.stdout.rstrip().endswith(f"is at {head()} already")) == (0, True), again.output


def test_what_would_write_is_refused_with_the_right_that_lacks(mariadb_reader: str) -> None:
    result = invoke("task", "off", "daily", url=mariadb_reader)
    name = make_url(mariadb_reader).database
    assert result.exit_code == 3
    assert "takes no writes of Rota's: UPDATE command denied to user" in result.stderr
    assert f"GRANT SELECT, INSERT, UPDATE, DELETE ON `{name}`.* TO" in result.stderr


def test_doctor_tells_a_reader_all_it_can_and_that_services_need_more(reader: str) -> None:
    result = invoke("doctor", "--json", "--data", url=reader)
    document = json.loads(result.stdout)
    checks = {check["name"]: check for check in document["checks"]}
    assert (result.exit_code, document["ok"], checks["writable"]["ok"]) == (3, False, False)
    assert {"scheduling", "kinds", "versions"} <= {*checks}
    assert len(document["data"]) > 5


def test_doctor_for_a_reader_asks_for_no_right_to_write(reader: str) -> None:
    result = invoke("doctor", "--read-only", "--json", url=reader)
    document = json.loads(result.stdout)
    assert (result.exit_code, document["ok"]) == (0, True)
    assert "writable" not in {check["name"] for check in document["checks"]}


def test_a_reader_is_refused_as_anybody_is_where_there_are_no_tables(mariadb_url: str, mariadb_reader: str) -> None:
    run_sql(mariadb_url, "DROP TABLE schedule_task")
    result = invoke("task", "list", url=mariadb_reader)
    assert (result.exit_code, "is incomplete" in result.stderr) == (3, True)


@pytest.mark.parametrize("only", ["mode=ro", "immutable=1"])
def test_a_url_that_says_to_read_only_is_named_where_a_command_would_write(migrated_sqlite_url: str, only: str) -> None:
    with_rows(migrated_sqlite_url)
    url = f"sqlite:///file:{make_url(migrated_sqlite_url).database}?{only}&uri=true"
    assert "daily" in invoke("task", "list", url=url).stdout
    for arguments in (["task", "off", "daily"], ["instance", "cancel", "1"], ["up", "--workers", "0"], ["scheduler"]):
        refused = invoke(*arguments, url=url)
        assert (refused.exit_code, refused.stdout) == (3, "")
        assert "the URL says that Rota may only read; leave out mode and immutable for what writes" in refused.stderr


def test_a_file_that_is_not_there_is_not_made_where_it_is_given_as_a_uri(tmp_path: Path) -> None:
    for uri in (f"file:{tmp_path}/new.db?uri=true", f"file://{tmp_path}/n%2Cew.db?mode=ro&uri=true"):
        refused = invoke("task", "list", url=f"sqlite:///{uri}")
        assert (refused.exit_code, "yet: run rota migrate, or rota up" in refused.stderr) == (3, True), refused.output
    assert list(tmp_path.iterdir()) == []
