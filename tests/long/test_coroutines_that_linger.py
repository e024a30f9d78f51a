"""A coroutine that blocks the event loop, or passes over its cancellation, cannot be stopped. Its worker can."""

from rota.worker_service.app import EXIT_ABANDONED
from rota.worker_service.liveness import EXIT_LEASE_LOST
from tests.harness.cluster import Cluster
from tests.harness.processes import wait_until

QUICK = ("--cancel-grace-seconds", "1", "--heartbeat-seconds", "1", "--liveness-seconds", "4")


def test_a_worker_whose_event_loop_is_blocked_says_so_and_ends_and_its_run_is_recovered(cluster: Cluster) -> None:
    task = cluster.add_task("block", "BLOCK", param={"seconds": 120})
    cluster.scheduler()
    worker = cluster.worker("w", *QUICK, "--blocked-seconds", "8")
    cluster.wait_live("w")
    [instance] = cluster.add_instances(task)
    row = "SELECT * FROM schedule_worker_node WHERE name = 'w'"
    wait_until(lambda: cluster.row(row)["gmt_blocked"], 20, "the row to say that the worker is blocked")
    assert cluster.row(row)["blocked_by"] == f"instance {instance}"
    cluster.discount(worker)
    assert worker.wait_exit(20) == EXIT_LEASE_LOST
    wait_until(lambda: cluster.instance(instance)["worker_losses"] == 1, 10, "the run to be recovered")


def test_a_worker_whose_coroutine_does_not_end_at_its_timeout_ends_itself_and_the_retry_runs_elsewhere(
    cluster: Cluster,
) -> None:
    task = cluster.add_task(
        "swallow", "SWALLOW", param={"gate": "go"}, overlap_policy="queue", timeout_seconds=1, retries=1,
        retry_delay_seconds=0,
    )  # fmt: skip
    cluster.scheduler()
    stuck = cluster.worker("stuck", *QUICK, "--abandoned-seconds", "2", "--grace-seconds", "1")
    cluster.wait_live("stuck")
    [instance] = cluster.add_instances(task)
    wait_until(lambda: cluster.entries(instance, "enter"), 15, "its first run")
    cluster.worker("other", *QUICK)
    cluster.wait_live("other")
    assert stuck.wait_exit(60) == EXIT_ABANDONED
    wait_until(lambda: len(cluster.entries(instance, "enter")) == 2, 30, "its second run")
    cluster.open_gate("go")
    cluster.wait_status([instance], "succeed", deadline=30)
    assert (cluster.instance(instance)["failures"], cluster.instance(instance)["worker_losses"]) == (1, 0)
