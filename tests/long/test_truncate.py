"""After TRUNCATE of the instances their ids are given again: new instances take over nothing of the old ones."""

import json

from tests.harness.cluster import Cluster
from tests.harness.processes import wait_until


def test_after_truncate_a_worker_starts_the_new_instance_of_an_id_when_the_old_one_has_ended(cluster: Cluster) -> None:
    cluster.scheduler()
    cluster.worker("w")
    cluster.wait_live("w")
    held = cluster.add_task("held", "HOLD", param={"gate": "old"}, overlap_policy="allow")
    [old] = cluster.add_instances(held)
    wait_until(lambda: cluster.entries(old, "enter"), 20, "the old run to begin")
    cluster.execute("TRUNCATE schedule_instance")
    steps = cluster.add_task("steps", "STEPS", param={}, overlap_policy="allow")
    new, other = cluster.add_instances(steps, 2)
    assert new == old
    cluster.wait_status([other], "succeed", deadline=20)
    wait_until(lambda: cluster.instance(new)["status"] == "assigned", 10, "the new instance to be given")
    cluster.open_gate("old")
    cluster.wait_status([new], "succeed", deadline=20)
    entered = [entry.node for entry in cluster.entries(new, "enter")]
    assert entered == ["HOLD", "STEPS_FIRST", "STEPS_SECOND", "STEPS_THIRD"]
    assert json.loads(cluster.instance(new)["execution_result"]) == {"after": {"after": {"attempt": 1}}}
    strays = """SELECT COUNT(*) AS n FROM schedule_task_node n LEFT JOIN schedule_instance i
        ON i.id = n.schedule_instance_id AND i.gmt_create = n.instance_gmt_create WHERE i.id IS NULL"""
    wait_until(lambda: cluster.row(strays)["n"] == 0, 30, "the nodes of the old instances to be removed")


def test_after_truncate_of_the_node_types_each_node_runs_its_own_code_on_a_worker_that_registers_again(
    cluster: Cluster,
) -> None:
    cluster.scheduler()
    worker = cluster.worker("w")
    cluster.wait_live("w")
    steps = cluster.add_task("steps", "STEPS", param={}, overlap_policy="allow")
    before = cluster.add_instances(steps)
    cluster.wait_status(before, "succeed", deadline=20)
    cluster.execute("TRUNCATE schedule_task_node_type")
    cluster.worker("late", app="tests.harness.apps:late_app")  # it takes the first ids
    cluster.wait_live("w", "late")
    after = cluster.add_instances(steps, 3)
    worker.wait_for_log("it registers them again", 90)
    cluster.wait_status(after, "succeed", deadline=20)
    for instance in after:
        assert [entry.node for entry in cluster.entries(instance, "enter")] == [
            "STEPS_FIRST",
            "STEPS_SECOND",
            "STEPS_THIRD",
        ]
