"""Schedulers and workers killed again and again, while runs follow the ends of others: each end is followed by one."""

import random
import signal
from collections import Counter
from datetime import timedelta
from itertools import pairwise

import pytest

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.processes import RotaProcess, wait_until

TASKS = 10
LIVENESS = {"ROTA_LIVENESS_SECONDS": "4", "ROTA_HEARTBEAT_SECONDS": "1"}
KILLS = 8
DELAY = timedelta(seconds=1)
IN_FLIGHT = "SELECT schedule_task_id FROM schedule_follow_up"


@pytest.mark.parametrize("seed", [0, 1])
def test_kills_lose_no_fire_after_an_end_and_double_none(cluster: Cluster, seed: int) -> None:
    print("seed", seed)
    chosen = random.Random(seed)
    workers = [cluster.worker(f"w{number}", environment=LIVENESS) for number in range(2)]
    schedulers = [cluster.scheduler(environment=LIVENESS) for _ in range(2)]
    cluster.wait_live("w0", "w1", deadline=40)
    tasks = [
        cluster.add_task(
            f"delayed {n}", chosen.choice(["NOTE", "NOTE_THREAD", "STEPS"]), trigger_kind="fixed_delay",
            trigger_spec={"fixed_delay": 1}, overlap_policy="allow", misfire_grace_seconds=60,
        )
        for n in range(TASKS)
    ]  # fmt: skip
    until = (cluster.now() + timedelta(seconds=40)).isoformat() + "+00:00"
    for number, kind in enumerate(["AGAIN", "AGAIN_PROCESS"] * 3):
        task = cluster.add_task(f"asking {number}", kind, trigger_kind="manual", param={"until": until})
        cluster.execute(
            "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime) VALUES (%s, UTC_TIMESTAMP(6))", task
        )
    for number in range(KILLS):
        wait_for_more(cluster, chosen.randrange(TASKS))
        if number % 2:
            at = chosen.randrange(len(workers))
            cluster.kill(workers[at])
            workers[at] = cluster.worker(f"v{number}", environment=LIVENESS)
        else:
            at = chosen.randrange(len(schedulers))
            kill(schedulers[at])
            schedulers[at] = cluster.scheduler(environment=LIVENESS)
    check_delayed(cluster, tasks)
    check_asked(cluster)
    cluster.wait_quiet()
    invariants.check(cluster)


def wait_for_more(cluster: Cluster, number: int) -> None:
    succeeded = "SELECT COUNT(*) AS n FROM schedule_instance WHERE status = 'succeed'"
    before = cluster.row(succeeded)["n"]
    wait_until(lambda: cluster.row(succeeded)["n"] > before + number, 30, "more runs to end")


def kill(scheduler: RotaProcess) -> None:
    scheduler.stop_signal(signal.SIGKILL)
    scheduler.wait_exit()


def check_delayed(cluster: Cluster, tasks: list[int]) -> None:
    """Each fire is a delay after the end before it, and each task has a next fire or a run that is marked."""
    least = 6
    wait_until(lambda: all(len(cluster.instances_of(task)) > least for task in tasks), 40, "each to go on")
    for task in tasks:
        runs = cluster.instances_of(task)
        assert all(run["gmt_completed"] for run in runs[:-1]), "one at a time"
        for before, after in pairwise(runs):
            assert after["schedule_datetime"] == before["gmt_completed"] + DELAY
    planned = "SELECT id FROM schedule_task WHERE trigger_kind = 'fixed_delay' AND next_fire_at IS NOT NULL"
    plans = Counter(row["id"] for row in cluster.rows(f"{planned} UNION ALL {IN_FLIGHT}"))
    assert plans == Counter(tasks)


def check_asked(cluster: Cluster) -> None:
    """Each run that asked for one more is followed by one, and what asked for none by none."""
    open_ = (
        "SELECT i.id FROM schedule_instance i JOIN schedule_task t ON t.id = i.schedule_task_id"
        " WHERE t.type LIKE 'AGAIN%%' AND i.status IN ('pending', 'assigned', 'running')"
    )
    wait_until(lambda: not cluster.rows(open_), 90, "the last to end")
    runs = cluster.rows(
        "SELECT i.* FROM schedule_instance i JOIN schedule_task t ON t.id = i.schedule_task_id"
        " WHERE t.type LIKE 'AGAIN%%' ORDER BY i.id"
    )
    assert {run["status"] for run in runs} == {"succeed"}
    followers = Counter(run["follows_id"] for run in runs if run["follows_id"] is not None)
    asked = {run["id"]: run["run_again_at"] for run in runs if run["run_again_at"] is not None}
    print(len(runs), "runs, of which", len(asked), "asked for one more")
    assert followers == Counter(asked.keys())
    assert len(runs) - len(asked) == 6
    for run in runs:
        assert run["follows_id"] is None or run["schedule_datetime"] == asked[run["follows_id"]]
