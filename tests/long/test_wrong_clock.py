"""A host whose clock is wrong by an hour: nothing changes, because nobody asks it for the time."""

import re
from datetime import datetime, timedelta

import pytest

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.processes import shifted_host_clock, wait_until

FIRES = 4


@pytest.mark.parametrize("wrong", ["scheduler", "worker"])
def test_a_host_clock_that_is_an_hour_wrong_changes_nothing(cluster: Cluster, wrong: str) -> None:
    shifted = shifted_host_clock("+1h")
    worker = cluster.worker("w", environment=shifted if wrong == "worker" else None)
    scheduler = cluster.scheduler(environment=shifted if wrong == "scheduler" else None)
    cluster.wait_live("w")
    cluster.wait_scheduler()
    began = cluster.now()
    task = cluster.add_task("tick", "STEPS", "* * * * * *", timezone="Asia/Shanghai")
    by_hand = cluster.add_instances(
        cluster.add_task("by hand", "STEPS", param={"fail_until": 1}, retries=1, retry_delay_seconds=1)
    )
    ran = "SELECT COUNT(*) AS n FROM schedule_instance WHERE schedule_task_id = %s AND status = 'succeed'"
    wait_until(lambda: cluster.row(ran, task)["n"] >= FIRES, 20, f"{FIRES} fires to have run")
    cluster.wait_status(by_hand, "succeed")
    cluster.wait_quiet()
    ended = cluster.now()

    logged = re.search(r"^(\S+)Z ", (scheduler if wrong == "scheduler" else worker).log, re.MULTILINE)
    assert logged is not None
    assert datetime.fromisoformat(logged[1]) - began > timedelta(minutes=55), "its clock really is wrong"
    done = [row for row in cluster.instances_of(task) if row["status"] == "succeed"]
    for row in done:
        assert (
            began - timedelta(seconds=1)
            <= row["schedule_datetime"]
            <= row["gmt_started"]
            <= row["gmt_completed"]
            <= ended
        )
        assert row["gmt_started"] - row["due_at"] < timedelta(seconds=2)
        assert row["attempt"] == 1
    (retried,) = (cluster.instance(i) for i in by_hand)
    assert retried["attempt"] == 2
    assert began < retried["due_at"] <= retried["gmt_started"] < ended, "the retry waited its second, not an hour"
    invariants.check(cluster)
