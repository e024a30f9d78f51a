"""Limits that tasks share, in a real cluster: never more run at once than the limit says, by the handlers' records."""

import time
from collections.abc import Collection, Iterable, Mapping
from datetime import timedelta

import pytest

from tests.harness import invariants
from tests.harness.cluster import Cluster, Entry
from tests.harness.databases import run_sql
from tests.harness.processes import wait_until

LIMIT, INSTANCES, TASKS = 4, 200, 20
QUICK = {"ROTA_LIVENESS_SECONDS": "5", "ROTA_HEARTBEAT_SECONDS": "1"}
ENDED = "SELECT COUNT(*) AS n FROM schedule_instance WHERE status = 'succeed'"


def at_once(evidence: Iterable[Entry], killed: Mapping[int, float]) -> int:
    """The most handlers that ran at the same time. ``killed``: when a process was dead, by its pid."""
    events: list[tuple[float, int, tuple[int, int | None]]] = [(at, -1, (pid, None)) for pid, at in killed.items()]
    events += [(e.boottime, 1 if e.event == "enter" else -1, (e.pid, e.instance)) for e in evidence]
    running: set[tuple[int, int | None]] = set()
    most = 0
    for _, change, run in sorted(events, key=lambda event: event[:2]):
        if change > 0:
            running.add(run)
        elif run[1] is None:
            running = {one for one in running if one[0] != run[0]}
        else:
            running.discard(run)
        most = max(most, len(running))
    return most


def add_limited(cluster: Cluster, instances: int, task_type: str, seconds: float) -> None:
    """Tasks that share the limit, and so many instances of them, due at once."""
    run_sql(
        cluster.url,
        "BEGIN",
        "INSERT INTO schedule_task (name, type, trigger_kind, overlap_policy, param, limit_name)"
        f" SELECT CONCAT('limited ', seq), {task_type}, 'manual', 'allow', '{{\"seconds\": {seconds}}}', 'warehouse'"
        f" FROM seq_1_to_{TASKS}",
        "INSERT INTO schedule_instance (schedule_task_id, schedule_datetime)"
        " SELECT t.id, UTC_TIMESTAMP() - INTERVAL 1 + seq SECOND"
        f" FROM schedule_task t JOIN seq_1_to_{instances // TASKS}",
        "COMMIT",
    )


def in_the_middle(cluster: Cluster, names: Collection[str]) -> str:
    """One of these workers that has begun a run within the last tenth of a second; empty if there is none."""
    rows = cluster.rows(
        "SELECT w.name FROM schedule_instance i JOIN schedule_worker_node w ON w.id = i.schedule_worker_node_id"
        " WHERE i.status = 'running' AND i.gmt_started > UTC_TIMESTAMP(6) - INTERVAL 0.1 SECOND"
    )
    return next((str(row["name"]) for row in rows if row["name"] in names), "")


def test_never_more_than_the_limit_run_at_once_though_workers_and_schedulers_are_killed(cluster: Cluster) -> None:
    cluster.execute("INSERT INTO schedule_limit (name, max_running) VALUES ('warehouse', %s)", LIMIT)
    workers = {name: cluster.worker(name, environment=QUICK) for name in "abcd"}
    schedulers = [cluster.scheduler(environment=QUICK) for _ in range(2)]
    cluster.wait_live(*workers)
    add_limited(cluster, INSTANCES, "IF(seq % 2, 'REST', 'REST_THREAD')", 0.3)
    killed: dict[int, float] = {}
    for number in range(2):
        wanted = (number + 1) * INSTANCES // 4
        wait_until(lambda: cluster.row(ENDED)["n"] >= wanted, 60, f"{wanted} instances to end")  # noqa: B023
        name = wait_until(lambda: in_the_middle(cluster, workers), 30, "a worker to have just begun a run")
        victim = workers.pop(name)
        pids = (victim.pid, victim.worker_pid)
        cluster.kill(victim)
        killed |= dict.fromkeys(pids, time.clock_gettime(time.CLOCK_BOOTTIME))
        schedulers[number].kill()
        cluster.scheduler(environment=QUICK)
        cluster.worker(f"{name}2", environment=QUICK)
    wait_until(lambda: cluster.row(ENDED)["n"] >= INSTANCES, 120, f"{INSTANCES} instances to end")
    evidence = cluster.evidence()
    lost = cluster.row("SELECT COUNT(*) AS n FROM schedule_instance WHERE worker_losses > 0")["n"]
    print(f"{lost} runs were lost; {at_once(evidence, killed)} ran at once at most")
    assert lost > 0, "no worker was killed while it ran one"
    assert at_once(evidence, killed) == LIMIT
    assert len({entry.instance for entry in evidence if entry.event == "exit"}) == INSTANCES
    invariants.check(cluster)


@pytest.mark.parametrize("workers", [1, 4])
def test_quick_runs_do_not_wait_for_the_next_tick(cluster: Cluster, workers: int) -> None:
    instances = 1_000
    cluster.execute("INSERT INTO schedule_limit (name, max_running) VALUES ('warehouse', %s)", LIMIT)
    names = "abcd"[:workers]
    for name in names:
        cluster.worker(name)
    cluster.wait_live(*names)
    cluster.scheduler()
    began = cluster.now()
    add_limited(cluster, instances, "'NOTE'", 0)
    wait_until(lambda: cluster.row(ENDED)["n"] >= instances, 120, f"{instances} instances to end")
    seconds = (cluster.now() - began).total_seconds()
    print(f"{workers} workers: {instances / seconds:.0f} a second")
    assert at_once(cluster.evidence(), {}) <= LIMIT
    assert instances / seconds > 2 * LIMIT


def test_never_more_start_in_a_minute_than_the_limit_says(cluster: Cluster) -> None:
    per_minute, instances = 30, 80
    cluster.execute("INSERT INTO schedule_limit (name, starts_per_minute) VALUES ('warehouse', %s)", per_minute)
    victim = cluster.worker("victim", environment=QUICK)
    for name in "ab":
        cluster.worker(name, environment=QUICK)
    cluster.wait_live("victim", *"ab")
    cluster.scheduler(environment=QUICK)
    add_limited(cluster, instances, "'NOTE'", 0)
    wait_until(lambda: cluster.row(ENDED)["n"] >= per_minute, 30, "those of the first minute to end")
    cluster.kill(victim)
    began = cluster.now()
    wait_until(lambda: cluster.row(ENDED)["n"] >= instances, 150, "all to end")
    entered = sorted(entry.boottime for entry in cluster.evidence() if entry.event == "enter")
    most = max(sum(start <= other < start + 60 for other in entered) for start in entered)
    print(f"at most {most} within 60 s; the last {(cluster.now() - began).total_seconds():.0f} s after the kill")
    assert most == per_minute
    assert cluster.now() - began < timedelta(seconds=135), "they start as soon as they may"
