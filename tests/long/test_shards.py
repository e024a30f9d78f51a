"""Shards and broadcasts while workers and schedulers are killed: each shard succeeds once, and the parent ends last."""

import json
import signal

from tests.harness import invariants
from tests.harness.cluster import Cluster, Row
from tests.harness.processes import wait_until

LIVENESS = {"ROTA_LIVENESS_SECONDS": "4", "ROTA_HEARTBEAT_SECONDS": "1"}
SHARDS = 100


def shards_of(cluster: Cluster, parent: int) -> list[Row]:
    return cluster.rows("SELECT * FROM schedule_instance WHERE parent_id = %s ORDER BY shard_index, id", parent)


def check_ended_last(cluster: Cluster, parent: int) -> None:
    row = cluster.instance(parent)
    assert row["gmt_completed"] >= max(shard["gmt_completed"] for shard in shards_of(cluster, parent))


def test_each_of_a_hundred_shards_succeeds_once_though_workers_and_a_scheduler_are_killed(cluster: Cluster) -> None:
    """Two of four workers are killed while they run shards, and the scheduler while it waits for their ends."""
    workers = [cluster.worker(f"w{n}", "--capacity", "4", environment=LIVENESS) for n in range(4)]
    scheduler = cluster.scheduler(environment=LIVENESS)
    cluster.wait_live("w0", "w1", "w2", "w3", deadline=40)
    cluster.scheduler(environment=LIVENESS)
    task = cluster.add_task("sharded", "REST_THREAD", param={"seconds": 0.2}, spread="shards", shards=SHARDS)
    (parent,) = cluster.add_instances(task)

    def ended() -> int:
        return sum(row["status"] == "succeed" for row in shards_of(cluster, parent))

    wait_until(lambda: ended() >= 10, 30, "some shards to end")
    cluster.kill(workers[0])
    scheduler.stop_signal(signal.SIGKILL)
    scheduler.wait_exit()
    wait_until(lambda: ended() >= 40, 30, "more shards to end")
    cluster.kill(workers[1])
    cluster.wait_status([parent], "succeed", deadline=60)
    shards = shards_of(cluster, parent)
    assert [row["shard_index"] for row in shards] == list(range(SHARDS))
    assert {row["status"] for row in shards} == {"succeed"}
    result = json.loads(cluster.instance(parent)["execution_result"])
    assert [one["shard"] for one in result] == list(range(SHARDS))
    check_ended_last(cluster, parent)
    exits = [entry.instance for entry in cluster.evidence() if entry.event == "exit"]
    lost = sum(row["worker_losses"] for row in shards)
    print("worker losses", lost)
    assert set(exits) == {row["id"] for row in shards}
    assert len(exits) <= SHARDS + lost, "none has run twice but those whose workers were killed"
    invariants.check(cluster)


def test_a_broadcast_says_for_whom_it_ran_though_a_worker_joins_and_one_dies(cluster: Cluster) -> None:
    workers = [cluster.worker(f"w{n}", environment=LIVENESS) for n in range(2)]
    cluster.scheduler(environment=LIVENESS)
    cluster.wait_live("w0", "w1", deadline=40)
    task = cluster.add_task("everywhere", "HOLD", spread="broadcast", param={"gate": "go"})
    cluster.worker("late", environment=LIVENESS)
    (parent,) = cluster.add_instances(task)
    wait_until(lambda: len(shards_of(cluster, parent)) >= 2, 30, "the broadcast to begin")
    cluster.kill(workers[0])
    cluster.open_gate("go")
    cluster.wait_status([parent], "failed", "succeed", deadline=40)
    said = {row["worker"]: row["status"] for row in json.loads(cluster.instance(parent)["execution_result"])}
    assert said["w1"] == "succeed"
    assert said["w0"] in ("succeed", "canceled"), "it had ended before it was killed, or nobody else may run it"
    assert said.keys() <= {"w0", "w1", "late"}
    assert cluster.instance(parent)["status"] == ("succeed" if set(said.values()) == {"succeed"} else "failed")
    check_ended_last(cluster, parent)
    invariants.check(cluster)
