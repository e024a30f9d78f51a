"""A handler that holds Python's lock in one call of C, for times that people meet, at default settings."""

from rota.worker_service.liveness import EXIT_LEASE_LOST
from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.processes import RotaProcess, wait_until

ROW = "SELECT * FROM schedule_worker_node WHERE name = 'w'"


def blocked(cluster: Cluster, seconds: int) -> tuple[RotaProcess, int]:
    """A worker that is said to be blocked, and the run that blocks it. Another worker stands by."""
    task = cluster.add_task("lock", "SLEEP_WITH_LOCK", param={"seconds": seconds}, overlap_policy="allow")
    cluster.scheduler()
    worker = cluster.worker("w")
    cluster.wait_live("w")
    (instance,) = cluster.add_instances(task)
    wait_until(lambda: cluster.entries(instance, "enter"), 15, "the lock to be held")
    cluster.worker("other")
    wait_until(lambda: cluster.row(ROW)["gmt_blocked"], 10, "the row to say that the worker is blocked")
    assert cluster.row(ROW)["blocked_by"] == f"instance {instance}"
    return worker, instance


def test_a_lock_that_is_held_for_20_s_loses_nothing_and_nothing_runs_twice(cluster: Cluster) -> None:
    _, instance = blocked(cluster, 20)
    cluster.wait_status([instance], "succeed", deadline=40)
    wait_until(lambda: cluster.row(ROW)["gmt_blocked"] is None, 10, "the row to say that it answers again")
    assert (cluster.row(ROW)["state"], cluster.instance(instance)["attempt"]) == ("live", 1)
    invariants.check(cluster)


def test_a_lock_that_is_held_for_90_s_ends_the_worker_after_60(cluster: Cluster) -> None:
    worker, instance = blocked(cluster, 90)
    cluster.discount(worker)
    since = cluster.row(ROW)["gmt_blocked"]
    assert worker.wait_exit(70) == EXIT_LEASE_LOST
    dead = cluster.row(ROW)
    assert 60 <= (dead["gmt_dead"] - since).total_seconds() < 63
    assert dead["reason"] == f"it did not answer for 60 s, blocked by instance {instance}"
    wait_until(lambda: cluster.instance(instance)["worker_losses"] == 1, 10, "the run to be recovered")
