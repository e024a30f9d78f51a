"""Chains while schedulers and workers are killed: for each time what follows runs once, after all that it follows."""

import random
import signal
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from tests.harness import invariants
from tests.harness.cluster import Cluster, Row
from tests.harness.processes import RotaProcess, wait_until

LIVENESS = {"ROTA_LIVENESS_SECONDS": "4", "ROTA_HEARTBEAT_SECONDS": "1"}
FIRES = 30
CLOCKS = timedelta(milliseconds=100)
"""The end of a run is by its worker's clock, which is set by the database's as well as a round trip lets it."""

LATE: dict[str, Any] = {"overlap_policy": "allow", "misfire_grace_seconds": 3600}
"""Runs may overlap, and none is too late."""

ENDED = "SELECT COUNT(*) AS n FROM schedule_instance WHERE status IN ('succeed', 'failed', 'canceled')"


def kill_scheduler(scheduler: RotaProcess) -> None:
    scheduler.stop_signal(signal.SIGKILL)
    scheduler.wait_exit()


def wait_for_more(cluster: Cluster, number: int) -> None:
    before = cluster.row(ENDED)["n"]
    wait_until(lambda: cluster.row(ENDED)["n"] > before + number, 60, "more runs to end")


def add_follower(cluster: Cluster, name: str, type_: str, **after: str) -> int:
    return cluster.add_task(name, type_, trigger_kind="after", trigger_spec={"after": after}, **LATE)


@pytest.mark.parametrize("seed", [0, 1])
def test_each_time_has_one_run_of_what_follows_whoever_is_killed(cluster: Cluster, seed: int) -> None:
    """Two tasks fire each second on two workers; one follows both, one follows that, and one follows an end that none
    has."""
    print("seed", seed)
    chosen = random.Random(seed)
    workers = [cluster.worker(f"w{number}", environment=LIVENESS) for number in range(2)]
    schedulers = [cluster.scheduler(environment=LIVENESS) for _ in range(2)]
    cluster.wait_live("w0", "w1", deadline=40)
    followers = {
        "both": add_follower(cluster, "both", "NOTE_THREAD", left="success", right="success"),
        "last": add_follower(cluster, "last", "STEPS", both="always", left="always"),
        "never": add_follower(cluster, "never", "NOTE", left="failure"),
    }
    wait_until(lambda: len(cluster.rows("SELECT id FROM schedule_chain")) == 5, 30, "the links of the three")
    first = cluster.now().replace(microsecond=0) + timedelta(seconds=5)
    window: dict[str, Any] = {"starts_at": first, "ends_at": first + timedelta(seconds=FIRES - 1), **LATE}
    parents = [
        cluster.add_task(name, kind, cron="* * * * * *", **window)
        for name, kind in (("left", "NOTE"), ("right", "STEPS"))
    ]
    names = count()
    for kills in range(10):
        wait_for_more(cluster, chosen.randrange(6))
        at = chosen.randrange(2)
        if kills % 3:
            cluster.kill(workers[at])
            workers[at] = cluster.worker(f"v{next(names)}", environment=LIVENESS)
        else:
            kill_scheduler(schedulers[at])
            schedulers[at] = cluster.scheduler(environment=LIVENESS)
    ended = FIRES * 4
    wait_until(lambda: cluster.row(ENDED)["n"] >= ended, 120, f"{ended} runs to end")
    wait_until(lambda: not cluster.rows("SELECT id FROM schedule_chain_run"), 30, "all ends to be followed")
    cluster.wait_quiet()
    check(cluster, parents, followers)
    invariants.check(cluster)


def check(cluster: Cluster, parents: list[int], followers: dict[str, int]) -> None:
    """Each time has one run of each, which began after the ends of those before it."""

    def by_time(task: int) -> dict[object, Row]:
        rows = cluster.instances_of(task)
        assert {row["status"] for row in rows} <= {"succeed"}
        found = {row["schedule_datetime"]: row for row in rows}
        assert len(found) == len(rows), "one run for each time"
        return found

    left, right = (by_time(parent) for parent in parents)
    both, last = by_time(followers["both"]), by_time(followers["last"])
    assert len(left) == len(right) == len(both) == len(last) == FIRES
    assert by_time(followers["never"]) == {}
    for moment, row in both.items():
        assert row["gmt_create"] > max(left[moment]["gmt_completed"], right[moment]["gmt_completed"]) - CLOCKS
        assert last[moment]["gmt_create"] > row["gmt_completed"] - CLOCKS
        assert (row["origin"], row["run_number"]) == ("cron", 0)
    lost = cluster.row("SELECT SUM(worker_losses) AS n FROM schedule_instance")["n"]
    print("worker losses", lost)
