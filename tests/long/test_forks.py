"""Nodes that run beside each other, in many runs, while their workers are killed."""

from collections import defaultdict
from typing import Any

from tests.harness import invariants
from tests.harness.cluster import Cluster
from tests.harness.databases import run_sql
from tests.harness.processes import wait_until

WIDTH, RUNS = 2, 400
QUICK = {"ROTA_LIVENESS_SECONDS": "5", "ROTA_HEARTBEAT_SECONDS": "1", "ROTA_ASSIGNMENT_TIMEOUT_SECONDS": "5"}
ENDED = "SELECT COUNT(*) AS n FROM schedule_instance WHERE status = 'succeed'"
WAITS_FOR = {"SEND": {"EU"}, "MERGE": {"EU", "US", "ASIA", "SEND"}}


def most_at_once(cluster: Cluster, killed: set[int]) -> int:
    """The most nodes of one run that ran at once, by the handlers' records of the processes that were not killed."""
    events = [e for e in cluster.evidence() if e.pid not in killed]
    running: dict[int, set[str]] = defaultdict(set)
    most = 0
    for entry in sorted(events, key=lambda e: e.boottime):
        (running[entry.instance].add if entry.event == "enter" else running[entry.instance].discard)(entry.node)
        most = max(most, len(running[entry.instance]))
    return most


def out_of_order(cluster: Cluster) -> list[str]:
    """Where a node was entered before all those had returned for which it waits."""
    returned: dict[int, set[str]] = defaultdict(set)
    wrong = []
    for entry in sorted(cluster.evidence(), key=lambda e: e.boottime):
        node = entry.node.removeprefix("FORKED_")
        if entry.event == "exit":
            returned[entry.instance].add(node)
        elif entry.event == "enter" and not WAITS_FOR.get(node, set()) <= returned[entry.instance]:
            wrong.append(f"{node} of instance {entry.instance}")
    return wrong


def wait_for_ends(cluster: Cluster, runs: int) -> None:
    wait_until(lambda: cluster.row(ENDED)["n"] >= runs, 180, f"{runs} runs to end")


def test_each_run_succeeds_in_order_though_workers_are_killed(cluster: Cluster) -> None:
    workers = {name: cluster.worker(name, "--capacity", "12", environment=QUICK) for name in "abc"}
    cluster.scheduler(environment=QUICK)
    cluster.wait_live(*workers)
    fields: dict[str, Any] = {"overlap_policy": "allow", "weight": WIDTH, "retries": 2, "retry_delay_seconds": 0}
    for number in range(2):
        cluster.add_task(f"report {number}", "FORKED", param={"fails": number}, **fields)
    run_sql(
        cluster.url,
        "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime)"
        f" SELECT t.id, UTC_TIMESTAMP() - INTERVAL seq SECOND FROM schedule_task t JOIN seq_1_to_{RUNS // 2}",
    )
    killed: set[int] = set()
    for at, name in ((RUNS // 5, "a"), (RUNS // 2, "b")):
        wait_for_ends(cluster, at)
        victim = workers[name]
        killed |= {victim.pid, victim.worker_pid}
        cluster.kill(victim)
        cluster.worker(f"{name}2", "--capacity", "12", environment=QUICK)
    wait_for_ends(cluster, RUNS)
    again = cluster.row("SELECT COUNT(*) AS n FROM schedule_instance WHERE worker_losses > 0")["n"]
    assert again > 0, "no worker was killed while it ran one"
    assert most_at_once(cluster, killed) == WIDTH
    assert out_of_order(cluster) == []
    invariants.check(cluster)
