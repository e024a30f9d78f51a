"""Versions of a task type live side by side: deploys that rename, remove or reorder nodes, rollbacks, canaries.

Each instance runs the list of the worker that it was given to, and keeps it from the moment in which it may have begun.
"""

import json
import signal
from typing import Any

import pytest

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.command_line import invoke
from tests.harness.processes import RotaProcess, wait_until

OLD = ["DEPLOYED_EXTRACT", "DEPLOYED_SEND"]
RENAMED = ["DEPLOYED_EXTRACT", "DEPLOYED_MAIL"]
GATE = "deployed"
QUICK = ("--liveness-seconds", "4", "--heartbeat-seconds", "0.5")


def worker(cluster: Cluster, name: str, version: str, *options: str) -> RotaProcess:
    process = cluster.worker(name, *options, app=f"tests.harness.deploys:{version}")
    cluster.wait_live(name)
    return process


def stop(process: RotaProcess) -> None:
    process.stop_signal(signal.SIGTERM)
    assert process.wait_exit(20) == 0


def deploy(cluster: Cluster, before: RotaProcess, version: str) -> RotaProcess:
    """As a rolling deploy does: the new worker starts, then the old one stops."""
    process = worker(cluster, version, version)
    stop(before)
    return process


def task(cluster: Cluster, name: str = "deployed", **columns: Any) -> int:
    return cluster.add_task(name, "DEPLOYED", overlap_policy="allow", **columns)


def nodes(cluster: Cluster, instance: int) -> list[str]:
    """The types of the nodes that an instance has, in order."""
    rows = cluster.rows(
        "SELECT t.type FROM schedule_task_node n JOIN schedule_task_node_type t ON t.id = n.schedule_task_node_type_id"
        " WHERE n.schedule_instance_id = %s ORDER BY n.sequence",
        instance,
    )
    return [row["type"] for row in rows]


def ran(cluster: Cluster, task_id: int) -> list[str]:
    """Run a task once; returns the nodes that ran, in order."""
    [instance] = cluster.add_instances(task_id)
    cluster.wait_status([instance], "succeed", deadline=20)
    entered = [entry.node for entry in cluster.entries(instance, "enter")]
    assert nodes(cluster, instance) == entered
    return entered


def test_after_a_deploy_that_renames_a_node_the_task_type_runs_the_new_list(cluster: Cluster) -> None:
    cluster.scheduler()
    old, deployed = worker(cluster, "old", "original"), task(cluster)
    assert ran(cluster, deployed) == OLD
    deploy(cluster, old, "renamed")
    assert ran(cluster, deployed) == RENAMED
    invariants.check(cluster)


def test_after_a_deploy_that_removes_a_node_the_task_type_runs_the_shorter_list(cluster: Cluster) -> None:
    cluster.scheduler()
    old, deployed = worker(cluster, "old", "original"), task(cluster)
    assert ran(cluster, deployed) == OLD
    deploy(cluster, old, "shortened")
    assert ran(cluster, deployed) == ["DEPLOYED_EXTRACT"]
    invariants.check(cluster)


def test_a_deploy_that_reorders_nodes_changes_no_run_that_has_begun(cluster: Cluster) -> None:
    cluster.scheduler()
    old, deployed = worker(cluster, "old", "original"), task(cluster)
    held = task(cluster, "held", param={"hold": "DEPLOYED_SEND", "gate": GATE})
    [begun] = cluster.add_instances(held)
    wait_until(lambda: len(cluster.entries(begun, "enter")) == 2, 20, "the second node to begin")
    cluster.kill(old)
    worker(cluster, "new", "reordered", "--label", "app=reordered")  # it finds that the old process is gone
    cluster.open_gate(GATE)
    cluster.wait_status([begun], "succeed", deadline=40)
    assert nodes(cluster, begun) == OLD
    entered = [entry.node for entry in cluster.entries(begun, "enter")]
    assert entered == [*OLD, "DEPLOYED_SEND"]  # what had succeeded does not run again
    assert ran(cluster, deployed) == ["DEPLOYED_SEND", "DEPLOYED_EXTRACT"]
    worker(cluster, "back", "original", "--label", "app=original")
    labelled = task(cluster, "labelled", required_labels={"app": "original"})
    assert ran(cluster, labelled) == OLD
    other = task(cluster, "labelled otherwise", required_labels={"app": "reordered"})
    assert ran(cluster, other) == ["DEPLOYED_SEND", "DEPLOYED_EXTRACT"]
    invariants.check(cluster)


def test_after_a_rollback_the_old_list_runs_and_what_was_pinned_waits_for_a_worker_that_can(cluster: Cluster) -> None:
    cluster.scheduler()
    old, deployed = worker(cluster, "old", "original"), task(cluster)
    new = deploy(cluster, old, "renamed")
    held = task(cluster, "held", param={"hold": "DEPLOYED_MAIL", "gate": GATE})
    [begun] = cluster.add_instances(held)
    wait_until(lambda: len(cluster.entries(begun, "enter")) == 2, 20, "the second node to begin")
    cluster.kill(new)
    worker(cluster, "back", "original")
    reason = "no live worker can run DEPLOYED_MAIL"
    wait_until(lambda: cluster.instance(begun)["reason"] == reason, 40, "the reason to be written")
    assert ran(cluster, deployed) == OLD
    assert cluster.instance(begun)["status"] == "pending"

    cluster.open_gate(GATE)
    worker(cluster, "again", "renamed")
    cluster.wait_status([begun], "succeed", deadline=20)
    assert nodes(cluster, begun) == RENAMED
    invariants.check(cluster)


def test_what_a_lost_worker_had_begun_waits_for_its_list_and_what_it_had_not_begun_runs_the_new_one(
    cluster: Cluster,
) -> None:
    cluster.scheduler()
    old = worker(cluster, "old", "original", "--capacity", "1", *QUICK)
    ids = cluster.wait_live("old")
    held = task(cluster, "held", param={"hold": "DEPLOYED_EXTRACT", "gate": GATE})
    [begun] = cluster.add_instances(held)
    wait_until(lambda: cluster.entries(begun, "enter"), 20, "the first node to begin")
    [not_begun] = cluster.add_instances(task(cluster))
    cluster.wait_status([not_begun], "assigned")
    assert (nodes(cluster, begun), nodes(cluster, not_begun)) == (OLD, OLD)
    worker(cluster, "new", "renamed")
    assert cluster.instance(not_begun)["schedule_worker_node_id"] == ids["old"]
    cluster.kill(old)

    cluster.wait_status([not_begun], "succeed", deadline=40)
    assert nodes(cluster, not_begun) == RENAMED
    assert [entry.node for entry in cluster.entries(not_begun, "enter")] == RENAMED
    reason = "no live worker can run DEPLOYED_EXTRACT, DEPLOYED_SEND"
    wait_until(lambda: cluster.instance(begun)["reason"] == reason, 40, "the reason to be written")
    assert (cluster.instance(begun)["status"], nodes(cluster, begun)) == ("pending", OLD)

    cluster.open_gate(GATE)
    worker(cluster, "again", "original")
    cluster.wait_status([begun], "succeed", deadline=20)
    assert nodes(cluster, begun) == OLD
    invariants.check(cluster)


@pytest.mark.parametrize("canary", ["renamed", "extended"])
def test_a_canary_gets_its_share_with_its_own_list_and_leaves_nothing_when_it_stops(
    cluster: Cluster, canary: str
) -> None:
    """By capacity it is one of ten."""
    cluster.scheduler()
    worker(cluster, "crowd", "original", "--capacity", "90")
    process, deployed = worker(cluster, "canary", canary, "--capacity", "10"), task(cluster)
    asked = cluster.add_instances(deployed, 100)
    cluster.wait_status(asked, "succeed", deadline=30)
    of_the_canary = [number for number in asked if nodes(cluster, number) != OLD]
    assert 2 <= len(of_the_canary) <= 30
    ids = cluster.wait_live("canary")
    holders = {cluster.instance(number)["schedule_worker_node_id"] for number in of_the_canary}
    assert holders == {ids["canary"]}
    stop(process)
    assert ran(cluster, deployed) == OLD
    invariants.check(cluster)


def cron_in_force(cluster: Cluster) -> str:
    return str(cluster.row("SELECT cron FROM schedule_task WHERE name = 'deployed-daily'")["cron"])


def test_an_old_version_that_restarts_leaves_the_newer_cron_and_a_rollback_brings_its_own_back(
    cluster: Cluster,
) -> None:
    cluster.scheduler("--liveness-seconds", "4")
    old = worker(cluster, "old", "at_three", *QUICK)
    assert cron_in_force(cluster) == "0 3 * * *"
    new = worker(cluster, "new", "at_four", *QUICK)
    assert cron_in_force(cluster) == "0 4 * * *"
    stop(old)
    again = worker(cluster, "again", "at_three", *QUICK)
    again.wait_for_log("task 'deployed-daily': a live worker carries a newer declaration")
    assert cron_in_force(cluster) == "0 4 * * *"
    shown = invoke("task", "show", "deployed-daily", "--json", url=cluster.url)
    declaration = json.loads(shown.stdout)["declaration"]
    assert (declaration["carried_by"], list(declaration["others"].values())) == (["new"], [["again"]])
    stop(new)
    wait_until(lambda: cron_in_force(cluster) == "0 3 * * *", 20, "the older declaration to be in force again")
