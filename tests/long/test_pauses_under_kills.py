"""Two schedulers are paused, resumed, and killed right after it: no fire begins in a pause, none is lost or doubled."""

from datetime import datetime, timedelta

import pytest

from tests.harness.cluster import Cluster
from tests.harness.processes import wait_until

TASKS, ROUNDS = 20, 3
SEEN = timedelta(seconds=4)
"""Within so long each scheduler has seen the pause, on a machine that does much else."""


def wait_for(cluster: Cluster, moment: datetime) -> None:
    wait_until(lambda: cluster.now() > moment, 60, "the time to pass")


@pytest.mark.timeout(180)
def test_each_fire_runs_once_or_is_counted_and_none_begins_in_a_pause(cluster: Cluster) -> None:
    cluster.worker("w1")
    cluster.wait_live("w1")
    schedulers = [cluster.scheduler() for _ in range(2)]
    cluster.execute(
        "INSERT INTO schedule_task (name, type, cron, cron_seconds, overlap_policy, misfire_grace_seconds)"
        f" SELECT CONCAT('each-', seq), 'NOTE', '* * * * * *', 1, 'allow', 1 FROM seq_1_to_{TASKS}"
    )
    wait_for(cluster, cluster.now() + timedelta(seconds=4))
    pauses: list[tuple[datetime, datetime]] = []
    for number in range(ROUNDS):
        cluster.execute("INSERT INTO schedule_pause (reason) VALUES ('test')")
        began = cluster.now()
        schedulers[number % 2].kill()
        schedulers[number % 2] = cluster.scheduler()
        wait_for(cluster, began + SEEN + timedelta(seconds=4))
        pauses.append((began + SEEN, cluster.now()))
        cluster.execute("DELETE FROM schedule_pause")
        schedulers[(number + 1) % 2].kill()
        schedulers[(number + 1) % 2] = cluster.scheduler()
        wait_for(cluster, cluster.now() + timedelta(seconds=4))
    cluster.execute("UPDATE schedule_task SET ends_at = UTC_TIMESTAMP(6)")
    cluster.wait_quiet()

    for held, ended in pauses:
        begun = cluster.rows("SELECT id FROM schedule_instance WHERE gmt_started BETWEEN %s AND %s", held, ended)
        assert begun == []
    entered = [entry.instance for entry in cluster.evidence() if entry.event == "enter"]
    assert len(entered) == len(set(entered)) > TASKS * ROUNDS
    skips = (
        "SELECT schedule_task_id AS id, SUM(fires) AS skipped, MIN(first_fire) AS first FROM schedule_skip"
        " WHERE reason = 'fire_once' GROUP BY schedule_task_id"
    )
    skipped = {row["id"]: row for row in cluster.rows(skips)}
    fires = (
        "SELECT schedule_task_id AS id, COUNT(*) AS ran, MIN(schedule_datetime) AS first,"
        " MAX(schedule_datetime) AS last FROM schedule_instance GROUP BY schedule_task_id"
    )
    ran = cluster.rows(fires)
    assert len(ran) == TASKS
    for row in ran:
        missed = skipped[row["id"]]
        assert missed["skipped"] > ROUNDS, "something was missed in each pause"
        seconds = (row["last"] - min(row["first"], missed["first"])).total_seconds()
        assert row["ran"] + missed["skipped"] == 1 + seconds, (row, missed)
