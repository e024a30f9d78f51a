"""A command that waits goes on to wait while the database is away: what it waits for goes on without it."""

import json
from collections.abc import Callable, Iterator

import pytest

from rota.migrations import upgrade
from tests.harness.command_line import invoke
from tests.harness.databases import PrivateMariaDB, run_sql
from tests.harness.processes import RotaProcess, wait_until

TYPE = "INSERT INTO schedule_task_node_type (type, category, sequence) VALUES ('NOTE', 'NOTE', 1)"
TASK = "INSERT INTO schedule_task (name, type, trigger_kind) VALUES ('daily', 'NOTE', 'manual')"
END = "UPDATE schedule_instance SET status = 'succeed', gmt_completed = UTC_TIMESTAMP(6)"
BACKFILL = (
    "INSERT INTO schedule_backfill (schedule_task_id, status, from_at, to_at, concurrency)"
    " SELECT id, 'running', '2026-11-01', '2026-11-02', 1 FROM schedule_task"
)


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateMariaDB]:
    with PrivateMariaDB() as server:
        yield server


@pytest.fixture
def url(server: PrivateMariaDB) -> str:
    url = server.create_database()
    upgrade(url)
    run_sql(url, TYPE, TASK)
    return url


def outage(server: PrivateMariaDB, waiting: RotaProcess) -> None:
    server.kill()
    waiting.wait_for_log("the database is away: .*the wait goes on")
    server.start()
    waiting.wait_for_log("the database is back")
    assert waiting.alive
    assert waiting.log.count("is away") == 1


def test_a_run_is_waited_for_through_an_outage(
    server: PrivateMariaDB, url: str, rota: Callable[..., RotaProcess]
) -> None:
    waiting = rota("task", "run", "daily", "--wait", database_url=url)
    wait_until(lambda: run_sql(url, "SELECT id FROM schedule_instance"), 30, "the run")
    outage(server, waiting)
    run_sql(url, END)
    assert waiting.wait_exit() == 0
    assert "succeed" in waiting.log


def test_a_backfill_is_waited_for_through_an_outage(
    server: PrivateMariaDB, url: str, rota: Callable[..., RotaProcess]
) -> None:
    run_sql(url, BACKFILL)
    [shown] = json.loads(invoke("backfill", "list", "--json", url=url).stdout)
    waiting = rota("backfill", "show", str(shown["id"]), "--wait", database_url=url)
    waiting.wait_for_log("running")
    outage(server, waiting)
    run_sql(url, "UPDATE schedule_backfill SET status = 'done', gmt_completed = UTC_TIMESTAMP(6)")
    assert waiting.wait_exit() == 0
