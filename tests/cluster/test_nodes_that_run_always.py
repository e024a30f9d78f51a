"""Nodes that run always, on real workers: after a failure, a cancel, and the end of their own worker."""

import json
import signal
from contextlib import closing
from typing import Any

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.databases import connect
from tests.harness.processes import RotaProcess, wait_until

KEPT_APP = "tests.harness.kept_app:app"
NODES = ("CLEANED_WORK", "CLEANED_DELIVER", "CLEANED_CLEANUP", "CLEANED_NOTIFY")

QUICK = ("--heartbeat-seconds", "1", "--liveness-seconds", "10")


def one(cluster: Cluster, name: str, **columns: Any) -> int:
    """A run whose WORK waits for the gate ``work``, and whose CLEANUP for ``clean``, unless it is said otherwise."""
    param = {"work": "work", "clean": "clean", **columns.pop("param", {})}
    (instance,) = cluster.add_instances(cluster.add_task(name, "CLEANED", param=param, **columns))
    return instance


def statuses(cluster: Cluster, instance: int) -> list[str]:
    return [node["status"] for node in cluster.nodes_of(instance)]


def wait_nodes(cluster: Cluster, instance: int, *wanted: str, deadline: float = 20) -> None:
    wait_until(lambda: statuses(cluster, instance) == list(wanted), deadline, f"the nodes to be {wanted}")


def results(cluster: Cluster, instance: int) -> list[Any]:
    return [json.loads(node["execution_result"]) for node in cluster.nodes_of(instance)[2:]]


def started(cluster: Cluster, name: str) -> RotaProcess:
    worker = cluster.worker(name, "--grace-seconds", "1", *QUICK)
    cluster.wait_live(name)
    return worker


def test_a_run_is_cleaned_up_whoever_ends_it(cluster: Cluster) -> None:
    cluster.scheduler()
    first = started(cluster, "first")
    cluster.open_gate("open")
    failed = one(cluster, "failed", param={"work": "open", "clean": "open", "fails": 1})
    canceled = one(cluster, "canceled", param={"clean": "open"})
    goes_well = one(cluster, "goes-well", param={"work": "open", "clean": "open"})
    cut_in_cleanup = one(cluster, "cut-in-cleanup", param={"work": "open", "fails": 1})
    once = one(cluster, "once", on_worker_lost="fail")
    cluster.wait_status([failed], "failed")
    cluster.wait_status([goes_well], "succeed")
    cluster.wait_status([canceled], "running")
    asked = "UPDATE schedule_instance SET gmt_cancel_requested = UTC_TIMESTAMP(6), reason = 'not needed' WHERE id = %s"
    cluster.execute(asked, canceled)
    cluster.wait_status([canceled], "canceled")
    wait_nodes(cluster, cut_in_cleanup, "failed", "canceled", "running", "pending")
    wait_until(lambda: cluster.entries(once, "enter"), 15, "the run that may run once to begin")

    second = started(cluster, "second")
    cluster.kill(first)
    wait_nodes(cluster, cut_in_cleanup, "failed", "canceled", "running", "pending", deadline=30)
    wait_nodes(cluster, once, "failed", "canceled", "running", "pending", deadline=30)

    started(cluster, "third")
    second.stop_signal(signal.SIGTERM)
    assert second.wait_exit() == 0
    cluster.open_gate("clean")
    cluster.wait_status([cut_in_cleanup, once], "failed", deadline=30)

    why = "node CLEANED_WORK failed: Fail: it is meant to fail"
    told = {"status": "failed", "reason": why}
    for instance in (failed, cut_in_cleanup):
        row = cluster.instance(instance)
        assert (row["reason"], row["failures"]) == (why, 1)
        assert statuses(cluster, instance) == ["failed", "canceled", "succeed", "succeed"]
        assert results(cluster, instance) == [told, {"status": "failed", "cleaned": True}]
    assert statuses(cluster, canceled) == ["canceled", "canceled", "succeed", "succeed"]
    assert results(cluster, canceled)[0] == {"status": "canceled", "reason": "not needed"}
    assert cluster.instance(canceled)["reason"] == "not needed"
    assert results(cluster, goes_well) == [
        {"status": "running", "reason": None},
        {"status": "running", "cleaned": True},
    ]
    assert json.loads(cluster.instance(goes_well)["execution_result"]) == {"attempt": 1}
    assert "on_worker_lost = fail" in cluster.instance(once)["reason"]
    assert [e.node for e in cluster.entries(once, "enter")].count("CLEANED_WORK") == 1
    invariants.check(cluster)


def test_what_may_run_once_is_entered_once_though_its_success_could_not_be_written(cluster: Cluster) -> None:
    cluster.scheduler()
    first = cluster.worker("first", "--grace-seconds", "1", *QUICK, app=KEPT_APP)
    cluster.wait_live("first")
    task = cluster.add_task("kept", "KEPT", on_worker_lost="fail", param={"gate": "go"})
    (instance,) = cluster.add_instances(task)
    wait_until(lambda: cluster.entries(instance, "enter"), what="the run to begin")
    with closing(connect(cluster.url)) as console, console.cursor() as cursor:
        cursor.execute("BEGIN")
        work = cluster.nodes_of(instance)[0]["id"]
        cursor.execute("SELECT id FROM schedule_task_node WHERE id = %s FOR UPDATE", (work,))
        first.stop_signal(signal.SIGTERM)
        first.wait_for_log("stops with 1 instances still running")
        cluster.open_gate("go")
        assert first.wait_exit() == 0
    cluster.worker("second", *QUICK, app=KEPT_APP)
    cluster.wait_status([instance], "failed", "succeed")
    assert [e.node for e in cluster.entries(instance, "enter")] == ["KEPT_WORK", "KEPT_CLEANUP"]
    assert cluster.instance(instance)["status"] == "failed"
    invariants.check(cluster)
