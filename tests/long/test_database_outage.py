"""A database that hangs, and one that crashes, while all runs: it goes on by itself, nothing is lost or doubled."""

import signal
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.cluster_fixtures import running
from tests.harness.databases import PrivateMariaDB, run_sql
from tests.harness.processes import wait_until

BLACK_HOLE_SECONDS = 5
DOWN_SECONDS = 3
TASKS = 8
EXPLAINED = ("overlap: instance", "its task was off when it was due")


def test_a_database_that_hangs_and_one_that_crashes_lose_and_double_nothing(
    own_mariadb: PrivateMariaDB, own_template: list[str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = own_mariadb.create_database()
    run_sql(url, *own_template)
    with running(url, tmp_path / "cluster", request.session) as cluster:
        workers = [cluster.worker(f"w{number}") for number in range(2)]
        schedulers = [cluster.scheduler() for _ in range(2)]
        live = cluster.wait_live("w0", "w1")
        for number in range(TASKS):
            kind, policy = ("NOTE", "STEPS", "NOTE_THREAD")[number % 3], ("skip", "allow")[number % 2]
            cluster.add_task(f"each second {number}", kind, "* * * * * *", overlap_policy=policy)
        held = cluster.add_task("held", "HOLD", param={"gate": "go"}, overlap_policy="allow")
        long_runs = cluster.add_instances(held, 2)
        cluster.wait_status(long_runs, "running")
        wait_for_more_runs(cluster)

        cluster.database_failed = True
        since = cluster.now()
        own_mariadb.stop_signal(signal.SIGSTOP)
        last_for(BLACK_HOLE_SECONDS)
        own_mariadb.stop_signal(signal.SIGCONT)
        up = cluster.now()
        wait_for_more_runs(cluster)
        print(f"it hung for {latest_start(cluster, since, up)}")

        since = cluster.now()
        own_mariadb.kill()
        last_for(DOWN_SECONDS)
        own_mariadb.start()
        up = cluster.now()
        wait_for_more_runs(cluster)
        print(f"it was down after a crash for {latest_start(cluster, since, up)}")

        cluster.open_gate("go")
        cluster.wait_status(long_runs, "succeed")
        cluster.wait_quiet()
        assert all(process.alive for process in (*workers, *schedulers))
        assert cluster.wait_live("w0", "w1") == live, "no worker was given up"
        assert [cluster.instance(i)["attempt"] for i in long_runs] == [1, 1]
        for row in cluster.rows("SELECT * FROM schedule_instance WHERE status <> 'succeed'"):
            assert row["status"] == "canceled", row
            assert row["reason"].startswith(EXPLAINED), row
        ended = Counter(row["status"] for row in cluster.rows("SELECT status FROM schedule_instance"))
        missed = cluster.row("SELECT SUM(misfires) AS n FROM schedule_task")["n"]
        print(f"instances: {dict(ended)}; misfires counted: {missed}")
        invariants.check(cluster)


def last_for(seconds: float) -> None:
    """Let the outage last so long: its length is the fault itself."""
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end, seconds + 5, "the outage to have lasted long enough")


def wait_for_more_runs(cluster: Cluster, fires: int = 3) -> None:
    """Wait until every task has run some fires that are due from now on."""
    now = cluster.now()
    query = """SELECT COUNT(*) AS n FROM (
        SELECT schedule_task_id FROM schedule_instance WHERE origin = 'cron' AND status = 'succeed' AND due_at > %s
        GROUP BY schedule_task_id HAVING COUNT(*) >= %s) AS ran"""
    wait_until(lambda: cluster.row(query, now, fires)["n"] == TASKS, 40, "every task to run again")


def latest_start(cluster: Cluster, since: datetime, up: datetime) -> str:
    """How long an outage took, and how late the latest of the fires since it began was started."""
    rows = cluster.rows(
        "SELECT due_at, gmt_started FROM schedule_instance WHERE due_at > %s AND gmt_started > due_at", since
    )
    latest = max((row["gmt_started"] - row["due_at"] for row in rows), default=timedelta())
    return f"{(up - since).total_seconds():.1f} s; the latest start was {latest.total_seconds():.1f} s after its time"
