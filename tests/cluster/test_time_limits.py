"""A limit for a whole run, with real processes: its worker ends it, and if that does nothing, the scheduler."""

import os
import signal

import pytest

from tests.harness.cluster import Cluster
from tests.harness.processes import wait_until


@pytest.mark.parametrize("kind", ["HOLD", "HOLD_THREAD", "HOLD_PROCESS"])
def test_a_run_over_its_limit_is_ended_by_its_worker(cluster: Cluster, kind: str) -> None:
    task = cluster.add_task("long", kind, run_timeout_seconds=1, param={"gate": "never"})
    cluster.scheduler()
    cluster.worker("w", "--cancel-grace-seconds", "1")
    cluster.wait_live("w")
    (instance,) = cluster.add_instances(task)
    cluster.wait_status([instance], "failed", deadline=20)
    assert cluster.instance(instance)["reason"].startswith(f"the run timed out after 1 s in {kind}")


def test_a_worker_that_beats_and_does_nothing_loses_the_run(cluster: Cluster) -> None:
    task = cluster.add_task("long", "HOLD", run_timeout_seconds=5, param={"gate": "later"}, retries=1)
    cluster.scheduler("--overdue-seconds", "2", "--cancel-grace-seconds", "1")
    frozen = cluster.worker("frozen", "--blocked-seconds", "600")
    cluster.wait_live("frozen")
    (instance,) = cluster.add_instances(task)
    wait_until(lambda: cluster.entries(instance, "enter"), 15, "the handler to be entered")
    os.kill(frozen.worker_pid, signal.SIGSTOP)  # the worker alone: its guardian beats on
    cluster.discount(frozen)
    try:
        wait_until(lambda: cluster.instance(instance)["status"] == "pending", 60, "the scheduler to end the attempt")
        row = cluster.instance(instance)
        assert row["reason"].startswith("retry 1 of 1 after 10 s: the run timed out after 5 s in HOLD; worker 'frozen'")
        assert (row["lost_by"], row["failures"], row["worker_losses"]) == ("frozen", 1, 0)
        assert cluster.row("SELECT state FROM schedule_worker_node WHERE name = 'frozen'")["state"] == "live"
        cluster.worker("other")
        cluster.wait_live("other")
        wait_until(lambda: len(cluster.entries(instance, "enter")) == 2, 30, "the retry on the other worker")
    finally:
        os.kill(frozen.worker_pid, signal.SIGCONT)
    cluster.wait_status([instance], "failed")
    assert cluster.instance(instance)["attempt"] == 2
