"""Pools of threads on real workers: at most so many at once in each; neither they nor the slots hold up the other."""

import json
import signal
from collections import Counter

import pytest

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.processes import wait_until

POOL_APP = "tests.harness.pool_app:app"
SLOW = {"gate": "go", "seconds": 0.2}
QUICK = {"ROTA_LIVENESS_SECONDS": "10", "ROTA_HEARTBEAT_SECONDS": "1"}


def most_at_once(cluster: Cluster, task: int) -> dict[int, int]:
    """How many instances of a task ran at once in each worker, as the rows say."""
    overlaps = cluster.rows(
        "SELECT one.schedule_worker_node_id AS worker, COUNT(*) AS n FROM schedule_instance one"
        " JOIN schedule_instance other ON other.schedule_task_id = one.schedule_task_id"
        " AND other.schedule_worker_node_id = one.schedule_worker_node_id"
        " AND other.gmt_started <= one.gmt_started AND other.gmt_completed > one.gmt_started"
        " WHERE one.schedule_task_id = %s GROUP BY one.schedule_worker_node_id, one.id",
        task,
    )
    most: Counter[int] = Counter()
    for row in overlaps:
        most[row["worker"]] = max(most[row["worker"]], row["n"])
    return dict(most)


@pytest.mark.parametrize("type_", ["THUMB_THREAD", "THUMB_ASYNC", "THUMB_PROCESS", "THUMBS"])
def test_a_worker_runs_at_most_two_of_a_pool_of_two_and_other_tasks_go_on(cluster: Cluster, type_: str) -> None:
    names = ("a", "b") if type_ == "THUMB_THREAD" else ("a",)
    for name in names:
        cluster.worker(name, "--capacity", "3", app=POOL_APP)
    cluster.scheduler()
    cluster.wait_live(*names)
    slow = cluster.add_task("slow", type_, pool="images", overlap_policy="allow", param=SLOW)
    plain = cluster.add_task("plain", "PLAIN", overlap_policy="allow", param={})
    thumbs = cluster.add_instances(slow, 10)
    wait_until(lambda: len(cluster.evidence()) == 2 * len(names), 30, "the pools to be full")
    others = cluster.add_instances(plain, 6)
    cluster.wait_status(others, "succeed")
    running = 2 * len(names)
    assert Counter(cluster.statuses(thumbs).values()) == {"running": running, "assigned": 10 - running}
    cluster.open_gate("go")
    cluster.wait_status(thumbs, "succeed", deadline=60)
    most = most_at_once(cluster, slow)
    assert list(most.values()) == [2] * len(names), "each worker has its own pool"
    threads = {json.loads(cluster.instance(one)["execution_result"])["thread"] for one in thumbs}
    if type_ in ("THUMB_THREAD", "THUMBS"):
        assert threads == {"images-1", "images-2"}
    invariants.check(cluster)


def test_a_pool_goes_on_while_all_slots_are_taken(cluster: Cluster) -> None:
    cluster.worker("a", "--capacity", "2", app=POOL_APP)
    cluster.scheduler()
    cluster.wait_live("a")
    plain = cluster.add_task("plain", "PLAIN", overlap_policy="allow", param={"gate": "go"})
    slow = cluster.add_task("slow", "THUMB_THREAD", pool="images", overlap_policy="allow", param={})
    held = cluster.add_instances(plain, 50)
    wait_until(lambda: len(cluster.evidence()) >= 2, 30, "all slots to be taken")
    thumbs = cluster.add_instances(slow, 10)
    cluster.wait_status(thumbs, "succeed", deadline=30)
    assert len([entry for entry in cluster.evidence() if entry.instance in held]) == 2, "both slots are taken"
    cluster.open_gate("go")
    cluster.wait_status(held, "succeed", deadline=30)


def test_what_a_pool_ran_and_what_waited_for_it_go_to_another_worker_that_has_it(cluster: Cluster) -> None:
    first = cluster.worker("a", app=POOL_APP, environment=QUICK)
    cluster.scheduler(environment=QUICK)
    cluster.wait_live("a")
    slow = cluster.add_task("slow", "THUMB_THREAD", pool="images", overlap_policy="allow", param={"gate": "go"})
    thumbs = cluster.add_instances(slow, 5)
    wait_until(lambda: len(cluster.evidence()) == 2, 30, "the pool to be full")
    cluster.kill(first)
    cluster.worker("plain", environment=QUICK)
    cluster.wait_live("plain")
    why = "no live worker has the pool 'images'"
    wait_until(lambda: all(cluster.instance(one)["reason"] == why for one in thumbs), 30, "the scheduler to say why")
    cluster.worker("b", app=POOL_APP, environment=QUICK)
    cluster.open_gate("go")
    cluster.wait_status(thumbs, "succeed", deadline=30)
    assert {cluster.instance(one)["schedule_worker_node_id"] for one in thumbs} == {cluster.wait_live("b")["b"]}
    left = "SELECT COUNT(*) AS n FROM schedule_pool_place"
    wait_until(lambda: cluster.row(left)["n"] == 0, 30, "the scheduler to forget what has ended")
    invariants.check(cluster)


def test_a_worker_that_stops_hands_back_what_waits_for_its_pool(cluster: Cluster) -> None:
    first = cluster.worker("a", app=POOL_APP)
    cluster.scheduler()
    cluster.wait_live("a")
    slow = cluster.add_task("slow", "THUMB_THREAD", pool="images", overlap_policy="allow", param={"gate": "go"})
    thumbs = cluster.add_instances(slow, 5)
    wait_until(lambda: len(cluster.evidence()) == 2, 30, "the pool to be full")
    first.stop_signal(signal.SIGTERM)
    wait_until(lambda: Counter(cluster.statuses(thumbs).values())["pending"] == 3, 30, "what waits to be handed back")
    assert Counter(cluster.statuses(thumbs).values())["running"] == 2
    cluster.open_gate("go")
    first.wait_exit()
    assert Counter(cluster.statuses(thumbs).values()) == {"succeed": 2, "pending": 3}
