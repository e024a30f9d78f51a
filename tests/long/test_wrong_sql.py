"""Whatever SQL does to its own rows, a task of another name fires each second, and no process is surprised."""

import os
import random
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from tests.harness.apps import EVIDENCE_FILE, GATE_FOLDER
from tests.harness.processes import RotaProcess, wait_until
from tests.harness.schemas import is_sqlite, typed
from tests.harness.sql_page import blocks, for_sqlite
from tests.harness.wrong_sql import WrongSql

STATEMENTS = 200
SECONDS = 45
"""Over which the statements are spread."""

TICK = (
    "INSERT INTO schedule_task (name, type, cron, cron_seconds, overlap_policy, required_labels)"
    " VALUES ('tick', 'NOTE', '* * * * * *', 1, 'allow', '{\"role\": \"tick\"}')"
)
NIGHTLY = "INSERT INTO schedule_task (id, name, type, cron) VALUES (3, 'nightly', 'NOTE', '0 2 * * *')"
INSTANCE = (
    "INSERT INTO schedule_instance (id, schedule_task_id, schedule_datetime)"
    " VALUES (17, 3, '2026-11-18 02:00:00.000000')"
)
RAN = "SELECT schedule_datetime, status, due_at, gmt_started FROM schedule_instance WHERE schedule_task_id = 1"


def test_the_pages_statements_and_200_wrong_ones_make_no_other_task_miss_a_fire(
    migrated_url: str, rota: Callable[..., RotaProcess], tmp_path: Path
) -> None:
    url = migrated_url
    seed = int(os.environ.get("ROTA_TEST_SEED") or random.randrange(10**6))
    print(f"ROTA_TEST_SEED={seed}")
    (tmp_path / "gates").mkdir()
    environment = {EVIDENCE_FILE: str(tmp_path / "evidence"), GATE_FOLDER: str(tmp_path / "gates")}

    def start(*arguments: str) -> RotaProcess:
        return rota(*arguments, database_url=url, environment=environment)

    def worker(name: str, *options: str) -> RotaProcess:
        return start("worker", "--app", "tests.harness.apps:app", "--name", name, *options)

    declaring = ("worker", "--app", "tests.harness.declaring_app:app", "--name")
    processes = [worker("steady", "--label", "role=tick"), start("scheduler")]
    for process in processes:
        process.wait_for_log("started")
    typed(url, TICK, NIGHTLY, INSTANCE)
    processes.append(start(*declaring, "worker-1"))
    processes[-1].wait_for_log("started as #")
    wait_until(lambda: succeeded(url), 20, "the first fire to run")
    wrong = WrongSql(url, seed)
    done: list[list[str]] = []
    refused = 0
    statements = [[sql] for sql in page(url)] + [[] for _ in range(STATEMENTS)]
    random.Random(seed).shuffle(statements)
    pause = SECONDS / len(statements)
    for number, given in enumerate(statements):
        if number % 5 == 0:
            wrong.renew()
        statement = given or wrong.statement()
        done.append(statement)
        refused += bool(wrong.run(*statement))
        time.sleep(pause)  # the statements are spread over the fires: the time between them is the load itself
    late = start(*declaring, "worker-2")
    late.wait_for_log("started as #")
    processes.append(late)
    so_far = len(succeeded(url))
    wait_until(lambda: len(succeeded(url)) >= so_far + 5, 20, "more fires to run")
    for statement in done:
        print(*(part[:300] for part in statement), sep="; ")
    print(f"{refused} of {len(done)} statements were refused")
    check_that_none_is_missing(url)
    for process in processes:
        assert process.alive, process.log_tail()
        assert "Traceback" not in process.log, process.log_tail(100)


def page(url: str) -> list[str]:
    """The page's statements, as the database's own client takes them; without the one that is to stop all fires."""
    kind = "sqlite" if is_sqlite(url) else "mariadb"
    chosen = [block.sql for block in blocks() if block.only in (None, kind) and block.name != "pause"]
    return [for_sqlite(sql) for sql in chosen] if is_sqlite(url) else chosen


def succeeded(url: str) -> list[tuple[object, ...]]:
    return typed(url, f"{RAN} AND status = 'succeed'")


def check_that_none_is_missing(url: str) -> None:
    """Each second from the first fire that was planned ahead to the last that ran has its fire, and it succeeded."""
    rows = {as_time(moment): status for moment, status, *_ in typed(url, RAN)}
    last = max(moment for moment, status in rows.items() if status == "succeed")
    first = min(rows)
    seconds = [first + timedelta(seconds=n) for n in range(int((last - first).total_seconds()) + 1)]
    missing = {str(moment): rows.get(moment) for moment in seconds if rows.get(moment) != "succeed"}
    for failed in typed(url, "SELECT * FROM schedule_instance WHERE schedule_task_id = 1 AND status = 'failed'"):
        print("failed:", failed)
    [(misfires, plan_error)] = typed(url, "SELECT misfires, plan_error FROM schedule_task WHERE id = 1")
    late = sorted(
        (as_time(started) - as_time(due)).total_seconds() for _, _, due, started in typed(url, RAN) if started
    )
    print(f"{len(seconds)} fires; starts were late by {late[len(late) // 2]:.4f} s (median), {late[-1]:.3f} s (latest)")
    assert (missing, misfires, plan_error) == ({}, 0, None)


def as_time(value: object) -> datetime:
    return value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
