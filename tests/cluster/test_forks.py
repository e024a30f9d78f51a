"""Nodes of one run that run beside each other, on real workers: kills, a stop, a cancel and a failure."""

import json
import signal
from typing import Any

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.processes import wait_until

BESIDE = ("FORKED_EU", "FORKED_US", "FORKED_ASIA")
QUICK = ("--heartbeat-seconds", "1", "--liveness-seconds", "10", "--grace-seconds", "1")


def one(cluster: Cluster, name: str, **columns: Any) -> int:
    (instance,) = cluster.add_instances(cluster.add_task(name, "FORKED", **{"weight": 3, **columns}))
    return instance


def statuses(cluster: Cluster, instance: int) -> list[str]:
    return [node["status"] for node in cluster.nodes_of(instance)]


def wait_nodes(cluster: Cluster, instance: int, *wanted: str) -> None:
    wait_until(lambda: statuses(cluster, instance) == list(wanted), 20, f"the nodes to be {wanted}")


def times_entered(cluster: Cluster, instance: int) -> dict[str, int]:
    entered = [entry.node for entry in cluster.entries(instance, "enter")]
    return {node.removeprefix("FORKED_"): entered.count(node) for node in dict.fromkeys(sorted(entered))}


def merged(cluster: Cluster, instance: int) -> Any:
    return json.loads(cluster.nodes_of(instance)[4]["execution_result"])


def test_they_run_at_once_and_another_worker_goes_on_with_those_that_have_not_ended(cluster: Cluster) -> None:
    cluster.scheduler()
    first = cluster.worker("first", *QUICK)
    cluster.wait_live("first")
    instance = one(cluster, "report", param={"us": "us", "asia": "asia"})
    wait_nodes(cluster, instance, "succeed", "running", "running", "succeed", "pending")
    cluster.worker("second", *QUICK)
    cluster.wait_live("second")
    cluster.kill(first)
    wait_until(lambda: len(cluster.entries(instance, "enter")) == 6, 30, "the two to begin on the second worker")
    wait_nodes(cluster, instance, "succeed", "running", "running", "succeed", "pending")
    cluster.open_gate("us")
    wait_nodes(cluster, instance, "succeed", "succeed", "running", "succeed", "pending")
    cluster.open_gate("asia")
    cluster.wait_status([instance], "succeed")
    assert times_entered(cluster, instance) == {"ASIA": 2, "EU": 1, "MERGE": 1, "SEND": 1, "US": 2}
    assert merged(cluster, instance) == ["ASIA", "EU", "SEND", "US"]
    assert json.loads(cluster.nodes_of(instance)[3]["execution_result"]) == ["EU", "FORKED_EU"]
    invariants.check(cluster)


def test_a_worker_that_stops_hands_back_what_has_not_ended(cluster: Cluster) -> None:
    cluster.scheduler()
    first = cluster.worker("first", *QUICK)
    cluster.wait_live("first")
    instance = one(cluster, "report", param={"asia": "asia"})
    wait_nodes(cluster, instance, "succeed", "succeed", "running", "succeed", "pending")
    first.stop_signal(signal.SIGTERM)
    assert first.wait_exit() == 0
    assert statuses(cluster, instance) == ["succeed", "succeed", "pending", "succeed", "pending"]
    assert cluster.instance(instance)["failures"] == 0
    cluster.open_gate("asia")
    cluster.worker("second", *QUICK)
    cluster.wait_live("second")
    cluster.wait_status([instance], "succeed")
    assert times_entered(cluster, instance) == {"ASIA": 2, "EU": 1, "MERGE": 1, "SEND": 1, "US": 1}
    invariants.check(cluster)


def test_a_run_whose_last_node_succeeds_as_its_worker_stops_has_succeeded(cluster: Cluster) -> None:
    cluster.scheduler()
    first = cluster.worker("first", *QUICK)
    cluster.wait_live("first")
    nodes = [{"type": "FORKED_US", "after": []}, {"type": "FORKED_EU", "after": []}]
    instance = one(cluster, "report", param={"us": "us", "nodes": nodes})
    wait_nodes(cluster, instance, "running", "succeed")
    first.stop_signal(signal.SIGTERM)
    wait_until(lambda: "stops with 1 instances still running" in first.log, 15, "the last grace to begin")
    cluster.open_gate("us")
    assert first.wait_exit() == 0
    assert (cluster.instance(instance)["status"], statuses(cluster, instance)) == ("succeed", ["succeed", "succeed"])
    assert json.loads(cluster.instance(instance)["execution_result"]) == "us"
    invariants.check(cluster)


def test_a_cancel_stops_them_all_and_a_failure_none_of_the_others(cluster: Cluster) -> None:
    cluster.scheduler()
    cluster.worker("first", *QUICK)
    cluster.wait_live("first")
    canceled = one(cluster, "canceled", param={"eu": "never", "asia": "never"})
    wait_nodes(cluster, canceled, "running", "succeed", "running", "pending", "pending")
    failed = one(cluster, "failed", param={"fails": 2, "eu": "eu", "asia": "asia"}, retries=1, retry_delay_seconds=0)
    wait_until(lambda: cluster.entries(failed, "raised"), 15, "US to fail")
    cluster.open_gate("eu")
    wait_nodes(cluster, failed, "succeed", "running", "running", "pending", "pending")
    cluster.execute("UPDATE schedule_instance SET gmt_cancel_requested = UTC_TIMESTAMP(6) WHERE id = %s", canceled)
    cluster.wait_status([canceled], "canceled")
    assert statuses(cluster, canceled) == ["canceled", "succeed", "canceled", "canceled", "canceled"]
    cluster.open_gate("asia")
    cluster.wait_status([failed], "failed")
    assert statuses(cluster, failed) == ["succeed", "failed", "succeed", "succeed", "canceled"]
    assert times_entered(cluster, failed) == {"ASIA": 1, "EU": 1, "SEND": 1, "US": 2}
    assert cluster.instance(failed)["reason"] == "node FORKED_US failed: ValueError: it is meant to fail"
    invariants.check(cluster)


def test_with_one_slot_they_run_one_after_another(cluster: Cluster) -> None:
    cluster.scheduler()
    cluster.worker("first", *QUICK)
    cluster.wait_live("first")
    instance = one(cluster, "report", weight=1)
    cluster.wait_status([instance], "succeed")
    order = [(entry.node.removeprefix("FORKED_"), entry.event) for entry in cluster.entries(instance)]
    nodes = ("EU", "US", "ASIA", "SEND", "MERGE")
    assert order == [(node, event) for node in nodes for event in ("enter", "exit")]
    assert merged(cluster, instance) == ["ASIA", "EU", "SEND", "US"]
    invariants.check(cluster)
