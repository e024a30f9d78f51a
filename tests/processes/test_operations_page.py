"""What docs/operations.md tells an operator to type is typed here, on a server of its own."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pymysql
import pytest

from rota.shared.database.mysql import RIGHTS_TO_MIGRATE, RIGHTS_TO_RUN
from tests.harness.command_line import invoke
from tests.harness.databases import PrivateMariaDB, run_sql
from tests.harness.processes import ROOT, RotaProcess, wait_until

BLOCK = re.compile(r"<!-- (?P<name>[a-z-]+) -->\n```(?:sql|sh)\n(?P<text>.*?)```", re.S)
USERS = ("migrate-user", "run-user", "read-user")
BY_READER = ("waiting", "failed", "woken")
SHELL = ("backup", "restore")


@cache
def blocks() -> dict[str, str]:
    """The blocks of the page, by their names."""
    page = (ROOT / "docs" / "operations.md").read_text()
    return {match["name"]: match["text"] for match in BLOCK.finditer(page)}


def statements(name: str) -> list[str]:
    """The statements of a block."""
    return [one.strip() for one in blocks()[name].split(";\n") if one.strip()]


@cache
def passwords() -> dict[str, str]:
    """The password of each user that the page makes."""
    return dict(re.findall(r"CREATE USER (\w+)@'%' IDENTIFIED BY '(\S+)'", "".join(map(blocks().get, USERS))))  # type: ignore[arg-type]


class Site:
    """A server on which everything of the page was typed, up to `rota migrate`."""

    def __init__(self, server: PrivateMariaDB) -> None:
        self.server = server
        for name in ("database", *USERS):
            run_sql(server.admin_url(), *statements(name))

    def url(self, user: str) -> str:
        """The URL of a user of the page."""
        return f"mysql+pymysql://{user}:{passwords()[user]}@127.0.0.1:{self.server.port}/rota"

    def type(self, name: str, folder: Path) -> None:
        """Type the lines of a shell block, with this server for `db` and the password for the one that is asked."""
        for line in blocks()[name].splitlines():
            user = line.partition(" -u ")[2].split()[0]
            here = line.replace("-h db", f"-h 127.0.0.1 -P {self.server.port}").replace(" -p ", " ")
            environment = {**os.environ, "MYSQL_PWD": passwords()[user]}
            subprocess.run(["sh", "-c", here], cwd=folder, env=environment, check=True)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with PrivateMariaDB() as server:
        made = Site(server)
        before = invoke("migrate", url=made.url("rota_run"))
        assert (before.exit_code, "CREATE command denied" in before.stderr) == (3, True)
        assert invoke("migrate", url=made.url("rota_migrate")).exit_code == 0
        yield made


def test_each_block_is_known() -> None:
    assert {*blocks()} == {"database", *USERS, *BY_READER, *SHELL}


def test_the_page_grants_what_the_errors_advise() -> None:
    assert f"GRANT {', '.join(RIGHTS_TO_MIGRATE)} ON" in blocks()["migrate-user"]
    assert f"GRANT {', '.join(RIGHTS_TO_RUN)} ON" in blocks()["run-user"]


def test_scheduler_and_worker_run_without_a_right_on_tables(site: Site, rota: Callable[..., RotaProcess]) -> None:
    url = site.url("rota_run")
    with pytest.raises(pymysql.err.OperationalError, match="CREATE command denied"):
        run_sql(url, "CREATE TABLE x (a INT)")
    assert "already" in invoke("migrate", url=url).stdout
    processes = [rota("scheduler", database_url=url), rota("worker", "--app", "examples.jobs:app", database_url=url)]
    ended = (
        "SELECT 1 FROM schedule_instance AS i JOIN schedule_task AS t ON t.id = i.schedule_task_id"
        " WHERE t.name = 'heartbeat' AND i.origin = 'cron' AND i.status = 'succeed' LIMIT 1"
    )
    wait_until(lambda: run_sql(url, ended), 60, "a fire of heartbeat to end")
    steps = (
        "task add mine --type REPORT", "task set mine --priority 3", "task off mine", "task on mine",
        "task run mine --wait", "task remove mine --yes", "doctor",
    )  # fmt: skip
    said = [(step, invoke(*step.split(), url=url)) for step in steps]
    assert [(step, result.output) for step, result in said if result.exit_code != 0] == []
    assert not [process.log_tail(200) for process in processes if "denied" in process.log_tail(200)]


@pytest.mark.parametrize("name", BY_READER)
def test_a_reader_may_ask_what_monitoring_asks(site: Site, name: str) -> None:
    run_sql(site.url("rota_read"), *statements(name))
    with pytest.raises(pymysql.err.OperationalError, match="UPDATE command denied"):
        run_sql(site.url("rota_read"), "UPDATE schedule_task SET status = 'off'")
    assert invoke("doctor", "--read-only", url=site.url("rota_read")).exit_code == 0


@pytest.mark.mariadb_only("its own client makes its backups")
@pytest.mark.skipif(not shutil.which("mariadb-dump"), reason="MariaDB's client is not installed")
def test_a_backup_is_made_by_the_reader_and_restored_by_the_user_for_migrations(site: Site, tmp_path: Path) -> None:
    url = site.url("rota_run")
    assert invoke("task", "add", "saved", "--type", "HTTP_REQUEST", "--param", PARAM, url=url).exit_code == 0
    site.type("backup", tmp_path)
    assert invoke("task", "remove", "saved", "--yes", url=url).exit_code == 0
    site.type("restore", tmp_path)
    assert invoke("task", "show", "saved", url=url).exit_code == 0
    assert "already" in invoke("migrate", url=site.url("rota_migrate")).stdout
    assert invoke("doctor", "--data", url=url).exit_code == 0


PARAM = '{"url": "https://example.org"}'
