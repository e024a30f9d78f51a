"""Weights in a real cluster: what runs at once takes no more slots than its worker has, by the handlers' records."""

import time
from collections.abc import Iterable, Mapping

import pytest

from tests.harness import invariants
from tests.harness.cluster import Cluster, Entry
from tests.harness.databases import run_sql
from tests.harness.processes import wait_until

CAPACITY, OF_EACH = 6, 8
WEIGHTS = (1, 1, 2, 3, 5, 6)
TYPES = ("REST", "REST_THREAD")
QUICK = {"ROTA_LIVENESS_SECONDS": "5", "ROTA_HEARTBEAT_SECONDS": "1", "ROTA_ASSIGNMENT_TIMEOUT_SECONDS": "5"}
ENDED = "SELECT COUNT(*) AS n FROM schedule_instance WHERE status = 'succeed'"


def most_slots(evidence: Iterable[Entry], weights: Mapping[int, int], killed: Mapping[int, float]) -> dict[int, int]:
    """The most slots that handlers took at once, by process. ``killed``: when a process was dead, by its pid."""
    events = [(e.boottime, e.event == "enter", e.pid, e.instance) for e in evidence]
    running: dict[int, set[int]] = {}
    most: dict[int, int] = {}
    for at, enters, pid, instance in sorted(events):
        if at > killed.get(pid, float("inf")):
            continue
        held = running.setdefault(pid, set())
        (held.add if enters else held.discard)(instance)
        most[pid] = max(most.get(pid, 0), sum(weights[one] for one in held))
    return most


def add_weighed(cluster: Cluster) -> dict[int, int]:
    """Tasks of all weights, and instances of them that are due one after the other; the weights of these by id."""
    for number, weight in enumerate(WEIGHTS):
        for type_ in TYPES:
            cluster.add_task(f"{type_} {number}", type_, overlap_policy="allow", param={"seconds": 0.15}, weight=weight)
    run_sql(
        cluster.url,
        "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime)"
        " SELECT t.id, UTC_TIMESTAMP() - INTERVAL 10 + seq SECOND"
        f" FROM schedule_task t JOIN seq_1_to_{OF_EACH} ORDER BY seq, CRC32(t.id)",
    )
    rows = cluster.rows(
        "SELECT i.id, t.weight FROM schedule_instance i JOIN schedule_task t ON t.id = i.schedule_task_id"
    )
    return {row["id"]: row["weight"] for row in rows}


def test_a_worker_never_runs_more_than_its_slots_hold_though_workers_are_killed(cluster: Cluster) -> None:
    workers = {name: cluster.worker(name, "--capacity", str(CAPACITY), environment=QUICK) for name in "abc"}
    cluster.scheduler(environment=QUICK)
    cluster.wait_live(*workers)
    weights = add_weighed(cluster)
    wait_until(lambda: cluster.row(ENDED)["n"] >= len(weights) // 4, 60, "a quarter to end")
    victim = workers.pop("a")
    pids = (victim.pid, victim.worker_pid)
    cluster.kill(victim)
    killed = dict.fromkeys(pids, time.clock_gettime(time.CLOCK_BOOTTIME))
    cluster.worker("a2", "--capacity", str(CAPACITY), environment=QUICK)
    wait_until(lambda: cluster.row(ENDED)["n"] >= len(weights), 120, f"{len(weights)} instances to end")
    most = most_slots(cluster.evidence(), weights, killed)
    print(f"slots taken at once, by process: {most}")
    assert set(most.values()) == {CAPACITY}
    again = cluster.row("SELECT COUNT(*) AS n FROM schedule_instance WHERE worker_losses > 0")["n"]
    assert again > 0, "no worker was killed while it ran one"
    invariants.check(cluster)


@pytest.mark.parametrize("seconds", [0.1, 2.0], ids=["quick", "longer than a claimed run waits for a slot"])
def test_what_takes_all_slots_is_not_passed_over_by_a_stream_of_small_ones(cluster: Cluster, seconds: float) -> None:
    """It holds its place: what is due before it starts before it, and what is due later starts later."""
    names = {}
    for name, takes in (("small", seconds), ("slower", 1.4 * seconds), ("large", seconds)):
        weight = CAPACITY if name == "large" else 1
        names[name] = cluster.add_task(
            name, "REST", task_group="one", overlap_policy="allow", param={"seconds": takes}, weight=weight
        )
    run_sql(
        cluster.url,
        "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime)"
        f" SELECT IF(seq = 15, {names['large']}, IF(seq % 2, {names['small']}, {names['slower']})),"
        " UTC_TIMESTAMP() - INTERVAL 100 - seq SECOND FROM seq_1_to_29",
    )
    cluster.worker("a", "--capacity", str(CAPACITY), environment=QUICK)
    cluster.wait_live("a")
    cluster.scheduler(environment=QUICK)
    wait_until(lambda: cluster.row(ENDED)["n"] >= 29, 120, "all to end")
    evidence = cluster.evidence()
    [one] = {e.instance for e in evidence if e.task == "large"}
    [entered], [left] = cluster.entries(one, "enter"), cluster.entries(one, "exit")
    others = [e for e in evidence if e.instance != one]
    assert not [e for e in others if entered.boottime < e.boottime < left.boottime], "it runs alone"
    before = [e.event for e in others if e.boottime < entered.boottime]
    assert (before.count("enter"), before.count("exit")) == (14, 14)
    assert cluster.instance(one)["attempt"] == 1
