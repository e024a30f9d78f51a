"""A thread cannot be stopped: while it runs, what it runs begins again nowhere."""

import signal
from datetime import timedelta

from rota.worker_service.app import EXIT_ABANDONED
from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.processes import wait_until

GRACE_SECONDS = 1.0
QUICK = ("--heartbeat-seconds", "1", "--liveness-seconds", "4", "--cancel-grace-seconds", str(GRACE_SECONDS))


def overlaps(cluster: Cluster, instances: list[int]) -> list[tuple[int, int]]:
    """The runs of these instances that began before an earlier one had ended: (instance, attempt)."""
    running: set[tuple[int, int]] = set()
    beside = []
    for entry in cluster.evidence():
        if entry.instance in instances:
            run = (entry.instance, entry.attempt)
            if entry.event != "enter":
                running.discard(run)
            elif running:
                beside.append(run)
            if entry.event == "enter":
                running.add(run)
    return beside


def entered(cluster: Cluster, instance: int) -> int:
    return len(cluster.entries(instance, "enter"))


def test_a_timed_out_thread_with_retries_never_runs_beside_itself(cluster: Cluster) -> None:
    task = cluster.add_task(
        "held", "HOLD_THREAD", param={"gate": "go"}, overlap_policy="queue", timeout_seconds=1, retries=3,
        retry_delay_seconds=0,
    )  # fmt: skip
    cluster.scheduler()
    cluster.worker("w1", *QUICK)
    cluster.worker("w2", *QUICK)
    cluster.wait_live("w1", "w2")
    first, second = cluster.add_instances(task, 2)
    wait_until(lambda: cluster.instance(first)["failures"] == 1, 15, "the timeout")
    assert "waits until its handler returns" in cluster.instance(first)["reason"]
    began = cluster.now()
    wait_until(lambda: cluster.now() - began > timedelta(seconds=3), 10, "several timeouts' time")
    assert (entered(cluster, first), entered(cluster, second)) == (1, 0)
    cluster.open_gate("go")
    cluster.wait_status([first, second], "succeed", deadline=30)
    assert entered(cluster, first) == 2
    assert overlaps(cluster, [first, second]) == []
    assert list(invariants.rows_agree(cluster.url, scheduled=True)) == []


def test_a_timed_out_thread_without_retries_fails_at_once_and_its_task_waits_for_it(cluster: Cluster) -> None:
    task = cluster.add_task("held", "HOLD_THREAD", param={"gate": "go"}, overlap_policy="queue", timeout_seconds=1)
    cluster.scheduler()
    cluster.worker("w1", *QUICK)
    cluster.worker("w2", *QUICK)
    cluster.wait_live("w1", "w2")
    first, second = cluster.add_instances(task, 2)
    cluster.wait_status([first], "failed")
    row = cluster.instance(first)
    assert row["gmt_completed"] - row["gmt_started"] < timedelta(seconds=1 + GRACE_SECONDS + 3)
    began = cluster.now()
    wait_until(lambda: cluster.now() - began > timedelta(seconds=3), 10, "the next to have had its chance")
    assert entered(cluster, second) == 0
    cluster.open_gate("go")
    cluster.wait_status([second], "succeed")
    assert overlaps(cluster, [first, second]) == []
    assert cluster.rows("SELECT * FROM schedule_kept_slot") == []


def test_a_worker_whose_thread_does_not_return_ends_itself_and_the_retry_runs_elsewhere(cluster: Cluster) -> None:
    task = cluster.add_task(
        "held", "HOLD_THREAD", param={"gate": "go"}, overlap_policy="queue", timeout_seconds=1, retries=1,
        retry_delay_seconds=0,
    )  # fmt: skip
    cluster.scheduler()
    stuck = cluster.worker("stuck", *QUICK, "--abandoned-seconds", "2", "--grace-seconds", "1")
    cluster.wait_live("stuck")
    [instance] = cluster.add_instances(task)
    wait_until(lambda: entered(cluster, instance) == 1, 15, "its first run")
    cluster.worker("other", *QUICK)
    cluster.wait_live("other")
    assert stuck.wait_exit(30) == EXIT_ABANDONED
    wait_until(lambda: entered(cluster, instance) == 2, 30, "its second run")
    cluster.open_gate("go")
    cluster.wait_status([instance], "succeed", deadline=30)
    row = cluster.instance(instance)
    assert (row["failures"], row["worker_losses"]) == (1, 0)


def test_a_graceful_stop_hands_back_only_what_has_ended(cluster: Cluster) -> None:
    """The thread runs on until the process ends. Nobody runs it again before that."""
    on_a_thread = cluster.add_task("thread", "HOLD_THREAD", param={"gate": "go"}, overlap_policy="allow")
    on_the_loop = cluster.add_task("loop", "HOLD", param={"gate": "go"}, overlap_policy="allow")
    cluster.scheduler()
    stopping = cluster.worker("stopping", *QUICK, "--grace-seconds", "1")
    old = cluster.wait_live("stopping")["stopping"]
    [threaded], [coroutine] = cluster.add_instances(on_a_thread), cluster.add_instances(on_the_loop)
    wait_until(lambda: entered(cluster, threaded) and entered(cluster, coroutine), 15, "both to run")
    cluster.worker("other", *QUICK)
    cluster.wait_live("other")
    stopping.stop_signal(signal.SIGTERM)
    wait_until(lambda: entered(cluster, coroutine) == 2, 20, "the coroutine to run elsewhere")
    assert stopping.wait_exit(30) == 0
    ended = cluster.now()
    wait_until(lambda: entered(cluster, threaded) == 2, 30, "the thread's run elsewhere")
    again = cluster.entries(threaded, "enter")[1]
    assert cluster.boot() + timedelta(seconds=again.boottime) > ended - timedelta(seconds=0.5)
    assert cluster.instance(threaded)["schedule_worker_node_id"] != old
    assert cluster.instance(threaded)["worker_losses"] == 0
    cluster.open_gate("go")
    cluster.wait_status([threaded, coroutine], "succeed", deadline=30)


def test_what_succeeds_just_after_the_grace_time_has_succeeded(cluster: Cluster) -> None:
    task = cluster.add_task("once", "HOLD_THREAD", param={"gate": "go"}, on_worker_lost="fail")
    cluster.scheduler()
    stopping = cluster.worker("stopping", *QUICK, "--grace-seconds", "1")
    cluster.wait_live("stopping")
    [instance] = cluster.add_instances(task)
    wait_until(lambda: entered(cluster, instance), 15, "it to run")
    stopping.stop_signal(signal.SIGTERM)
    stopping.wait_for_log("instances still running")
    cluster.open_gate("go")
    cluster.wait_status([instance], "succeed", deadline=15)
    assert stopping.wait_exit(30) == 0
