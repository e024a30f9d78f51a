"""Many tasks due in one second, several schedulers and workers: each fire once, each run once."""

import signal
from datetime import timedelta

from rota.shared.database.transactions import opened
from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.processes import wait_until
from tests.harness.tasks import insert_tasks

TASKS = 500


def test_500_tasks_of_one_second_run_once_each_with_3_schedulers_and_4_workers(cluster: Cluster) -> None:
    for number in range(4):
        cluster.worker(f"w{number}")
    for _ in range(3):
        cluster.scheduler()
    cluster.wait_live("w0", "w1", "w2", "w3", deadline=40)
    due = cluster.now().replace(microsecond=0) + timedelta(seconds=8)
    cron = f"{due.second} {due.minute} {due.hour} {due.day} {due.month} *"
    herd = [{"name": f"task {n}", "type": "NOTE", "cron": cron} for n in range(TASKS)]
    with opened(cluster.url) as database:
        database.write(lambda connection: insert_tasks(connection, herd))

    ended = "SELECT COUNT(*) AS n FROM schedule_instance WHERE status = 'succeed'"
    wait_until(lambda: cluster.row(ended)["n"] >= TASKS, 40, f"{TASKS} instances to succeed")

    rows = cluster.rows("SELECT * FROM schedule_instance")
    assert len(rows) == TASKS
    assert len({row["schedule_task_id"] for row in rows}) == TASKS
    assert {(row["schedule_datetime"], row["attempt"], row["run_number"]) for row in rows} == {(due, 1, 0)}
    evidence = cluster.evidence()
    assert sorted(e.instance for e in evidence if e.event == "enter") == sorted(row["id"] for row in rows)
    assert sorted(e.instance for e in evidence if e.event == "exit") == sorted(row["id"] for row in rows)
    assert len({e.pid for e in evidence}) == 4, "every worker takes part"
    late = sorted((row["gmt_started"] - row["due_at"]).total_seconds() for row in rows)
    print(f"{TASKS} starts of one second: median {late[TASKS // 2]:.3f} s, last {late[-1]:.3f} s after it")

    for process in cluster.processes:
        process.stop_signal(signal.SIGTERM)
    assert [process.wait_exit() for process in cluster.processes] == [0] * 7
    assert {row["reason"] for row in cluster.rows("SELECT reason FROM schedule_worker_node")} == {"stopped"}
    invariants.check(cluster)
